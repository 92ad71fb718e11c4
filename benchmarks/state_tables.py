"""State as tables: how fast a checkpoint or savepoint of 5,000,000 keys is read, and one is written from a DataFrame.

    python -m benchmarks state_tables [--quick]

int keys in random order to ints, declared as LONG, max parallelism 128, one subtask. "one core": Arrow batches made in
this process, by its processor time; "Spark": a sum over the DataFrame on local[2], by the clock, planning included, in
a session whose Python workers have been started.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report import Figure
from tidegate.common import Configuration, Types
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskIndex, VertexId
from tidegate.common.type_schema import schema_of
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.snapshots import SavepointBuilder
from tidegate.snapshots.state_table import open_state
from tidegate.state.factory import KeyedBackends
from tidegate.state.rocksdb.settings import RocksDBSettings
from tidegate.state.savepoint.format import write_savepoint_metadata
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.files import LocalFiles
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.handles import CheckpointMetadata, OperatorMetadata, OperatorSnapshot

GROUPS = 128
STATE = ValueStateDescriptor("count", Types.LONG())


def run(quick: bool) -> list[Figure]:
    from tidegate.spark.session import obtain_session
    from tidegate.spark.state_tables import register

    keys = 200_000 if quick else 5_000_000
    root = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    spark = obtain_session(Configuration.from_dict({"spark.master": "local[2]"}), None, 2)
    register(spark)
    figures = []
    try:
        for kind in ("hashmap", "rocksdb", "savepoint"):
            path = _snapshot(root / kind, kind, keys)
            figures += [_one_core(path, kind, keys), _spark(spark, path, kind, keys)]
            shutil.rmtree(root / kind)
        figures.append(_write(spark, root / "written", keys))
    finally:
        shutil.rmtree(root)
    return figures


def _one_core(path: str, kind: str, keys: int) -> Figure:
    started = time.process_time()
    table = open_state(path, "count", "count")
    found = sum(batch.num_rows for split in table.splits for batch in table.batches(split))
    seconds = time.process_time() - started
    _check(found, keys)
    return Figure(f"read {keys / 1e6:g} M keys, {kind}, one core", _rate(keys, seconds))


def _spark(spark: Any, path: str, kind: str, keys: int) -> Figure:
    reader = spark.read.format("tidegate-state").options(operator="count", state="count", numPartitions=4)
    reader.load(path).limit(1).collect()
    started = time.perf_counter()
    (row,) = reader.load(path).selectExpr("count(key) AS n", "sum(value) AS total").collect()
    seconds = time.perf_counter() - started
    _check(row["n"], keys)
    _check(row["total"], keys * (keys - 1) // 2)
    return Figure(f"read {keys / 1e6:g} M keys, {kind}, Spark", _rate(keys, seconds))


def _write(spark: Any, path: Path, keys: int) -> Figure:
    frame = spark.range(keys).selectExpr("id", "id AS count")
    started = time.perf_counter()
    builder = SavepointBuilder.new_savepoint(GROUPS).with_keyed_state("count", STATE, frame, key="id", value="count")
    written = builder.write(str(path))
    seconds = time.perf_counter() - started
    table = open_state(written, "count", "count")
    _check(sum(batch.num_rows for split in table.splits for batch in table.batches(split)), keys)
    return Figure(f"savepoint of {keys / 1e6:g} M keys from a DataFrame, Spark", _rate(keys, seconds))


def _rate(keys: int, seconds: float) -> str:
    return f"{keys / seconds / 1e6:.2f} M keys/s ({seconds:.1f} s)"


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found} instead of {expected}")


def _snapshot(root: Path, kind: str, keys: int) -> str:
    backends = KeyedBackends("rocksdb" if kind == "rocksdb" else "hashmap", RocksDBSettings(), 10, lambda: 0.0)
    backend = backends.make("count", (0, GROUPS), GROUPS)
    state = backend.get_state(STATE)
    numbers = list(range(keys))
    random.Random(1).shuffle(numbers)
    for i in numbers:
        backend.current_key = i
        state.update(i)
    checkpoint = CheckpointId(1)
    storage = FileSystemStorage(str(root), "bench")
    if kind == "savepoint":
        writer = SavepointWriter(LocalFiles(str(root)), 0, GROUPS, checkpoint)
        keyed = writer.keyed("count", "count", schema_of(Types.LONG()), backend.snapshot(checkpoint, full=True))
    else:
        storage.open(0.0)
        task = storage.worker_storage().task_writer(checkpoint, AttemptNumber(0), VertexId(0), SubtaskIndex(0))
        keyed = backend.snapshot(checkpoint).write(task.shared)
        task.close()
    backend.dispose()
    keyed = msgspec.structs.replace(keyed, key=schema_of(Types.LONG()))  # as a job with a declared key type does
    operator_id = OperatorId("0" * 32)
    snapshot = OperatorSnapshot(operator_id=operator_id, name="count", uid="count", keyed=keyed)
    operator = OperatorMetadata(
        operator_id=operator_id,
        name="count",
        uid="count",
        parallelism=1,
        max_parallelism=GROUPS,
        subtasks=[snapshot],
        end_of_data=[False],
    )
    metadata = CheckpointMetadata(
        format_version=1,
        job_id="bench",
        job_name="bench",
        checkpoint_id=checkpoint,
        timestamp=0,
        savepoint=kind == "savepoint",
        unaligned=False,
        operators=[operator],
        channels=[],
        tidegate_version="",
    )
    if kind == "savepoint":
        write_savepoint_metadata(LocalFiles(str(root)), metadata)
        return str(root)
    return storage.write_metadata(metadata)


if __name__ == "__main__":
    from benchmarks.report import print_table

    print_table(run(quick=True))
