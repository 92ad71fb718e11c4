"""Whole micro-batch jobs on the driver, on a stand-in for Spark's query that dies at any step: the output is exact."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.micro_batch.query_stand_in import KilledError, QueryStandIn, SkippedError
from tidegate.cli.main import main
from tidegate.common import Configuration, Duration, Encoder, JobStatus, Types
from tidegate.common.accumulators import IntCounter
from tidegate.common.errors import ConfigurationError, JobExecutionError
from tidegate.contracts.connectors import Boundedness, Source, SourceSplit, SplitReader
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource, FileSink, FileSource, StreamFormat
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.protocol.messages import FailureInfo
from tidegate.snapshots import read_state
from tidegate.spark.batch import worker
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.micro_batch import job as job_module
from tidegate.spark.micro_batch import location as location_module
from tidegate.spark.micro_batch import runtime as runtime_module
from tidegate.spark.micro_batch import stopping
from tidegate.spark.micro_batch.discovery import SplitSearch
from tidegate.spark.micro_batch.location import LocationError, _write
from tidegate.spark.micro_batch.stopping import StoppedQueries
from tidegate.spark.micro_batch.ticks import Control, _TickReader
from tidegate.web import documents

RECORDS = 200


class Count(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", Types.INT()))
        self.accumulated = IntCounter()
        ctx.add_accumulator("records", self.accumulated)

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.accumulated.add(1)
        yield f"{value % 10},{count}"


EXPECTED = sorted(f"{key},{n}" for key in range(10) for n in range(1, RECORDS // 10 + 1))


class Tracker:
    """Spark's StatusTracker: a job per batch, with one stage. `run_again`: jobs whose stage was."""

    def __init__(self) -> None:
        self.jobs = 0
        self.run_again: set[int] = set()

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return list(range(self.jobs))

    def getJobInfo(self, job: int) -> Any:
        return SimpleNamespace(status="SUCCEEDED", stageIds=[job])

    def getStageInfo(self, stage: int) -> Any:
        attempt = int(stage in self.run_again)
        return SimpleNamespace(name="Count", currentAttemptId=attempt, numActiveTasks=0)


