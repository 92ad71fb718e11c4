"""One savepoint, all modes: a job with every kind of state is stopped in one mode and goes on in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.batch.test_tasks import Engine as BatchEngine
from tests.unit.micro_batch.engine import Engine
from tidegate.common import Configuration, Duration, Encoder, Time, Types, WatermarkStrategy
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import (
    AggregateFunction,
    CheckpointedFunction,
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import FileSink
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.jobmanager.state_assignment import adopt_max_parallelism
from tidegate.snapshots import read_state
from tidegate.spark.batch.commits import commit_all, discard_leftovers
from tidegate.spark.batch.job_savepoint import complete_savepoint
from tidegate.spark.batch.plan import SavepointPlan
from tidegate.spark.batch.plan import plan_job as plan_batches
from tidegate.spark.start_points import initial_point, start_state
from tidegate.storage.files import OWNER
from tidegate.taskmanager.deployment import RuntimeSettings
from tidegate.testing.in_process_job import InProcessJob, graph_of

EVENTS = [(f"k{i % 7}", i) for i in range(140)]
ALL_AT_ONCE = 10_000


class Longest(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return max(value, accumulator)

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return max(a, b)


class EveryKind(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        ttl = StateTtlConfig.new_builder(Time.days(100_000)).build()  # the clocks of the modes differ
        lasting = ValueStateDescriptor("lasting", Types.INT())
        lasting.enable_time_to_live(ttl)
        self.value = ctx.get_state(ValueStateDescriptor("value", Types.INT()))
        self.lasting = ctx.get_state(lasting)
        self.list = ctx.get_list_state(ListStateDescriptor("list", Types.INT()))
        self.map = ctx.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.INT()))
        self.sum = ctx.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.INT()))
        self.longest = ctx.get_aggregating_state(AggregatingStateDescriptor("longest", Longest(), Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        key, number = value
        self.value.update((self.value.value() or 0) + 1)
        self.lasting.update((self.lasting.value() or 0) + 2)
        self.list.add(number)
        self.map.put(f"m{number % 3}", (self.map.get(f"m{number % 3}") or 0) + 1)
        self.sum.add(number)
        self.longest.add(number)
        ctx.timer_service().register_event_time_timer(number // 40 * 40 + 40)
        mapped = sum(self.map.values())
        yield (
            "seen",
            key,
            number,
            self.value.value(),
            self.lasting.value(),
            self.sum.get(),
            self.longest.get(),
            mapped,
        )

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        numbers = list(self.list.get())
        counted = {f"m{rest}": count for rest in range(3) if (count := sum(n % 3 == rest for n in numbers))}
        due = sum(number < timestamp for number in numbers)
        yield ("timer", ctx.get_current_key(), timestamp, due, dict(self.map.items()) == counted)


class Numbered(MapFunction, CheckpointedFunction):
    """Counts what it has seen in operator state, in whatever subtasks there are."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("counted", Types.INT()))
        self.count = sum(self.state.get())

    def map(self, value: Any) -> Any:
        self.count += 1
        return value

    def snapshot_state(self, context: Any) -> None:
        self.state.update([self.count])


def job(parallelism: int, savepoint: str | None = None, backend: str = "hashmap") -> DataStream:
    config = {"tidegate.network.batch-size": "4"}  # STREAMING reads no more than that in a step
    config["state.backend.type"] = backend
    if savepoint is not None:
        config["execution.state-recovery.path"] = savepoint
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config))
    return every_kind(env.set_parallelism(parallelism).from_collection(EVENTS))


def every_kind(source: DataStream) -> DataStream:
    """All kinds of state over the events, which have to be those of one subtask."""
    times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(5))
    stamped = times.with_timestamp_assigner(lambda event, _: event[1])
    events = source.assign_timestamps_and_watermarks(stamped).uid("times")
    keyed = events.set_parallelism(1).key_by(lambda event: event[0], Types.STRING())  # one after the other
    seen = keyed.process(EveryKind()).uid("every kind")
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(30)))
    summed = windows.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("windows").map(lambda r: ("window", *r)).uid("named")
    return seen.union(summed).map(Numbered()).uid("numbered")


