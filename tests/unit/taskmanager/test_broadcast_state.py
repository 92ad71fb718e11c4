"""Broadcast state: written by one side, read by the other, with keys and timers, in snapshots, rescaled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import Ticks, environment
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
)
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tidegate.testing.in_process_job import InProcessJob

RULES = MapStateDescriptor("rules", Types.STRING(), Types.INT())
NOTES = MapStateDescriptor("notes")
SEEN = OutputTag("seen")


class Scale(BroadcastProcessFunction):
    """Values times the factor, once there is one; a value that comes before it waits on the side."""

    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Any:
        factor = ctx.get_broadcast_state(RULES).get("factor")
        yield ("early", value) if factor is None else value * factor

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Any:
        ctx.get_broadcast_state(RULES).put("factor", value)
        yield SEEN, value


def late(env: Any, values: list[Any], after_ms: float) -> Any:
    """The values, from a source that begins so late."""
    source = Ticks(len(values) + 1, every_ms=after_ms)
    ticks = env.from_source(source, WatermarkStrategy.no_watermarks(), "late").set_parallelism(1)
    return ticks.flat_map(lambda i: values[i - 1 : i] if i else []).set_parallelism(1)


def test_the_broadcast_side_reaches_every_subtask_and_the_other_side_reads() -> None:
    env = environment(parallelism=3)
    rules = env.from_collection([7]).broadcast(RULES)
    scaled = late(env, list(range(9)), 200).rebalance().connect(rules).process(Scale())
    scaled.union(scaled.get_side_output(SEEN).map(lambda v: ("rule", v))).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
    assert sorted(map(str, job.results)) == sorted(map(str, [v * 7 for v in range(9)] + [("rule", 7)] * 3))


class Limits(KeyedBroadcastProcessFunction):
    """Counts per key; a timer 100 ms behind each record tells what the limit is by then."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 100)  # type: ignore[operator]

    def process_broadcast_element(self, value: int, ctx: KeyedBroadcastProcessFunction.Context) -> Any:
        ctx.get_broadcast_state(RULES)["limit"] = value

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Any:
        limits = ctx.get_broadcast_state(RULES)
        yield ctx.get_current_key(), timestamp, self.count.value(), limits["limit"], ctx.time_domain().name


def test_keys_state_and_timers_on_the_side_with_keys() -> None:
    env = environment(parallelism=2)
    stamped = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[1])
    records = [("a", 1), ("b", 2), ("a", 3)]
    keyed = env.from_collection(records).assign_timestamps_and_watermarks(stamped).key_by(lambda v: v[0])
    keyed.connect(env.from_collection([5]).broadcast(RULES)).process(Limits()).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
    event = "EVENT_TIME"
    assert sorted(job.results) == [("a", 101, 2, 5, event), ("a", 103, 2, 5, event), ("b", 102, 1, 5, event)]


class Wrong(KeyedBroadcastProcessFunction):
    def __init__(self, what: str) -> None:
        self.what = what

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("state"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.what == "write":
            ctx.get_broadcast_state(RULES).put("a", 1)
        if self.what == "clear":
            ctx.get_broadcast_state(RULES).clear()
        if self.what == "unknown":
            ctx.get_broadcast_state(NOTES)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        if self.what == "read keyed":
            self.state.value()
        if self.what == "write keyed":
            self.state.update(1)


@pytest.mark.parametrize(
    ("what", "story"),
    [
        ("write", "read-only on this side"),
        ("clear", "broadcast state is read-only on this side"),
        ("unknown", "has no broadcast state 'notes': give its descriptor to broadcast(). There is: rules"),
        ("read keyed", "keyed state was used in process_broadcast_element, where no key is current"),
        ("write keyed", "keyed state was used in process_broadcast_element, where no key is current"),
    ],
)
def test_what_must_not_be_done_is_refused(what: str, story: str) -> None:
    env = environment()
    stream = env.from_collection([1]).key_by(lambda v: v)
    stream.connect(env.from_collection([1]).broadcast(RULES)).process(Wrong(what)).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
        assert story in job.failure


def test_bad_arguments_are_refused_at_the_call() -> None:
    env = environment()
    stream = env.from_collection([1])
    rules = env.from_collection([1]).broadcast(RULES)
    with pytest.raises(TypeError, match="broadcast: takes MapStateDescriptors, got ValueStateDescriptor"):
        stream.broadcast(ValueStateDescriptor("x"))  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="two state descriptors of the name 'rules'"):
        stream.broadcast(RULES, RULES)
    with pytest.raises(TypeError, match="Limits is a KeyedBroadcastProcessFunction and needs keys"):
        stream.connect(rules).process(Limits())
    with pytest.raises(TypeError, match="the stream has keys, so Scale has to be a KeyedBroadcastProcessFunction"):
        stream.key_by(lambda v: v).connect(rules).process(Scale())
    with pytest.raises(TypeError, match="use connect"):
        stream.process(Scale())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a BroadcastProcessFunction or a KeyedBroadcastProcessFunction"):
        stream.connect(rules).process(Plain())  # type: ignore[arg-type]


class Plain(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any: ...


class Show(BroadcastProcessFunction):
    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Any:
        yield value, sorted(ctx.get_broadcast_state(RULES).items()), sorted(ctx.get_broadcast_state(NOTES))

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Any:
        name, number = value
        ctx.get_broadcast_state(RULES).put(name, number)
        ctx.get_broadcast_state(NOTES).put(number, None)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 4), (3, 1)])
def test_broadcast_state_is_whole_in_every_subtask_after_a_restart(before: int, after: int, tmp_path: Path) -> None:
    keys = {
        "execution.checkpointing.interval": "50 ms",
        "execution.checkpointing.dir": tmp_path.as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }

    def build(parallelism: int, more: dict[str, Any]) -> Any:
        env = environment({**keys, **more}, parallelism)
        rules = env.from_collection([("x", 1), ("y", 2), ("x", 3)]).uid("rules").broadcast(RULES, NOTES)
        ticks = env.from_source(Ticks(40), WatermarkStrategy.no_watermarks(), "ticks").set_parallelism(1).uid("ticks")
        ticks.rebalance().connect(rules).process(Show()).uid("show").sink_to(CollectSink()).uid("out")
        return env

    with InProcessJob(build(before, {})) as first:
        first.advance(220)
        n = first.completed[-1]
        first.cancel()
        seen = list(first.results)
    path = (tmp_path / first.graph.job_id / f"chk-{n}").as_uri()
    with InProcessJob(build(after, {"execution.state-recovery.path": path})) as second:
        second.run_to_end()
    assert second.results
    assert {str(rest) for _, *rest in second.results} == {str([[("x", 3), ("y", 2)], [1, 2, 3]])}
    assert {v for v, *_ in seen + second.results} == set(range(40))