class World:
    """What the job runs on. `hook` is called at each step of each batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = folder / "location"
        self.hook: Callable[[str, int], None] = lambda step, batch: None
        self.queries = 0
        self.tracker = Tracker()
        self.left_over: dict[int, list[bytes]] = {}  # batch -> the states that its runs have written
        self.spark_settings: dict[str, str] = {}
        self.master = "spark://far:7077"
        self.query: Any = None  # the latest
        self.more: dict[str, Any] = {}  # settings, for tests that need them
        self.interval = -1
        self.control = ""  # the file with what is allowed

    def start(self, session: Any, plan: Any, bundle: Any, logs: Any, attempt: int, *rest: Any) -> Any:
        location, self.control, self.interval, self.shown_name, on_batch = rest
        self.queries += 1
        self.query = QueryStandIn(
            plan, attempt, location, self.control, on_batch, lambda step, batch: self.hook(step, batch), self.left_over
        )
        return self.query

    def environment(self, **settings: Any) -> StreamExecutionEnvironment:
        config = {
            "execution.runtime-mode": "MICRO_BATCH",
            "tidegate.micro-batch.checkpoint-location": str(self.location),
            "tidegate.micro-batch.max-records": "30",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "20",
            "restart-strategy.fixed-delay.delay": "1 ms",
            **{name.replace("__", "-").replace("_", "."): str(value) for name, value in settings.items()},
        }
        return StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config)).set_parallelism(2)

    def counting(self, records: int | None = RECORDS, rate: float | None = None, **settings: Any) -> Any:
        """The client of the running job."""
        env = self.environment(**settings)
        source = DataGeneratorSource(lambda i: i, count=records, records_per_second=rate)
        numbers = env.from_source(source, job_watermarks(), "Numbers").uid("numbers")
        counted = numbers.key_by(lambda n: n % 10).process(Count(), Types.STRING()).uid("count")
        sink = FileSink.for_row_format(str(self.folder / "out"), Encoder.simple_string_encoder()).build()
        counted.sink_to(sink).uid("sink")
        return env.execute_async("counting")

    def output(self) -> list[str]:
        while True:
            with contextlib.suppress(FileNotFoundError):  # listed, and renamed or deleted before it was read
                files = [path for path in (self.folder / "out").rglob("part-*") if not path.name.startswith(".")]
                return sorted(line for path in files for line in path.read_text().split())


def job_watermarks() -> Any:
    from tidegate.common import WatermarkStrategy

    return WatermarkStrategy.no_watermarks()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    alive = SimpleNamespace(isStopped=lambda: False)

    def session(*_: Any, **__: Any) -> Any:
        context = SimpleNamespace(
            _jsc=SimpleNamespace(sc=lambda: alive),
            uiWebUrl=None,
            master=made.master,
            statusTracker=lambda: made.tracker,
            getConf=lambda: made.spark_settings,
        )
        return SimpleNamespace(sparkContext=context)

    monkeypatch.setattr(runtime_module, "obtain_session", session)
    monkeypatch.setattr(runtime_module, "distribute", lambda *args: None)
    monkeypatch.setattr(runtime_module, "code_for", lambda *args: CodeBundle.collect(()))
    monkeypatch.setattr(job_module, "start_query", made.start)
    return made


@pytest.mark.parametrize("step", ["run", "report", "commit", "committed"])
def test_what_is_printed_comes_out_of_the_program_once(
    world: World, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """When its batch has been committed, also when the batch had to be run again."""
    killed: set[int] = set()

    def hook(at: str, batch: int) -> None:
        if at == step and batch not in killed and batch % 2:
            killed.add(batch)
            raise KilledError

    world.hook = hook
    env = world.environment(tidegate_print_on__driver=True)
    source = DataGeneratorSource(lambda i: i, count=RECORDS)
    numbers = env.from_source(source, job_watermarks(), "Numbers")
    numbers.filter(lambda n: n % 2 == 0).print("even")
    numbers.filter(lambda n: n % 2 == 1).print_to_err("odd")
    env.execute("printing")
    shown = capsys.readouterr()
    assert killed
    even, odd = ([line for line in text.splitlines() if "> " in line] for text in shown)
    assert sorted(int(line.partition("> ")[2]) for line in even) == list(range(0, RECORDS, 2))
    assert sorted(int(line.partition("> ")[2]) for line in odd) == list(range(1, RECORDS, 2))
    assert {line.partition(":")[0] for line in even} == {"even"}
    assert {line.partition(":")[0] for line in odd} == {"odd"}


def test_a_bounded_job_comes_to_its_end(world: World) -> None:
    client = world.counting()
    result = client.get_job_execution_result().result(60)
    assert world.output() == EXPECTED
    assert result.get_all_accumulator_results() == {"records": RECORDS}
    view = client.view()
    assert view.mode == "MICRO_BATCH"
    assert view.checkpoints.completed == len(view.checkpoints.history) >= RECORDS // 30
    assert view.total("numRecordsIn", 0) == RECORDS
    assert not list((world.location / "tidegate" / "commits").iterdir())


@pytest.mark.parametrize("where", ["run", "report", "commit", "committed"])
def test_killed_at_each_step_the_output_is_exact(world: World, where: str) -> None:
    def hook(step: str, batch: int) -> None:
        if step == where and batch == 1 and world.queries == 1:
            raise KilledError(f"a Python worker process exited unexpectedly at {step}")

    world.hook = hook
    client = world.counting()
    client.get_job_execution_result().result(60)
    assert world.output() == EXPECTED
    assert world.queries == 2
    assert client.view().checkpoints.restored == 1


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_step_the_output_is_exact(world: World, seed: int) -> None:
    draw = random.Random(seed)

    def hook(step: str, batch: int) -> None:
        if draw.random() < 0.12:
            raise KilledError(f"a Python worker process exited unexpectedly at {step} of batch {batch}")

    world.hook = hook
    client = world.counting()
    client.get_job_execution_result().result(60)
    assert world.output() == EXPECTED
    assert world.queries == 1 + len(client.failures()) or world.queries > 1


@pytest.mark.parametrize("seed", range(4))
def test_a_driver_that_dies_goes_on_in_the_same_location(world: World, seed: int, monkeypatch: Any) -> None:
    """The driver's commit fails for good, or its query: whatever was prepared is committed by the next run, once."""
    draw = random.Random(seed)
    commit_all = job_module.commit_all

    def dying(*args: Any) -> Any:
        if draw.random() < 0.4:
            raise OSError("the driver dies")
        return commit_all(*args)

    for _ in range(100):
        monkeypatch.setattr(job_module, "commit_all", dying)
        client = world.counting(restart__strategy_type="none")
        error = client.get_job_execution_result().exception(60)
        if error is None:
            break
        assert "the driver dies" in str(error)
    else:
        raise AssertionError("it never came to its end")
    assert world.output() == EXPECTED