def expected() -> list[Any]:
    found: list[Any] = []
    seen: dict[str, list[int]] = {}
    windows: dict[tuple[str, int], int] = {}
    for key, number in EVENTS:
        numbers = seen.setdefault(key, [])
        numbers.append(number)
        found.append(("seen", key, number, len(numbers), 2 * len(numbers), sum(numbers), number, len(numbers)))
        windows[key, number // 30] = windows.get((key, number // 30), 0) + number
    for key, numbers in seen.items():
        for timestamp in {number // 40 * 40 + 40 for number in numbers}:
            found.append(("timer", key, timestamp, sum(n < timestamp for n in numbers), True))
    return found + [("window", key, total) for (key, _), total in windows.items()]


def first_part(
    mode: str,
    target: Path,
    parallelism: int,
    savepoint: str | None = None,
    steps: int = 3,
    backend: str = "hashmap",
) -> list[Any]:
    """Runs some of the job and stops it with a savepoint at `target`."""
    if mode == "MICRO_BATCH":
        engine = Engine.collecting(job(parallelism, savepoint), max_records=12, kills=1, seed=steps)
        for _ in range(steps):
            assert not engine.run_batch().ended
        engine.savepoint(target)
        return engine.results
    with InProcessJob.collecting(job(parallelism, savepoint, backend)) as running:
        running.step(6 * steps)
        running.stop(target)
        running.run_to_end()
        answer = running.answer()
        assert answer is not None
        assert answer.error is None
        return running.results


def batch_results(stream: DataStream) -> list[Any]:
    """All that is left, as a BATCH job that starts from a savepoint."""
    stream.sink_to(CollectSink())
    env = stream.get_execution_environment()
    point = initial_point(env._configuration, "BATCH")
    assert point is not None
    graph = adopt_max_parallelism(graph_of(env), point.metadata)
    start = start_state(graph, point, allow_non_restored=False)
    return BatchEngine(plan_batches(graph, RuntimeSettings(), 1 << 20, None, start)).run()


def the_rest(mode: str, parallelism: int, savepoint: str, backend: str = "hashmap") -> list[Any]:
    if mode == "BATCH":
        return batch_results(job(parallelism, savepoint))
    if mode == "MICRO_BATCH":
        return Engine.collecting(job(parallelism, savepoint), max_records=12, kills=1).run().results
    with InProcessJob.collecting(job(parallelism, savepoint, backend)) as running:
        running.run_to_end()
        return running.results


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_without_a_savepoint(parallelism: int) -> None:
    engine = Engine.collecting(job(parallelism), max_records=30, kills=3).run()
    assert sorted(engine.results) == sorted(expected())
    assert len(engine.reports) > 3


@pytest.mark.parametrize("before", ["STREAMING", "MICRO_BATCH"])
@pytest.mark.parametrize("after", ["STREAMING", "MICRO_BATCH", "BATCH"])
@pytest.mark.parametrize(("p", "q"), [(2, 2), (1, 3), (3, 2)])
def test_a_savepoint_moves(before: str, after: str, p: int, q: int, tmp_path: Path) -> None:
    results = first_part(before, tmp_path / "savepoint", p)
    assert 0 < len(results) < len(expected())
    results += the_rest(after, q, str(tmp_path / "savepoint"))
    assert sorted(results) == sorted(expected())


def test_through_three_modes_and_back(tmp_path: Path) -> None:
    results: list[Any] = []
    savepoint: str | None = None
    for number, mode in enumerate(("MICRO_BATCH", "STREAMING", "MICRO_BATCH")):
        target = tmp_path / f"savepoint-{number}"
        results += first_part(mode, target, number + 1, savepoint, steps=2)
        savepoint = str(target)
    results += the_rest("STREAMING", 2, str(savepoint))
    assert sorted(results) == sorted(expected())


def test_from_rocksdb_and_back(tmp_path: Path) -> None:
    """What is in RocksDB in STREAMING mode is in buckets in MICRO_BATCH mode, and in RocksDB again."""
    results: list[Any] = []
    savepoint: str | None = None
    for number, mode in enumerate(("STREAMING", "MICRO_BATCH")):
        target = tmp_path / f"savepoint-{number}"
        results += first_part(mode, target, 2 + number, savepoint, steps=2, backend="rocksdb")
        savepoint = str(target)
    results += the_rest("STREAMING", 2, str(savepoint), backend="rocksdb")
    assert sorted(results) == sorted(expected())


@pytest.mark.parametrize("after", ["STREAMING", "MICRO_BATCH"])
def test_a_savepoint_of_a_batch_job_moves(after: str, tmp_path: Path) -> None:
    """All input was read; timers and windows that are not due by then are left for the job that goes on."""
    stream = job(2)
    stream.sink_to(CollectSink())
    savepoint = SavepointPlan(str(tmp_path / "savepoint"), 0, OWNER)
    plan = plan_batches(graph_of(stream.get_execution_environment()), RuntimeSettings(), 1 << 20, savepoint)
    batch = BatchEngine(plan)
    results = batch.run()
    complete_savepoint(savepoint, plan.graph, batch.report())
    assert len(results) < len(expected())
    results += the_rest(after, 3, str(tmp_path / "savepoint"))
    assert sorted(results) == sorted(expected())


def test_the_output_of_a_batch_job_with_a_savepoint_is_complete(tmp_path: Path) -> None:
    """Also what a file sink would go on writing to after a checkpoint: when the job has ended, nobody does. The job
    that goes on finds all that it had prepared committed."""

    def built(savepoint: str | None) -> Any:
        stream = job(2, savepoint)
        sink = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder()).build()
        stream.map(repr).uid("text").sink_to(sink).uid("files")
        return stream.get_execution_environment()

    def lines() -> list[str]:
        files = [path for path in (tmp_path / "out").rglob("part-*") if not path.name.startswith(".")]
        return sorted(line for path in files for line in path.read_text().splitlines())

    savepoint = SavepointPlan(str(tmp_path / "savepoint"), 0, OWNER)
    plan = plan_batches(graph_of(built(None)), RuntimeSettings(), 1 << 20, savepoint)
    batch = BatchEngine(plan)
    batch.run()
    complete_savepoint(savepoint, plan.graph, batch.report())
    commit_all(plan.graph, batch.report().committables(), 0, 1.0)
    discard_leftovers(plan.graph, plan.graph.job_id)
    written = lines()
    assert len([line for line in written if line.startswith("('seen'")]) == len(EVENTS)
    Engine(built(str(tmp_path / "savepoint"))).run()
    assert len(lines()) > len(written)
    assert lines() == sorted(map(repr, expected()))


def test_a_savepoint_is_read_as_tables(tmp_path: Path) -> None:
    first_part("MICRO_BATCH", tmp_path / "savepoint", 2)
    table = read_state(str(tmp_path / "savepoint"), "every kind", "value")
    assert {row["key"] for row in table.to_pylist()} == {f"k{i}" for i in range(7)}


def test_a_drained_job_has_fired_all_timers_and_can_go_on(tmp_path: Path) -> None:
    engine = Engine.collecting(job(2), max_records=12)
    engine.run_batch()
    engine.savepoint(tmp_path / "savepoint", drain=True)
    assert engine.reports[-1].ended
    assert [r for r in engine.results if r[0] == "window"]
    rest = the_rest("MICRO_BATCH", 2, str(tmp_path / "savepoint"))
    seen = [r for r in (*engine.results, *rest) if r[0] == "seen"]
    assert sorted(seen) == sorted(r for r in expected() if r[0] == "seen")


def test_a_savepoint_that_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    engine = Engine.collecting(job(2), max_records=30)
    engine.run_batch()
    (tmp_path / "file").write_text("in the way")
    report = engine.run_batch(savepoint=str(tmp_path / "file" / "savepoint"))
    assert "subtask" in report.savepoint_error()
    assert sorted(engine.run().results) == sorted(expected())
