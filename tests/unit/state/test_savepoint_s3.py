"""A savepoint on an S3-compatible server that runs on this machine."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from tests.unit.state.backends import Backends
from tidegate.common import Types
from tidegate.common.errors import SnapshotError
from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.common.type_schema import schema_of
from tidegate.datastream.state import ListStateDescriptor, ValueStateDescriptor
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.state.savepoint.format import new_savepoint, write_savepoint_metadata
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.handles import CheckpointMetadata, OperatorMetadata, OperatorRestore, OperatorSnapshot
from tidegate.storage.metadata import FORMAT_VERSION, read_metadata
from tidegate.storage.worker_storage import file_source

KEYS = range(300)
OPERATOR = OperatorId("a" * 32)


def test_a_savepoint_goes_to_s3_and_comes_back_into_either_backend_and_other_key_groups(
    s3_server: tuple[str, Any], tmp_path: Any
) -> None:
    endpoint, client = s3_server
    job = FileSystemStorage(f"s3://bucket/checkpoints?endpoint_override={endpoint}", "job")
    workers = pickle.loads(pickle.dumps(job.worker_storage()))
    target = new_savepoint(workers.savepoint_files, "s3://bucket/savepoints", "job")
    assert "endpoint" not in target  # the job's own storage knows it

    rocksdb = Backends("rocksdb", str(tmp_path))
    snapshots = []
    for subtask, groups in enumerate([(0, 64), (64, 128)]):
        backend = rocksdb.make(groups)
        value = backend.get_state(ValueStateDescriptor("v", Types.LONG()))
        for key in KEYS:
            if backend._owns(key):
                backend.current_key = key
                value.update(key * 2)
        lists = OperatorStateBackend("op")
        lists.get_list_state(ListStateDescriptor("l")).update([subtask, "x" * 1000])
        files = workers.savepoint_files(target)
        writer = SavepointWriter(files, subtask, 128, CheckpointId(7))
        keyed = writer.keyed("op", "op-aaaaaaaa", schema_of(Types.LONG()), backend.snapshot(CheckpointId(7), full=True))
        written = writer.lists("op", "op-aaaaaaaa", lists.snapshot())
        snapshots.append(OperatorSnapshot(operator_id=OPERATOR, name="op", keyed=keyed, lists=written))
    operator = OperatorMetadata(
        operator_id=OPERATOR,
        name="op",
        uid="op",
        parallelism=2,
        max_parallelism=128,
        subtasks=snapshots,
        end_of_data=[False, False],
    )
    metadata = CheckpointMetadata(
        format_version=FORMAT_VERSION,
        job_id="0" * 32,
        job_name="job",
        checkpoint_id=CheckpointId(7),
        timestamp=0,
        savepoint=True,
        unaligned=False,
        operators=[operator],
        channels=[],
        tidegate_version="0",
    )
    write_savepoint_metadata(workers.savepoint_files(target), metadata)

    location = f"{target}?endpoint_override={endpoint}"
    loaded = read_metadata(location)
    (found,) = loaded.metadata.operators
    assert msgspec.structs.replace(loaded.metadata, self_contained=False, companions={}) == metadata
    for kind in ("heap", "rocksdb"):
        restored: dict[int, int] = {}
        for groups in [(0, 43), (43, 86), (86, 128)]:
            overlap = [s.keyed for s in found.subtasks if s.keyed is not None and s.keyed.key_group_start < groups[1]]
            source = file_source(str(loaded.root))
            backend = rocksdb.restored([k for k in overlap if groups[0] < k.key_group_end], source, groups, kind=kind)
            state = backend.get_state(ValueStateDescriptor("v", Types.LONG()))
            for key in list(backend.keys("v")):
                assert backend._owns(key)
                backend.current_key = key
                restored[key] = state.value()
        assert restored == {key: key * 2 for key in KEYS}
    items = {"l": [(s.lists[0].handle, 0, 2) for s in found.subtasks]}
    lists = OperatorStateBackend("op")
    lists.restore(OperatorRestore(operator_id=OPERATOR, split_items=items), file_source(str(loaded.root)))
    assert list(lists.get_list_state(ListStateDescriptor("l")).get()) == [0, "x" * 1000, 1, "x" * 1000]
    rocksdb.dispose()

    folder = target.removeprefix("s3://bucket/")
    table = next(
        o["Key"] for o in client.list_objects_v2(Bucket="bucket", Prefix=folder)["Contents"] if "keyed" in o["Key"]
    )
    damaged = bytearray(client.get_object(Bucket="bucket", Key=table)["Body"].read())
    damaged[len(damaged) // 2] ^= 1
    client.put_object(Bucket="bucket", Key=table, Body=bytes(damaged))
    keyed_snapshots = [s.keyed for s in found.subtasks if s.keyed is not None]
    with pytest.raises(SnapshotError, match="corrupt"):
        Backends("heap", str(tmp_path)).restored(keyed_snapshots, file_source(str(loaded.root)))
