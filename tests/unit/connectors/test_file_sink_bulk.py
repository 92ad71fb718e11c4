"""Bulk formats and compaction of the file sink, with crashes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.file_sink_kit import Clock, Subtask, hidden, lines, visible
from tests.unit.connectors.file_source_kit import read_all, source_of
from tests.unit.taskmanager.small_jobs import Ticks, environment
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import BulkWriter, BulkWriterFactory, Encoder
from tidegate.connectors.files.part_files import OutputFileError
from tidegate.connectors.files.writer import EncoderError
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream.connectors.base import StreamTransformer, SupportsPreprocessing
from tidegate.datastream.connectors.file_system import (
    BucketAssigner,
    FileCompactor,
    FileCompactStrategy,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
    StreamingFileSink,
)
from tidegate.datastream.formats.avro import AvroBulkWriters, AvroFormat, AvroSchema
from tidegate.datastream.formats.csv import CsvBulkWriters, CsvSchema
from tidegate.datastream.formats.orc import OrcBulkWriters
from tidegate.datastream.formats.parquet import ParquetBulkWriters
from tidegate.testing.in_process_job import InProcessJob

ROW = Types.ROW_NAMED(["n"], [Types.LONG()])
CSV = CsvSchema.builder().add_number_column("n").build()
AVRO = AvroSchema.parse_string('{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}')
BASE = BucketAssigner.base_path_bucket_assigner()


def bulk_sink(path: Path, factory: BulkWriterFactory, policy: RollingPolicy | None = None) -> FileSink:
    builder = FileSink.for_bulk_format(str(path), factory).with_bucket_assigner(BASE)
    if policy is not None:
        builder.with_rolling_policy(policy)
    return builder.with_output_file_config(OutputFileConfig("part", ".bulk")).build()


def numbers(path: Path, kind: str) -> list[int]:
    names = [name for name in sorted(path.rglob("*.bulk")) if not name.name.startswith(".")]
    if kind == "parquet":
        return sorted(n for name in names for n in pq.read_table(name)["n"].to_pylist())
    if kind == "orc":
        return sorted(n for name in names for n in orc.read_table(name)["n"].to_pylist())
    if kind == "avro":
        return sorted(r["n"] for r in read_all(source_of(AvroFormat(AVRO), path)))
    return sorted(int(line) for name in names for line in name.read_text().split())


FACTORIES: dict[str, tuple[BulkWriterFactory, Any]] = {
    "parquet": (ParquetBulkWriters.for_row_type(ROW), lambda n: (n,)),
    "orc": (OrcBulkWriters.for_row_type(ROW), lambda n: (n,)),
    "avro": (AvroBulkWriters.for_generic_record(AVRO), lambda n: {"n": n}),
    "csv": (CsvBulkWriters.for_schema(CSV), lambda n: (n,)),
}


@pytest.mark.parametrize("kind", list(FACTORIES))
def test_every_checkpoint_finishes_a_file(tmp_path: Path, kind: str) -> None:
    factory, record = FACTORIES[kind]
    task = Subtask(bulk_sink(tmp_path, factory)).write(record(1), record(2))
    task.checkpoint()
    assert not list(tmp_path.glob("*.bulk"))
    task.complete()
    assert numbers(tmp_path, kind) == [1, 2]
    task.write(record(3)).checkpoint()
    task.complete()
    task.checkpoint()  # nothing new: no empty file
    task.finish()
    assert numbers(tmp_path, kind) == [1, 2, 3]
    assert len(list(tmp_path.glob("*.bulk"))) == 2
    assert not list(tmp_path.glob(".inprogress-*"))


@pytest.mark.parametrize("kind", list(FACTORIES))
def test_a_crash_loses_and_doubles_nothing(tmp_path: Path, kind: str) -> None:
    factory, record = FACTORIES[kind]
    sink = bulk_sink(tmp_path, factory)
    first = Subtask(sink).write(record(1))
    one = first.checkpoint()
    first.complete()
    first.write(record(2))
    first.checkpoint()  # never completes
    first.write(record(3))
    second = Subtask(sink, one, attempt=1)
    second.complete()
    second.write(record(2), record(3))
    two = second.checkpoint()  # completes, but the notification never comes
    third = Subtask(sink, two, attempt=2)
    third.complete()
    third.finish()
    assert numbers(tmp_path, kind) == [1, 2, 3]
    assert not list(tmp_path.glob(".inprogress-*"))


def test_a_policy_makes_more_files(tmp_path: Path) -> None:
    policy = RollingPolicy.default_rolling_policy(part_size=1, rollover_interval=10**9, inactivity_interval=10**9)
    factory, record = FACTORIES["csv"]
    task = Subtask(bulk_sink(tmp_path, factory, policy))
    task.write(*map(record, range(2500)))
    task.finish()
    assert numbers(tmp_path, "csv") == list(range(2500))
    assert len(list(tmp_path.glob("*.bulk"))) == 3  # its writer hands on a thousand lines at a time


class _Broken(BulkWriterFactory, BulkWriter):
    def create(self, stream: Any) -> BulkWriter:
        return self

    def add_element(self, element: Any) -> None:
        if element == "bad":
            raise ValueError("no")

    def flush(self) -> None: ...

    def finish(self) -> None:
        raise ValueError("cannot end")


def test_a_writer_that_fails(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"record 'bad'.*ValueError: no"):
        Subtask(bulk_sink(tmp_path, _Broken())).write("good", "bad")
    task = Subtask(bulk_sink(tmp_path, _Broken())).write("good")
    with pytest.raises(EncoderError, match=r"cannot finish part-.*cannot end"):
        task.checkpoint()
    task.writer.close()
    assert visible(tmp_path) == {}
    with pytest.raises(EncoderError, match="column 'n'"):
        Subtask(bulk_sink(tmp_path, FACTORIES["parquet"][0])).write((2**70,)).checkpoint()
    with pytest.raises(TypeError, match="BulkWriterFactory"):
        StreamingFileSink.for_bulk_format(str(tmp_path), Encoder.simple_string_encoder())  # type: ignore[arg-type]


def test_a_bulk_sink_in_a_job_with_a_crash(tmp_path: Path) -> None:
    env = environment({"execution.checkpointing.interval": "100 ms", "restart-strategy.type": "fixed-delay"})
    env.from_source(Ticks(300), WatermarkStrategy.no_watermarks(), "ticks").map(_FailAt(150)).sink_to(
        bulk_sink(tmp_path, FACTORIES["parquet"][0])
    )
    with InProcessJob(env) as job:
        job.run_to_end()
        assert len(job.master.failures) == 1
    assert numbers(tmp_path, "parquet") == list(range(300))


class _FailAt:
    failed = False

    def __init__(self, at: int) -> None:
        self.at = at
        _FailAt.failed = False

    def __call__(self, value: int) -> Any:
        if value == self.at and not _FailAt.failed:
            _FailAt.failed = True
            raise RuntimeError("once")
        return (value,)


# ---------------------------------------------------------------- compaction


def compacting(
    path: Path,
    checkpoints: int | None = None,
    size: int | None = None,
    compactor: FileCompactor | None = None,
    policy: RollingPolicy | None = None,
) -> FileSink:
    strategy = FileCompactStrategy.builder()
    if checkpoints is not None:
        strategy.enable_compaction_on_checkpoint(checkpoints)
    if size is not None:
        strategy.set_size_threshold(size)
    return (
        FileSink.for_row_format(str(path), Encoder.simple_string_encoder())
        .with_bucket_assigner(BASE)
        .with_rolling_policy(policy or RollingPolicy.on_checkpoint_rolling_policy())
        .enable_compact(strategy.set_num_compact_threads(2).build(), compactor or FileCompactor.concat_file_compactor())
        .build()
    )


def test_files_of_several_checkpoints_become_one(tmp_path: Path) -> None:
    task = Subtask(compacting(tmp_path, checkpoints=3))
    for n in range(7):
        task.write(n).checkpoint()
        task.complete()
        assert len(visible(tmp_path)) == (n + 1) // 3
    assert sorted(visible(tmp_path).values()) == ["0\n1\n2\n", "3\n4\n5\n"]
    task.finish()
    assert sorted(visible(tmp_path).values()) == ["0\n1\n2\n", "3\n4\n5\n", "6\n"]
    assert hidden(tmp_path) == []


def test_files_are_merged_at_a_size(tmp_path: Path) -> None:
    task = Subtask(compacting(tmp_path, size=6, compactor=FileCompactor.concat_file_compactor(b"--\n")))
    for n in range(4):
        task.write(n).checkpoint()
        task.complete()
    assert sorted(visible(tmp_path).values()) == ["0\n--\n1\n--\n2\n"]
    task.finish()
    assert len(visible(tmp_path)) == 2


def test_identical_files_only_wait(tmp_path: Path) -> None:
    task = Subtask(compacting(tmp_path, checkpoints=2, compactor=FileCompactor.identical_file_compactor()))
    task.write(1).checkpoint()
    task.complete()
    assert visible(tmp_path) == {}
    task.write(2).checkpoint()
    task.complete()
    assert sorted(visible(tmp_path).values()) == ["1\n", "2\n"]


@pytest.mark.parametrize("seed", range(40))
def test_compaction_with_crashes_at_random_points(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    policy = None if seed % 2 else RollingPolicy.default_rolling_policy(4, 10**9, 10**9)  # some stay open
    sink = compacting(tmp_path, checkpoints=chance.randint(1, 4), size=chance.choice([None, 9]), policy=policy)
    saved: bytes | None = None
    written = saved_at = attempt = 0
    task = Subtask(sink, clock=Clock())
    for _ in range(60):
        match chance.choice(["write", "write", "checkpoint", "complete", "half", "crash"]):
            case "write":
                task.write(written)
                written += 1
            case "checkpoint":
                saved, saved_at = task.checkpoint(), written
            case "complete":
                saved, saved_at = task.checkpoint(), written
                task.complete()
            case "half":  # committed, but the crash comes before anybody knows
                saved, saved_at = task.checkpoint(), written
                task.complete()
                attempt += 1
                task, written = Subtask(sink, saved, attempt), saved_at
                task.complete()
            case "crash":
                if chance.random() < 0.5:
                    task.writer.close()
                attempt += 1
                task, written = Subtask(sink, saved, attempt), saved_at
                task.complete()
    task.finish()
    assert sorted(map(int, lines(tmp_path))) == list(range(written))
    assert hidden(tmp_path) == []


def test_a_file_that_waits_and_vanishes_is_reported(tmp_path: Path) -> None:
    task = Subtask(compacting(tmp_path, checkpoints=2)).write(1)
    task.checkpoint()
    (waiting,) = [tmp_path / name for name in hidden(tmp_path)]
    task.write(2).checkpoint()
    waiting.unlink()
    with pytest.raises(OutputFileError, match="neither it nor its data"):
        task.complete()


def test_a_state_of_a_sink_without_compaction_and_back(tmp_path: Path) -> None:
    plain = (
        FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder())
        .with_bucket_assigner(BASE)
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    one = Subtask(compacting(tmp_path, checkpoints=9)).write(1).checkpoint()
    task = Subtask(plain, one, attempt=1).write(2)
    task.checkpoint()
    task.complete()
    assert sorted(visible(tmp_path).values()) == ["1\n", "2\n"]


def test_bad_arguments_of_compaction(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="say when"):
        FileCompactStrategy.builder().build()
    with pytest.raises(ConfigurationError, match="set_size_threshold"):
        FileCompactStrategy.builder().set_size_threshold(0)
    with pytest.raises(ConfigurationError, match="bytes"):
        FileCompactor.concat_file_compactor("\n")  # type: ignore[arg-type]
    strategy = FileCompactStrategy.builder().set_size_threshold(1).build()
    concat = FileCompactor.concat_file_compactor()
    parquet = FileSink.for_bulk_format(str(tmp_path), FACTORIES["parquet"][0])
    with pytest.raises(ConfigurationError, match="cannot be put one behind the other"):
        parquet.enable_compact(strategy, concat)
    parquet.enable_compact(strategy, FileCompactor.identical_file_compactor()).disable_compact()
    FileSink.for_bulk_format(str(tmp_path), FACTORIES["csv"][0]).enable_compact(strategy, concat)
    with pytest.raises(TypeError, match="FileCompactStrategy"):
        parquet.enable_compact(None, concat)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="FileCompactor"):
        parquet.enable_compact(strategy, None)  # type: ignore[arg-type]


# ---------------------------------------------------------------- preprocessing


class _Doubled(CollectSink, SupportsPreprocessing, StreamTransformer):
    def get_transformer(self) -> StreamTransformer:
        return self

    def apply(self, ds: Any) -> Any:
        return ds.map(lambda v: 2 * v)


def test_a_sink_may_transform_the_stream_first(tmp_path: Path) -> None:
    env = environment()
    env.from_collection([1, 2]).sink_to(_Doubled())
    with InProcessJob(env) as job:
        job.run_to_end()
    assert job.results == [2, 4]
    assert bulk_sink(tmp_path, FACTORIES["csv"][0]).get_transformer() is None
