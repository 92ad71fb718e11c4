"""Whole checkpoints and savepoints on disk, made by real backends without a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskIndex, VertexId
from tidegate.common.type_schema import schema_of
from tidegate.state.factory import KeyedBackends
from tidegate.state.key_groups import key_group, key_group_range
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.state.rocksdb.settings import RocksDBSettings
from tidegate.state.savepoint.format import write_savepoint_metadata
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.files import LocalFiles
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.handles import CheckpointMetadata, OperatorMetadata, OperatorSnapshot

GROUPS = 16
PARALLELISM = 2
NOW = 1_000_000.0
OPERATOR = OperatorId("5b5d34d6fc15ed226b2702387a42d4e8")
FORMATS = ("hashmap", "rocksdb", "savepoint")

Fill = Callable[[Any, Callable[[Any], bool]], None]
"""Called with a backend and a test of whether a key is its own."""


def make_snapshot(
    root: Path,
    kind: str,
    rounds: Iterable[Fill],
    operator_state: OperatorStateBackend | None = None,
    key_type: Any = None,
) -> str:
    """The path of a checkpoint (of the backend `kind`) or a savepoint, after a checkpoint behind each round."""
    storage = FileSystemStorage(str(root), "job", min_file_size=100)
    storage.open(0.0)
    workers = storage.worker_storage()
    backends = KeyedBackends("hashmap" if kind == "savepoint" else kind, RocksDBSettings(), 10, lambda: NOW)
    snapshots = []
    last = len(list(rounds))
    for subtask in map(SubtaskIndex, range(PARALLELISM)):
        groups = key_group_range(GROUPS, PARALLELISM, subtask)
        backend = backends.make("op", groups, GROUPS)
        for number, fill in enumerate(rounds, 1):
            fill(backend, lambda key, groups=groups: groups[0] <= key_group(key, GROUPS) < groups[1])
            checkpoint = CheckpointId(number)
            if kind == "savepoint" and number == last:
                writer = SavepointWriter(LocalFiles(str(root / "sp")), subtask, GROUPS, checkpoint)
                frozen = backend.snapshot(checkpoint, full=True)
                keyed = writer.keyed("op", "op", schema_of(key_type), frozen)
                lists = writer.lists("op", "op", operator_state.snapshot()) if operator_state else []
            else:
                task = workers.task_writer(checkpoint, AttemptNumber(0), VertexId(0), subtask)
                keyed = backend.snapshot(checkpoint).write(task.shared)
                lists = operator_state.snapshot().write(task.exclusive) if operator_state else []
                task.close()
                backend.notify_checkpoint_complete(checkpoint)
        backend.dispose()
        snapshots.append(OperatorSnapshot(operator_id=OPERATOR, name="op", uid="uid", keyed=keyed, lists=lists))
    metadata = CheckpointMetadata(
        format_version=1,
        job_id="job",
        job_name="job",
        checkpoint_id=CheckpointId(last),
        timestamp=0,
        savepoint=kind == "savepoint",
        unaligned=False,
        operators=[
            OperatorMetadata(
                operator_id=OPERATOR,
                name="op",
                uid="uid",
                parallelism=PARALLELISM,
                max_parallelism=GROUPS,
                subtasks=snapshots,
                end_of_data=[False] * PARALLELISM,
            )
        ],
        channels=[],
        tidegate_version="test",
    )
    if kind != "savepoint":
        path = storage.write_metadata(metadata)
        storage.close()
        return path
    storage.close()
    write_savepoint_metadata(LocalFiles(str(root / "sp")), metadata)
    return str(root / "sp")
