"""`Function.finish`: called at the end of the input, before the last checkpoint, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.common.errors import ConfigurationError
from tidegate.contracts.state import FunctionInitializationContext, FunctionSnapshotContext
from tidegate.datastream import DataStream, KeyedProcessFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.functions import (
    CheckpointedFunction,
    FlatMapFunction,
    MapFunction,
    RuntimeContext,
    SinkFunction,
)
from tidegate.datastream.state import ListStateDescriptor, ValueStateDescriptor
from tidegate.testing import FailAt, Harness, InProcessJob, KillWorker, Record, Wait, assert_same_under_faults, scripted


class Pairs(FlatMapFunction, CheckpointedFunction):
    """Holds a record back until there are two."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("held"))
        self.held = list(self.state.get())

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.state.update(self.held)

    def flat_map(self, value: Any) -> Iterator[Any]:
        self.held.append(value)
        if len(self.held) == 2:
            yield tuple(self.held)
            self.held = []

    def finish(self) -> Iterator[Any]:
        for value in self.held:
            yield (value,)
        self.held = []


def environment() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(20)
    return env


def test_what_was_held_back_comes_at_the_end() -> None:
    with InProcessJob.collecting(environment().from_collection([1, 2, 3]).flat_map(Pairs())) as job:
        job.run_to_end()
        assert job.results == [(1, 2), (3,)]


def test_and_goes_through_the_operators_behind_it_whose_own_finish_comes_later() -> None:
    stream = environment().from_collection([1, 2, 3, 4, 5]).flat_map(Pairs()).flat_map(Pairs())
    with InProcessJob.collecting(stream) as job:
        job.run_to_end()
        assert job.results == [((1, 2), (3, 4)), ((5,),)]


def paired() -> DataStream:
    steps: list[Any] = []
    for i in range(31):
        steps += [Record(i), Wait(4)]
    return scripted(environment(), steps).flat_map(Pairs()).name("pairs").map(lambda p: p).name("after")


def test_exact_over_failures_also_after_finish() -> None:
    """The last record that `after` sees is one that `finish` has emitted: the failure comes before the last
    checkpoint."""
    assert_same_under_faults(paired, [FailAt("pairs", record=9), KillWorker(after_ms=60), FailAt("after", record=16)])


def test_the_last_checkpoint_comes_after_it() -> None:
    class Held(Pairs):
        snapshots: list[list[Any]] = []

        def snapshot_state(self, context: FunctionSnapshotContext) -> None:
            super().snapshot_state(context)
            self.snapshots.append(list(self.held))

    Held.snapshots.clear()
    with InProcessJob.collecting(environment().from_collection([1]).flat_map(Held())) as job:
        job.run_to_end()
        assert job.results == [(1,)]
        assert Held.snapshots[-1] == []


@pytest.mark.parametrize("drain", [True, False])
def test_a_job_that_is_stopped_finishes_only_when_it_is_drained(drain: bool, tmp_path: Path) -> None:
    with InProcessJob.collecting(scripted(environment(), [Record(1), Wait(100_000)]).flat_map(Pairs())) as job:
        job.run()
        job.stop(tmp_path / "savepoint", drain=drain)
        job.run_to_end()
        assert job.results == ([(1,)] if drain else [])


def test_side_outputs_and_maps_and_sinks() -> None:
    tag = OutputTag("late")

    class Tail(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
            yield value

        def finish(self) -> Iterator[Any]:
            yield "tail"
            yield tag, "aside"

    class Plain(MapFunction):
        def map(self, value: Any) -> Any:
            return value

        def finish(self) -> list[Any]:
            return ["one more"]

    env = environment()
    stream = env.from_collection([1]).process(Tail())
    stream.get_side_output(tag).map(lambda v: v).add_sink(Seen())
    with InProcessJob.collecting(stream.map(Plain())) as job:
        job.run_to_end()
        assert job.results == [1, "tail", "one more"]
    assert Seen.values[-2:] == ["aside", "end"]


class Seen(SinkFunction):
    values: list[Any] = []

    def invoke(self, value: Any, context: Any) -> None:
        self.values.append(value)

    def finish(self) -> None:
        self.values.append("end")


def test_no_key_is_current_in_it() -> None:
    class Wrong(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("count"))

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
            self.count.update(1)
            yield value

        def finish(self) -> Iterator[Any]:
            yield self.count.value()

    with Harness(lambda s: s.key_by(lambda v: v).process(Wrong())) as harness:
        harness.process(1)
        with pytest.raises(ConfigurationError, match="keyed state was used in finish, where no key is current"):
            harness.end_of_input()


def test_its_failure_names_it() -> None:
    class Broken(MapFunction):
        def map(self, value: Any) -> Any:
            return value

        def finish(self) -> None:
            raise OSError("too late")

    env = StreamExecutionEnvironment.get_execution_environment()
    with InProcessJob.collecting(env.from_collection([1]).map(Broken()).name("broken")) as job:
        job.run_to_end()
        assert "finish()" in job.failure
        assert "broken" in job.failure
