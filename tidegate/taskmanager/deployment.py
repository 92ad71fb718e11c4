"""What a slot is told: the graph and the settings that the runtime needs, as one picklable plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.graph.job_graph import JobGraph
from tidegate.state.factory import HASHMAP
from tidegate.state.rocksdb.settings import RocksDBSettings
from tidegate.storage.worker_storage import WorkerStorage
from tidegate.taskmanager.instrument import Instrument


@dataclass(frozen=True)
class RuntimeSettings:
    """The part of the configuration that slots need, resolved on the driver."""

    batch_size: int = 1024  # records per batch on a channel, and the most that an operator gets at once
    credits_per_channel: int = 4
    max_batch_bytes: int = 1 << 20  # of a batch, estimated, unless it is a single record
    checkpointing: bool = False
    exactly_once: bool = True
    trace: bool = False  # print each barrier, alignment and snapshot
    max_increments: int = 10  # 0: every keyed snapshot is full
    state_backend: str = HASHMAP
    rocksdb: RocksDBSettings = field(default_factory=RocksDBSettings)
    commit_retries: int = 10
    commit_backoff_ms: float = 100.0
    heartbeat_interval_ms: float = 1000.0
    heartbeat_timeout_ms: float = 8000.0
    leave_grace_ms: float = 1000.0  # a task that does not leave within this is ended with its process; 0: never
    watermark_interval_ms: float = 200.0  # 0: no periodic watermarks
    object_reuse: bool = False  # True: all readers of a stream get the same objects
    check_mutations: bool = False  # debug mode: notice what user code changes in place
    job_parameters: dict[str, str] = field(default_factory=dict)
    class_mapping: dict[str, str] = field(default_factory=dict)  # old to new names of classes in stored state
    cached_files: dict[str, str] = field(default_factory=dict)  # name -> path in the worker


@dataclass(frozen=True)
class SlotPlan:
    graph: JobGraph
    settings: RuntimeSettings
    storage: WorkerStorage | None = None  # where snapshots are written and read
    storage_root: str = ""  # URI of the job's own checkpoint directory; a snapshot elsewhere is read, never built upon
    instrument: Instrument | None = None

    def instrumented(self, slot: SlotIndex, attempt: AttemptNumber, addresses: Sequence[str]) -> SlotPlan:
        """In a worker, once: tells the instrument of its start and lets it stand before the storage."""
        if self.instrument is None:
            return self
        self.instrument.slot_started(slot, attempt, addresses)
        storage = None if self.storage is None else self.instrument.worker_storage(self.storage)
        return replace(self, storage=storage)