@pytest.mark.parametrize(("allowed", "queries"), [("4", 2), ("1", 1)])
def test_a_batch_of_which_spark_has_run_a_part_twice_does_not_count(world: World, allowed: str, queries: int) -> None:
    """Its parts may be of different records. Where Spark may not do that, nobody asks."""

    def hook(step: str, batch: int) -> None:
        if step == "report":
            world.tracker.jobs += 1
            if world.tracker.jobs == 3:
                world.tracker.run_again.add(2)

    world.hook = hook
    world.spark_settings = {"spark.stage.maxConsecutiveAttempts": allowed}
    client = world.counting()
    client.get_job_execution_result().result(60)
    assert world.output() == EXPECTED
    assert world.queries == queries
    causes = [failure.failure.summary for failure in client.view().failures]
    assert len(causes) == queries - 1
    assert all("run stage 2 ('Count') again" in cause for cause in causes)


@pytest.mark.parametrize("failing", [False, True], ids=["in its attempt", "by the next attempt"])
def test_what_spark_has_committed_is_synced_when_the_sinks_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    """After a power failure the batch would be run again otherwise, and its output be there twice."""
    synced: set[str] = set()
    fsync, commit_all, calls = os.fsync, job_module.commit_all, []

    def noted(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def looking(*args: Any) -> Any:
        latest = max((world.location / "commits").iterdir(), key=lambda path: int(path.name))
        needed = {str(latest), str(latest.parent), str(world.location / "offsets" / latest.name)}
        calls.append(needed - synced)
        if failing and len(calls) % 2:
            synced.clear()
            raise OSError("not now")
        return commit_all(*args)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(job_module, "commit_all", looking)
    world.counting().get_job_execution_result().result(60)
    assert len(calls) >= RECORDS // 30
    assert not any(calls)
    assert world.output() == EXPECTED


def test_results_of_a_batch_whose_commit_fails_are_handed_out_once(world: World, monkeypatch: Any) -> None:
    """Spark has committed it, so it is not run again."""
    commit_all, failures = job_module.commit_all, [1, 1, 0, 1, 0, 0, 0]

    def failing(*args: Any) -> Any:
        if failures and failures.pop():
            raise OSError("not now")
        return commit_all(*args)

    monkeypatch.setattr(job_module, "commit_all", failing)
    numbers = world.environment().from_collection(list(range(RECORDS)))
    assert sorted(numbers.map(lambda n: n).execute_and_collect("collecting")) == list(range(RECORDS))
    assert not failures
    assert world.queries == 3  # the last of them fails after the end of the job


def test_a_batch_that_a_query_commits_while_it_stops_is_handed_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has given the attempt up. What counts is looked at when the query is gone, and not before."""
    monkeypatch.setattr(stopping, "STOP_S", 0.05)
    looked, check, failing = SplitSearch.look, StoppedQueries.check, [True]
    reported, stopping_now = threading.Event(), threading.Event()

    def hook(step: str, batch: int) -> None:
        if (step, batch, world.queries) == ("commit", 2, 1):
            reported.set()
            stopping_now.wait(60)  # and then it goes on: it was told to stop, and is in the middle of its commit

    def fails(search: SplitSearch, now_ms: float) -> None:
        if failing and reported.is_set():
            failing.clear()
            raise OSError("the driver has a problem of its own")
        looked(search, now_ms)

    def checks(queries: StoppedQueries) -> None:
        if not failing and not stopping_now.is_set():
            stopping_now.set()
            world.query.awaitTermination(60)
        check(queries)

    world.hook = hook
    monkeypatch.setattr(SplitSearch, "look", fails)
    monkeypatch.setattr(StoppedQueries, "check", checks)
    numbers = world.environment().from_collection(list(range(RECORDS)))
    assert sorted(numbers.map(lambda n: n).execute_and_collect("collecting")) == list(range(RECORDS))
    assert stopping_now.is_set()
    assert world.queries == 2


def test_an_exception_of_a_function_ends_the_job_and_is_told(world: World) -> None:
    env = world.environment(restart__strategy_type="none")
    env.from_collection([1, 0]).map(lambda n: 1 // n).name("Divide").print()
    with pytest.raises(JobExecutionError, match=r"(?s)Divide.*ZeroDivisionError"):
        env.execute("dividing")


def test_stop_with_savepoint_and_go_on(world: World) -> None:
    client = world.counting(records=None, rate=20_000)
    savepoint = client.stop_with_savepoint(False, str(world.folder / "savepoints")).result(60)
    assert client.get_job_execution_result().result(60) is not None
    assert client.view().status is JobStatus.FINISHED
    seen = len(world.output())
    world.location = world.folder / "another"
    client = world.counting(records=None, rate=20_000, execution_state__recovery_path=savepoint)
    second = client.trigger_savepoint(str(world.folder / "savepoints")).result(60)
    client.cancel().result(60)
    assert client.view().status is JobStatus.CANCELED
    assert second != savepoint
    lines = world.output()
    assert len(lines) == len(set(lines)) >= seen


class _Queue(Source[int]):
    """Never ends; there are some records now."""

    boundedness = Boundedness.CONTINUOUS_UNBOUNDED

    def __init__(self, there: int) -> None:
        self.there = there

    def create_splits(self, parallelism: int) -> list[SourceSplit]:
        return [SourceSplit("queue")]

    def create_reader(self, split: SourceSplit, offset: Any, context: Any) -> SplitReader[int]:
        return _QueueReader(offset or 0, self.there)


class _QueueReader(SplitReader[int]):
    def __init__(self, offset: int, there: int) -> None:
        self.position, self.there = offset, there

    def poll(self, max_records: int) -> list[int]:
        start, self.position = self.position, min(self.position + max_records, self.there)
        return list(range(start, self.position))

    def offset(self) -> int:
        return self.position


def test_available_now_ends_when_nothing_is_left(world: World) -> None:
    results: list[int] = []
    for there in (50, 80):  # the second run goes on where the first has ended
        env = world.environment(tidegate_micro__batch_trigger="AVAILABLE_NOW")
        numbers = env.from_source(_Queue(there), job_watermarks(), "Queue").uid("queue")
        results += numbers.map(lambda n: n).uid("same").execute_and_collect("queue")
    assert sorted(results) == list(range(80))


class _Halting(_Queue):
    """Has an end. Every second reader finds nothing for as long as a batch waits."""

    boundedness = Boundedness.BOUNDED

    def create_reader(self, split: SourceSplit, offset: Any, context: Any) -> SplitReader[int]:
        return _HaltingReader(offset or 0, self.there, context.memos.get(split.split_id, 0))


class _HaltingReader(_QueueReader):
    def __init__(self, offset: int, there: int, number: int) -> None:
        super().__init__(offset, there)
        self.number = number

    def poll(self, max_records: int) -> Any:
        if self.number % 2:
            return []
        return super().poll(max_records) or None

    def memo(self) -> int:
        return self.number + 1


def test_available_now_reads_bounded_input_to_its_end(world: World) -> None:
    """Also when there is nothing for longer than a batch waits for its first record."""
    env = world.environment(tidegate_micro__batch_trigger="AVAILABLE_NOW", tidegate_micro__batch_max__records=10)
    numbers = env.from_source(_Halting(50), job_watermarks(), "Halting")
    assert sorted(numbers.map(lambda n: n).execute_and_collect("halting")) == list(range(50))


def test_the_interval_is_the_trigger_of_the_query(world: World) -> None:
    world.counting(tidegate_micro__batch_interval="250 ms").get_job_execution_result().result(60)
    assert world.interval == 250


@pytest.mark.parametrize("most", [20, 100])
def test_max_records_decides_how_large_batches_are(world: World, most: int) -> None:
    client = world.counting(tidegate_micro__batch_max__records=most)
    client.get_job_execution_result().result(60)
    assert RECORDS // most <= client.view().checkpoints.completed <= RECORDS // most + 2


@pytest.mark.parametrize("most", ["1 b", "1 gb"])
def test_max_bytes_decides_how_large_batches_are(world: World, most: str) -> None:
    client = world.counting(records=40, tidegate_micro__batch_max__bytes=most)
    client.get_job_execution_result().result(60)
    batches = client.view().checkpoints.completed  # of two subtasks
    assert 20 <= batches <= 22 if most == "1 b" else batches <= 4


@pytest.mark.parametrize("trigger", ["CONTINUOUS", "REAL_TIME"])
def test_triggers_without_python_are_refused(world: World, trigger: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{trigger}: Spark runs no Python operators"):
        world.counting(tidegate_micro__batch_trigger=trigger)


def test_speculative_tasks_are_refused(world: World) -> None:
    world.spark_settings = {"spark.speculation": "true"}
    with pytest.raises(ConfigurationError, match=r"spark\.speculation is on: Spark would run a task twice at once"):
        world.counting()
    world.spark_settings = {}
    world.counting().get_job_execution_result().result(60)  # the location is free again


def test_settings_of_batch_mode_are_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="savepoint-path is of BATCH mode"):
        world.counting(execution_batch_savepoint__path=str(world.folder / "savepoint"))


def test_a_location_elsewhere_is_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="is not a folder that this machine sees"):
        world.counting(tidegate_micro__batch_checkpoint__location="s3://bucket/location")


def watching(world: World, trigger: str = "PROCESSING_TIME", **settings: Any) -> Any:
    """The client of a job that reads the lines of all files that turn up in a folder."""
    env = world.environment(tidegate_micro__batch_trigger=trigger, **settings)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(world.folder / "in"))
    watched = source.monitor_continuously(Duration.of_millis(20)).build()
    lines = env.from_source(watched, job_watermarks(), "Watched").uid("watched")
    sink = FileSink.for_row_format(str(world.folder / "out"), Encoder.simple_string_encoder()).build()
    lines.map(lambda line: line, Types.STRING()).uid("same").sink_to(sink).uid("sink")
    return env.execute_async("watching")


def add_files(world: World, numbers: range) -> list[str]:
    """All lines that there are then."""
    folder = world.folder / "in"
    folder.mkdir(exist_ok=True)
    for n in numbers:
        (folder / f".{n}").write_text("".join(f"{n}-{line}\n" for line in range(20)))
        (folder / f".{n}").rename(folder / f"{n}.txt")
    return sorted(f"{n}-{line}" for n in range(numbers.stop) for line in range(20))


def test_files_that_turn_up_are_read_once_whoever_dies(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, commit_all = random.Random(1), job_module.commit_all

    def failing(*args: Any) -> Any:
        if draw.random() < 0.3:
            raise OSError("the driver dies")
        return commit_all(*args)

    monkeypatch.setattr(job_module, "commit_all", failing)

    def hook(step: str, batch: int) -> None:
        if draw.random() < 0.1:
            raise KilledError(f"a Python worker process exited unexpectedly at {step}")

    expected = add_files(world, range(3))
    world.hook = hook
    client = watching(world, restart__strategy_fixed__delay_attempts=1000)
    for more in (range(3, 6), range(6, 11)):
        expected = add_files(world, more)
        while len(world.output()) < len(expected):
            assert client.view().status is not JobStatus.FAILED
            time.sleep(0.01)
    client.stop_with_savepoint(False, str(world.folder / "savepoints")).result(60)
    assert world.output() == expected
    assert world.queries > 1


@pytest.mark.parametrize("moves", [True, False])
def test_available_now_takes_the_files_that_have_come_since(world: World, moves: bool) -> None:
    """In the same location, and in another one from a savepoint."""
    from_savepoint: dict[str, Any] = {}
    for run, more in enumerate((range(3), range(3, 7), range(7, 8))):
        expected = add_files(world, more)
        if moves:
            world.location = world.folder / f"location-{run}"
            client = watching(world, **from_savepoint)
            while len(world.output()) < len(expected):
                time.sleep(0.01)
            savepoint = client.stop_with_savepoint(False, str(world.folder / "savepoints")).result(60)
            from_savepoint = {"execution_state__recovery_path": savepoint}
        else:
            client = watching(world, "AVAILABLE_NOW")
        client.get_job_execution_result().result(60)
        assert world.output() == expected


def test_the_location_of_another_job(world: World) -> None:
    world.counting().get_job_execution_result().result(60)
    env = world.environment()
    env.from_collection([1, 2]).map(str).name("Other").print()
    with pytest.raises(
        ConfigurationError, match=r"is the checkpoint location of job 'counting'.*only there.*only here"
    ):
        env.execute("another")


def test_the_location_of_an_older_program(world: World) -> None:
    world.counting().get_job_execution_result().result(60)
    with pytest.raises(ConfigurationError, match=r"(?s)older version of this one.*buckets: 128 there, 500 here"):
        world.counting(tidegate_micro__batch_buckets=500)


def test_the_location_of_another_query_of_spark(world: World) -> None:
    (world.location / "offsets").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="another Spark query, which is not a Tidegate job"):
        world.counting()


def test_a_location_that_was_deleted_between_two_runs(world: World) -> None:
    """Is a new one, or an error, as the settings say; with the error nothing is made in its place."""
    world.counting(tidegate_micro__batch_max__records=1000).get_job_execution_result().result(60)
    again: dict[str, Any] = {"tidegate_micro__batch_checkpoint__location__must__exist": "true"}
    world.counting(**again).get_job_execution_result().result(60)
    assert len(world.output()) == RECORDS
    shutil.rmtree(world.location)
    with pytest.raises(ConfigurationError, match=r"no job in the checkpoint location .*must-exist is set: the path"):
        world.counting(**again)
    assert not world.location.exists()
    world.counting().get_job_execution_result().result(60)
    assert len(world.output()) == 2 * RECORDS


class _Fed(_Queue):
    """As `from_spark_stream` gives it."""

    fed_meanwhile = True


def test_what_is_fed_by_a_query_of_its_own_does_not_run_until_nothing_is_left(world: World) -> None:
    env = world.environment(tidegate_micro__batch_trigger="AVAILABLE_NOW")
    env.from_source(_Fed(10), job_watermarks(), "Fed").map(lambda n: n).print()
    with pytest.raises(
        ConfigurationError, match=r"Fed' \(from_spark_stream\) is fed by a query.*spark\.read .*and from_spark"
    ):
        env.execute("fed")
    assert not world.location.exists()


def test_a_location_that_has_lost_batches(world: World) -> None:
    world.counting().get_job_execution_result().result(60)
    shutil.rmtree(world.location / "commits")
    with pytest.raises(Exception, match=r"has lost batches: the job had come to batch"):
        world.counting()


@pytest.mark.parametrize("lost", ["offsets", "state"])
def test_a_location_that_has_lost_a_part(world: World, lost: str) -> None:
    """Spark would begin with batch 0 and nothing in its state."""
    world.counting().get_job_execution_result().result(60)
    shutil.rmtree(world.location / lost)
    with pytest.raises(LocationError, match=rf"has lost a part .* and {lost}.* is not there. Restore the folder"):
        world.counting()


def test_a_part_of_the_location_is_lost_under_a_running_job(world: World) -> None:
    """It ends at once, with what is to be done: no restart helps."""

    def hook(step: str, batch: int) -> None:
        if step == "run" and batch == 2:
            shutil.rmtree(world.location / "offsets")
            raise KilledError("a Python worker process exited unexpectedly")

    world.hook = hook
    with pytest.raises(JobExecutionError, match=r"has lost a part .*offsets/1 is not there"):
        world.counting().get_job_execution_result().result(60)
    assert world.queries == 1


def test_a_batch_that_is_not_the_one_that_was_allowed_is_refused(world: World) -> None:
    """Spark counts what it finds; what it finds may change under it."""

    def hook(step: str, batch: int) -> None:
        if step == "committed" and batch == 2:
            while json.loads(Path(world.control).read_text())["batch"] != 3:
                time.sleep(0.01)
            (world.location / "commits" / "0").unlink()  # the stand-in counts: it runs 2 once more

    world.hook = hook
    with pytest.raises(JobExecutionError, match=r"runs batch 2 in .* where batch 3 is the next"):
        world.counting().get_job_execution_result().result(60)
    assert world.queries == 1


def test_a_batch_that_somebody_else_has_committed_is_not_waited_for(world: World) -> None:
    """It was of a query that was thought dead. Here it has read nothing."""
    committed: list[int] = []

    def hook(step: str, batch: int) -> None:
        if step == "run" and batch == 2 and not committed:
            committed.append(batch)
            shutil.copy(world.location / "state" / "2", world.location / "state" / "3")
            (world.location / "commits" / "2").write_text("{}")
            raise SkippedError

    world.hook = hook
    client = world.counting()
    client.get_job_execution_result().result(60)
    assert world.output() == EXPECTED
    assert world.queries == 2
    assert "batch 2 is committed" in client.view().failures[0].failure.summary


def test_state_of_another_run_than_the_committed_one_ends_the_job(world: World) -> None:
    """A query that was thought dead has written its state over that of the run whose results were committed."""
    killed: list[int] = []

    def hook(step: str, batch: int) -> None:
        if step == "report" and batch == 2 and not killed:
            killed.append(batch)
            raise KilledError("a Python worker process exited unexpectedly")
        if step == "committed" and batch == 2:
            late = world.left_over[2]  # of the run that was killed
            (world.location / "state" / "3").write_bytes(late[0])

    world.hook = hook
    with pytest.raises(JobExecutionError, match=r"attempt 0 has written in batch 2, .* is of attempt 1"):
        world.counting().get_job_execution_result().result(60)
    assert world.queries == 2


def test_what_is_known_is_written_when_it_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(location_module, "_write", lambda path, *rest: written.append(path) or _write(path, *rest))
    client = world.counting(tidegate_micro__batch_max__records=10)
    client.get_job_execution_result().result(60)
    assert client.view().checkpoints.completed >= 20
    of_the_job = [path for path in written if path.endswith("job.json")]
    assert len(of_the_job) < 10
    latest = json.loads((world.location / "tidegate" / "job.json").read_text())["latest"]
    assert latest == max(int(path.name) for path in (world.location / "commits").iterdir())


def test_a_commit_that_a_power_failure_has_left_empty(world: World) -> None:
    """Spark could not go on after it."""

    def hook(step: str, batch: int) -> None:
        if (step, batch) == ("commit", 2):
            raise KilledError

    world.hook = hook
    world.counting(restart__strategy_type="none").get_job_execution_result().exception(60)
    (world.location / "commits" / "2").touch()
    with pytest.raises(LocationError, match=r"commits/2 is empty, as a power failure .*Delete the file"):
        world.counting()
    (world.location / "commits" / "2").unlink()
    world.hook = lambda step, batch: None
    world.counting().get_job_execution_result().result(60)
    assert world.output() == EXPECTED


def test_what_the_sinks_have_prepared_is_damaged(world: World) -> None:
    """The job ends with what to do, instead of trying again and again."""

    def hook(step: str, batch: int) -> None:
        if (step, batch) == ("commit", 2):
            file = world.location / "tidegate" / "commits" / "2"
            file.write_bytes(file.read_bytes()[:-1])
        if (step, batch) == ("committed", 2):
            raise KilledError

    commit_all = job_module.commit_all

    def failing(*args: Any) -> Any:
        if (world.location / "tidegate" / "commits" / "2").exists():
            raise OSError("the driver dies")
        return commit_all(*args)

    world.hook = hook
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_module, "commit_all", failing)
        error = world.counting().get_job_execution_result().exception(60)
    assert re.search(r"(?s)tidegate/commits/2 is damaged .*Or delete the file", str(error))
    assert world.queries == 1
    (world.location / "tidegate" / "commits" / "2").unlink()
    world.counting().get_job_execution_result().result(60)
    assert len(world.output()) < RECORDS


def test_a_location_that_is_deleted_under_a_running_job(world: World) -> None:
    def hook(step: str, batch: int) -> None:
        if step == "report" and batch == 2:
            shutil.rmtree(world.location / "tidegate")

    world.hook = hook
    with pytest.raises(JobExecutionError, match="was deleted while the job ran"):
        world.counting().get_job_execution_result().result(60)


def test_two_drivers_at_once(world: World) -> None:
    client = world.counting(records=None, rate=10)
    with pytest.raises(ConfigurationError, match="running"):
        world.counting(records=None, rate=10)
    client.cancel().result(60)


def test_a_finished_job_that_is_started_again_does_nothing_more(world: World) -> None:
    for _ in range(2):
        world.counting().get_job_execution_result().result(60)
    assert world.output() == EXPECTED


def test_what_follows_from_a_failure_is_told(world: World) -> None:
    def hook(step: str, batch: int) -> None:
        if step == "run" and batch == 1 and world.queries < 4:
            raise KilledError("a Python worker process exited unexpectedly")

    world.hook = hook
    client = world.counting(restart__strategy_fixed__delay_attempts=2)
    with pytest.raises(JobExecutionError):
        client.get_job_execution_result().result(60)
    verdicts = [failure.verdict for failure in client.view().failures]
    assert verdicts[:2] == ["restart after 0.001 s"] * 2
    assert verdicts[2].startswith("no restart: ")


def test_the_cause_of_a_retry_is_told_in_full_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def hook(step: str, batch: int) -> None:
        if step == "run" and batch == 1 and world.queries < 4:
            failure = FailureInfo(summary="it is wrong", traceback="Traceback of the cause", cause="the cause")
            raise worker.told(failure)

    world.hook = hook
    world.counting().get_job_execution_result().result(60)
    failed = [r.getMessage().partition(" failed: ")[2] for r in caplog.records if " failed: " in r.getMessage()]
    assert failed == [
        "it is wrong\nTraceback of the cause",
        "it is wrong (the same failure for the 2nd time)",
        "it is wrong (the same failure for the 3rd time)",
    ]


def test_rates_and_recoveries_are_shown(world: World) -> None:
    def hook(step: str, batch: int) -> None:
        if step == "run" and batch == 1 and world.queries == 1:
            raise KilledError("a Python worker process exited unexpectedly")

    world.hook = hook
    client = world.counting()
    client.get_job_execution_result().result(60)
    view = client.view()
    (failure,) = documents.exceptions(view)["failures"]
    assert failure["downtime_ms"] > 0
    (source, *_), described = view.vertices, documents.vertices(view)["vertices"]
    assert described[source.vertex]["metrics"]["numRecordsIn"] == RECORDS
    assert sum(v["metrics"].get("numRecordsSend", 0) for v in described) == RECORDS
    assert {"numRecordsInPerSecond", "busyTimeMsPerSecond"} <= described[source.vertex]["metrics"].keys()
    assert documents.summary(view, 0)["records_in_per_second"] is not None


def test_batches_are_shown_in_the_place_of_checkpoints(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.folder / "state"))
    client = world.counting(records=None, rate=5_000)
    savepoint = client.trigger_savepoint(str(world.folder / "savepoints")).result(60)
    job = str(client.get_job_id())
    for command, told in (("list", "RUNNING"), ("show", "batches: "), ("checkpoints", "savepoint")):
        assert main([command, *([job] if command != "list" else [])]) == 0  # by the job's REST port
        assert told in capsys.readouterr().out
    assert main(["stop", job, "-p", str(world.folder / "savepoints")]) == 0
    assert client.get_job_execution_result().result(60) is not None
    assert savepoint not in capsys.readouterr().out
    assert main(["show", job]) == 0  # by the history
    assert "FINISHED, MICRO_BATCH" in capsys.readouterr().out


def test_a_batch_of_a_dead_driver_has_its_savepoint_and_not_that_of_the_next_driver(world: World) -> None:
    """Spark runs it again with the order that is in its log. What was asked for since is served by the batch after."""
    dead = str(world.folder / "savepoints" / "of-a-dead-driver")
    client = world.counting(records=None, rate=5_000)
    while not (world.folder / "out").exists() or not world.output():
        time.sleep(0.01)
    client.cancel().result(60)
    batch = len(list((world.location / "commits").iterdir()))
    order = {"savepoint": dead, "permissions": "owner", "drain": False, "batch": batch, "time_ms": 0}
    (world.location / "offsets" / str(batch)).write_text(json.dumps({"batch": batch, "order": json.dumps(order)}))
    asked, failed = threading.Event(), threading.Event()

    def hook(step: str, number: int) -> None:
        if step == "run" and number == batch and not failed.is_set():
            asked.wait(60)  # when it is run again, a savepoint is waited for
            failed.set()
            raise KilledError("a Python worker process exited unexpectedly")

    world.hook = hook
    client = world.counting(records=None, rate=5_000)
    requested = client.trigger_savepoint(str(world.folder / "savepoints"))
    asked.set()
    savepoint = requested.result(60)
    assert failed.is_set()
    assert read_state(savepoint, "count", "count").num_rows == 10
    client.cancel().result(60)
    assert not (world.folder / "savepoints" / "of-a-dead-driver" / "_metadata").exists()


def test_a_batch_is_ordered_once_also_of_a_spark_that_says_nothing_of_its_offsets(tmp_path: Path) -> None:
    """As Spark 4.1: it asks without arguments, and takes every offset that is another one for a new batch."""
    control = Control(str(tmp_path / "control"))
    control.allow(3)
    reader = _TickReader(str(tmp_path / "control"), [1])
    logged = {"batch": 3, "order": "of the driver before"}
    assert reader.partitions({"batch": 2}, logged)  # runs again what is in its log
    assert reader.latestOffset() == logged
    control.allow(4)
    found = reader.latestOffset()
    assert found["batch"] == 4
    assert reader.partitions(logged, found)
    assert reader.latestOffset() == found
