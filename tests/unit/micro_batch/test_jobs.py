"""Whole micro-batch jobs on the driver, on a stand-in for Spark's query that dies at any step: the output is exact."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.micro_batch.query_stand_in import KilledError, QueryStandIn
from tidegate.common import Configuration, Duration, Encoder, JobStatus, Types
from tidegate.common.accumulators import IntCounter
from tidegate.common.errors import ConfigurationError, JobExecutionError
from tidegate.contracts.connectors import Boundedness, Source, SourceSplit, SplitReader
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource, FileSink, FileSource, StreamFormat
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.micro_batch import job as job_module
from tidegate.spark.micro_batch import runtime as runtime_module

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


class World:
    """What the job runs on. `hook` is called at each step of each batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = folder / "location"
        self.hook: Callable[[str, int], None] = lambda step, batch: None
        self.queries = 0
        self.interval = -1

    def start(self, session: Any, plan: Any, bundle: Any, logs: Any, attempt: int, *rest: Any) -> Any:
        location, control, self.interval, self.shown_name, on_batch = rest
        self.queries += 1
        return QueryStandIn(plan, attempt, location, control, on_batch, lambda step, batch: self.hook(step, batch))

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
        files = [path for path in (self.folder / "out").rglob("part-*") if not path.name.startswith(".")]
        return sorted(line for path in files for line in path.read_text().split())


def job_watermarks() -> Any:
    from tidegate.common import WatermarkStrategy

    return WatermarkStrategy.no_watermarks()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    alive = SimpleNamespace(isStopped=lambda: False)
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: alive), uiWebUrl=None))
    monkeypatch.setattr(runtime_module, "obtain_session", lambda *args, **kwargs: session)
    monkeypatch.setattr(runtime_module, "distribute", lambda *args: None)
    monkeypatch.setattr(runtime_module, "code_for", lambda *args: CodeBundle.collect(()))
    monkeypatch.setattr(job_module, "start_query", made.start)
    return made


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


def test_the_interval_is_the_trigger_of_the_query(world: World) -> None:
    world.counting(tidegate_micro__batch_interval="250 ms").get_job_execution_result().result(60)
    assert world.interval == 250


@pytest.mark.parametrize("most", [20, 100])
def test_max_records_decides_how_large_batches_are(world: World, most: int) -> None:
    client = world.counting(tidegate_micro__batch_max__records=most)
    client.get_job_execution_result().result(60)
    assert RECORDS // most <= client.view().checkpoints.completed <= RECORDS // most + 2


@pytest.mark.parametrize("trigger", ["CONTINUOUS", "REAL_TIME"])
def test_triggers_without_python_are_refused(world: World, trigger: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{trigger}: Spark runs no Python operators"):
        world.counting(tidegate_micro__batch_trigger=trigger)


def test_settings_of_batch_mode_are_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="savepoint-path is of BATCH mode"):
        world.counting(execution_batch_savepoint__path=str(world.folder / "savepoint"))


def test_a_location_elsewhere_is_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="is not a folder that this machine sees"):
        world.counting(tidegate_micro__batch_checkpoint__location="s3://bucket/location")


def test_sources_that_discover_splits_are_refused(world: World) -> None:
    env = world.environment()
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(world.folder))
    watched = source.monitor_continuously(Duration.of_seconds(1)).build()
    env.from_source(watched, job_watermarks(), "Watched").print()
    with pytest.raises(ConfigurationError, match="Watched' looks for new splits while the job runs"):
        env.execute("watching")


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


def test_a_location_that_has_lost_batches(world: World) -> None:
    world.counting().get_job_execution_result().result(60)
    shutil.rmtree(world.location / "commits")
    with pytest.raises(Exception, match=r"has lost batches: the job had come to batch"):
        world.counting()


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
