"""Landed micro-batches without Spark: lanes read them exactly, from any offset; what nobody needs is deleted."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.common.errors import TidegateError
from tidegate.datastream.connectors.base import SourceContext
from tidegate.spark.dataframes.landed_rows import LandedRows
from tidegate.spark.dataframes.landing import LandedFile
from tidegate.spark.dataframes.landing_query import LandingQuery, QuerySettings
from tidegate.spark.dataframes.staged_batches import BatchGoneError, LaneProgress, QueryFailure, StagedBatches
from tidegate.spark.dataframes.staged_reader import BatchWatch, LaneReader, LaneSplit
from tidegate.storage.location import StorageLocation

SCHEMA = pa.schema([("n", pa.int64())])
LANES = 2


class Clock:
    def now_ms(self) -> float:
        return time.monotonic() * 1000


class Folder:
    """Batches of two partitions; partition 1 is empty in every other batch."""

    def __init__(self, path: Path) -> None:
        self.location = StorageLocation.parse(str(path))
        self.staged = StagedBatches(self.location)
        self.path = path

    def land(self, batch: int, rows: int = 5) -> None:
        files = []
        for partition in range(1 + batch % 2):
            name = f"{self.staged.data_prefix(batch)}part-{partition}.parquet"
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            numbers = [batch * 100 + partition * 10 + i for i in range(rows)]
            pq.write_table(pa.table({"n": numbers}, SCHEMA), self.path / name, row_group_size=2)
            files.append(LandedFile(partition, name, rows))
        (self.path / self.staged.data_prefix(batch) / "part-0-of-a-task-that-was-run-twice.parquet").write_bytes(b"?")
        self.staged.write_manifest(batch, tuple(files))

    def readers(self, offsets: list[Any], attempt: int = 0) -> list[LaneReader]:
        watch = BatchWatch(StagedBatches(self.location))
        context = SourceContext("source", 0, 1, Clock())
        context.runtime_context = SimpleNamespace(get_attempt_number=lambda: attempt)
        rows = LandedRows(self.location, SCHEMA)
        return [
            LaneReader(LaneSplit(f"lane-{i}", i, LANES, "", "id"), offset, watch, rows, context)
            for i, offset in enumerate(offsets)
        ]


def read(reader: LaneReader, until: int, max_records: int = 3) -> list[tuple[int, Any]]:
    """Each number with the offset behind it, up to the end of the batches below `until`."""
    found: list[tuple[int, Any]] = []
    end = time.monotonic() + 20
    while reader.offset()[0] < until and time.monotonic() < end:
        rows = reader.poll(max_records)
        found += [(row.n, None) for row in rows]
        if rows:
            found[-1] = (rows[-1].n, reader.offset())
        else:
            time.sleep(0.005)
    assert reader.offset()[0] == until
    return found


def numbers(found: list[tuple[int, Any]]) -> list[int]:
    return [n for n, _ in found]


def test_a_lane_reads_its_files_in_order_and_goes_on_from_every_offset(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for batch in range(4):
        folder.land(batch)
    lanes = folder.readers([None, None])
    everything = [read(lane, 4) for lane in lanes]
    assert numbers(everything[0]) == [batch * 100 + i for batch in range(4) for i in range(5)]
    assert numbers(everything[1]) == [batch * 100 + 10 + i for batch in (1, 3) for i in range(5)]
    folder.land(4)  # what comes later is found
    assert numbers(read(lanes[0], 5)) == [400 + i for i in range(5)]
    for lane in lanes:
        lane.close()
    for position, (_, offset) in enumerate(everything[0]):
        if offset is not None:
            (lane,) = folder.readers([offset])
            rest = numbers(everything[0])[position + 1 :] + [400 + i for i in range(5)]
            assert numbers(read(lane, 5, 1)) == rest
            lane.close()


def test_a_batch_is_deleted_when_every_checkpoint_and_spark_are_past_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for batch in range(4):
        folder.land(batch)
    query: Any = LandingQuery(None, folder.staged, SCHEMA, QuerySettings(None, "append", None), LANES)  # type: ignore[arg-type]
    lanes = folder.readers([None, None])
    for lane in lanes:
        read(lane, 4)
    lanes[0].notify_checkpoint_complete(1, (3, 0, 0))
    _until_reported(folder, [LaneProgress(4, 3), LaneProgress(4, 0)])
    query._land(None, 3)  # landed before: not run again; and Spark has committed 2
    query._look(0, clean=True)
    assert folder.staged.landed() == [0, 1, 2, 3]  # the checkpoint of lane 1 is still at the beginning
    lanes[1].notify_checkpoint_complete(1, (2, 0, 0))
    _until_reported(folder, [LaneProgress(4, 3), LaneProgress(4, 2)])
    query._committed = 0
    query._look(0, clean=True)
    assert folder.staged.landed() == [1, 2, 3]  # Spark might run batch 1 again
    query._land(None, 3)
    query._look(0, clean=True)
    assert folder.staged.landed() == [2, 3]
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["2", "3"]
    for lane in lanes:
        lane.close()
    (old,) = folder.readers([(1, 0, 2)])  # a snapshot from before
    with pytest.raises(BatchGoneError, match=r"batch 1 .* was deleted"):
        read(old, 4)
    old.close()


def test_a_failed_query_fails_the_attempt_it_failed_in_and_no_other(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.land(0)
    folder.staged.write_failure(QueryFailure(1, "the broker is gone"))
    for attempt in (0, 2):
        (lane,) = folder.readers([None], attempt)
        read(lane, 1)
        assert lane.poll(1) == []
        lane.close()
    (lane,) = folder.readers([None], attempt=1)
    rows: list[Any] = []

    def read_on() -> None:
        while True:
            rows.extend(lane.poll(3))

    with pytest.raises(TidegateError, match="the Spark query that feeds this source failed: the broker is gone"):
        read_on()
    assert len(rows) == 5  # what has landed is read first
    lane.close()


def test_a_landed_file_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.land(0)
    (tmp_path / "data/0/part-0.parquet").unlink()
    (lane,) = folder.readers([None])
    with pytest.raises(TidegateError, match=r"part-0.parquet is gone: it holds 5 landed rows"):
        read(lane, 1)
    lane.close()


def _until_reported(folder: Folder, expected: list[LaneProgress]) -> None:
    end = time.monotonic() + 20
    while folder.staged.read_progress(LANES) != expected and time.monotonic() < end:
        time.sleep(0.01)
    assert folder.staged.read_progress(LANES) == expected
