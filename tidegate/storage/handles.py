"""Where state lies: handles, and the snapshots made of them. Plain data, encodable with msgspec, never pickled.

A snapshot is matched to a job by *operator id*, never by vertex, so that a restored job may chain differently.
Paths are relative to the job's checkpoint directory: a snapshot can be moved.

A driver has one of each for every subtask and checkpoint, so they are left out of Python's garbage collection
(`gc=False`): they come out of a message and refer to nothing that could refer to them, and looking through all of them
again and again made up half of the driver's time in jobs of 10,000 subtasks.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidegate.common.ids import CheckpointId, OperatorId, SubtaskIndex, VertexId
from tidegate.common.type_schema import TypeSchema


class FileRange(msgspec.Struct, frozen=True, gc=False, tag="file"):
    path: str  # relative to the root of the snapshot's job directory, '/'-separated
    offset: int
    length: int
    checksum: str  # xxh3_64 of exactly these bytes, 16 hex digits
    codec: str = ""  # how these bytes are compressed (storage.compression), "": not


class InlineBytes(msgspec.Struct, frozen=True, gc=False, tag="inline"):
    data: bytes
    checksum: str
    codec: str = ""


StateHandle = FileRange | InlineBytes

WATERMARKS = "tidegate.watermarks"
"""The operator state in which every task keeps its event time."""


def handle_size(handle: StateHandle) -> int:
    return handle.length if isinstance(handle, FileRange) else len(handle.data)


# ---------------------------------------------------------------- keyed state


class KeyedStateInfo(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is known of one state without reading it."""

    name: str
    kind: str  # "value" | "list" | "map" | "reducing" | "aggregating" | "timers"
    type_description: str = ""  # str() of the declared type information(s)
    namespaced: bool = False
    schema: TypeSchema | None = None  # the declared type of an entry's value, or the dataclass that was found there
    ttl: bool = False  # values are stored with the time of their last access, see state.ttl
    ttl_ms: int | None = None  # how long they live; None: not known, or `ttl` is False
    hidden: bool = False  # nobody looks into it while the job runs


class KeyedChunk(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Some entries of one state: the pickled pair (keys, values), equally long lists."""

    state: str
    entries: int
    handle: StateHandle


class KeyedIncrement(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """All that changed since an earlier checkpoint (or everything, when `full`). Later increments win over earlier
    ones, key by key; a tombstone (see state.heap) deletes."""

    checkpoint_id: CheckpointId  # the checkpoint that wrote it
    full: bool
    chunks: list[KeyedChunk]


class KeyedFile(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A file of the backend's own database, cut into parts of a few MB. It never changes: later checkpoints refer to
    the same parts."""

    name: str  # within the database's folder
    size: int
    checkpoint_id: CheckpointId  # the checkpoint that wrote it
    parts: list[StateHandle]


class KeyedSnapshot(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Keyed state of one operator subtask: the key groups [start, end).

    backend "heap": the chain of increments, oldest first; the first one is full. "rocksdb": the files of a database, in
    which a state is known by its position in `states`."""

    backend: str
    key_group_start: int
    key_group_end: int
    states: list[KeyedStateInfo]
    increments: list[KeyedIncrement] = []
    files: list[KeyedFile] = []
    key: TypeSchema | None = None  # the declared type of the keys, for those who read the state as a table

    def handles(self) -> Iterator[StateHandle]:
        for increment in self.increments:
            for chunk in increment.chunks:
                yield chunk.handle
        for file in self.files:
            yield from file.parts

    def inherited_handles(self, checkpoint_id: CheckpointId) -> Iterator[StateHandle]:
        """The handles of what other checkpoints than this one wrote."""
        for increment in self.increments:
            if increment.checkpoint_id != checkpoint_id:
                for chunk in increment.chunks:
                    yield chunk.handle
        for file in self.files:
            if file.checkpoint_id != checkpoint_id:
                yield from file.parts


# ---------------------------------------------------------------- operator (non-keyed) state


class OperatorListState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A list whose items can be handed out anew: the handle is a pickled list of pickled items (list[bytes]).

    mode "split": items are dealt out evenly over the subtasks; "union": every subtask gets all items of all subtasks;
    "broadcast": every subtask has the same items, each new subtask takes those of one old one."""

    name: str
    mode: str
    count: int
    handle: StateHandle


class OperatorSnapshot(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    operator_id: OperatorId
    name: str
    uid: str = ""
    keyed: KeyedSnapshot | None = None
    lists: list[OperatorListState] = []


CHAIN = "chain"
"""The side of what waited inside a chain."""


class ChannelState(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """In-flight elements of one channel: a pickled list of network elements.

    side "input": were queued at the receiver (come first on restore); "output": were queued at the sender; both only in
    unaligned checkpoints. "chain": waited between two operators of one chain, in any checkpoint; both subtasks are that
    of the chain."""

    edge_key: str  # JobEdge.key, of a chain JobVertex.links: stable across restarts, unlike the edge's index
    upstream: SubtaskIndex
    downstream: SubtaskIndex
    side: str
    records: int
    handle: StateHandle


class SnapshotMetrics(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Statistics of one subtask's part of a checkpoint. Durations in ms."""

    start_delay_ms: float = 0.0  # trigger until the first barrier came
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    state_bytes: int = 0  # written by this checkpoint
    full_bytes: int = 0  # referenced in total, earlier increments included
    inflight_bytes: int = 0  # channel state persisted
    processed_during_alignment: int = 0  # records
    unaligned: bool = False
    files: int = 0


class TaskSnapshot(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One subtask's part of a checkpoint, as it is acknowledged."""

    vertex: VertexId
    subtask: SubtaskIndex
    operators: list[OperatorSnapshot]
    channels: list[ChannelState] = []
    end_of_data: bool = False  # the task had processed all its input when it took the snapshot
    metrics: SnapshotMetrics = SnapshotMetrics()


class OperatorMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One operator of a completed checkpoint: its subtasks' snapshots, by subtask index."""

    operator_id: OperatorId
    name: str
    uid: str
    parallelism: int
    max_parallelism: int
    subtasks: list[OperatorSnapshot]
    end_of_data: list[bool]


class EnumeratorState(msgspec.Struct, frozen=True, kw_only=True):
    """What was known of the splits of a source when the checkpoint was triggered. Every split of it is in the state of
    a reader, or was read to its end."""

    known: list[str]  # names, in the order in which they were found
    handed_out: int = 0  # splits so far: whose turn the next one is
    complete: bool = False  # there are no others to come


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `_metadata`: written last, and what makes a checkpoint complete."""

    format_version: int
    job_id: str
    job_name: str
    checkpoint_id: CheckpointId
    timestamp: int  # trigger time, ms since the epoch
    savepoint: bool
    unaligned: bool
    operators: list[OperatorMetadata]
    channels: list[ChannelState]
    tidegate_version: str
    self_contained: bool = False  # paths are relative to the folder of `_metadata` itself, not to the one above
    companions: dict[str, str] = {}  # files beside it that no handle names: path -> checksum of the whole
    enumerators: dict[OperatorId, EnumeratorState] = {}  # of the sources whose splits are discovered
    epoch: int = 0  # of the leader that wrote it; 0: the job had no high availability
    # The name of a file beside it, which was there while the run that wrote this was known to own the directory. The
    # next run removes those of checkpoints without metadata: metadata without its witness came too late.
    witness: str = ""  # none: the lock of the directory ends with the process that holds it


# ---------------------------------------------------------------- restore


class OperatorRestore(msgspec.Struct, frozen=True, kw_only=True):
    """What one operator subtask gets back. `keyed` may hold snapshots of several old subtasks (rescaling): the backend
    keeps only keys of its own key groups."""

    operator_id: OperatorId
    keyed: list[KeyedSnapshot] = []
    lists: list[OperatorListState] = []  # union and broadcast as they are; "split" already dealt out, see items
    split_items: dict[str, list[tuple[StateHandle, int, int]]] = {}  # name -> (handle, first item, end item)
    end_of_data: bool = False


class MovedChannel(msgspec.Struct, frozen=True, kw_only=True):
    """In-flight records of a channel that is no more, since the parallelism has changed: they are put before everything
    else on a channel of the new receiver."""

    channel: ChannelState  # as it was, of either side
    upstream: SubtaskIndex  # of the new channel
    own_keys: bool  # several receivers read it: each keeps the records whose key group it owns


class TaskRestore(msgspec.Struct, frozen=True, kw_only=True):
    vertex: VertexId
    subtask: SubtaskIndex
    operators: list[OperatorRestore]
    channels: list[ChannelState] = []
    moved: list[MovedChannel] = []  # in the order in which they are to be processed


class SlotRestore(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId
    root: str  # URI of the job directory that the handles' paths are relative to
    tasks: list[TaskRestore]
    owned: bool = True  # False: the snapshot belongs to the user, nothing may be built upon its files
