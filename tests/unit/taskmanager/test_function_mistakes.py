"""What people return by mistake from their functions: the error names the operator, the record and what to return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import JobStatus, Types, WatermarkStrategy
from tidegate.datastream import (
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
)
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tidegate.testing.in_process_job import InProcessJob


class ReturnsTheRecord(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return value


class KeyedReturnsTheRecord(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return value


class WrongDescriptor(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_list_state(ValueStateDescriptor("seen", Types.INT()))  # type: ignore[arg-type]

    def process_element(self, value: Any, ctx: Any) -> Any: ...


class WindowReturnsTheKey(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return key


RULES = MapStateDescriptor("rules")


class BroadcastMistake(KeyedBroadcastProcessFunction):
    def __init__(self, side: str) -> None:
        self.side = side

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.side == "read":
            ctx.get_broadcast_state(RULES).put(1, 1)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        if self.side == "write":
            ctx.timer_service().register_event_time_timer(1)


def with_broadcast(stream: DataStream, side: str) -> DataStream:
    return stream.key_by(abs).connect(stream.broadcast(RULES)).process(BroadcastMistake(side))


def stamped(stream: DataStream, assigner: Callable[[int, int], Any]) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
    return stream.assign_timestamps_and_watermarks(strategy)


def own_error(value: int) -> list[int]:
    return list(value)  # type: ignore[call-overload,no-any-return]


NOT_ITERABLE = "on record 7: TypeError: it returned a value of type int; it has to yield records, or return a list"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.flat_map(lambda n: n), f"failed in flat_map() {NOT_ITERABLE}"),
        (lambda s: s.process(ReturnsTheRecord()), f"failed in process_element() {NOT_ITERABLE}"),
        (lambda s: s.key_by(abs).process(KeyedReturnsTheRecord()), f"failed in process_element() {NOT_ITERABLE}"),
        (lambda s: s.flat_map(own_error), "on record 7: TypeError: 'int' object is not iterable"),
        (
            lambda s: s.key_by(lambda n: 1).reduce(lambda a, b: None),
            "failed in reduce() on record 8: TypeError: it returned None; it has to return the two records combined",
        ),
        (
            lambda s: s.key_by(abs).count_window(1).process(WindowReturnsTheKey()),
            f"failed in the window's function {NOT_ITERABLE}",
        ),
        (
            lambda s: stamped(s, lambda n, _: 1.5 if n == 8 else None),
            "extract_timestamp() on record 7: ConfigurationError: the timestamp assigner returned None; it has to",
        ),
        (lambda s: stamped(s, lambda n, _: "x" if n == 8 else n), "on record 8: ConfigurationError: the timestamp"),
        (lambda s: with_broadcast(s, "read"), "broadcast state is read-only on this side: change it in process_broad"),
        (lambda s: with_broadcast(s, "write"), "no key is current in process_broadcast_element, so it has no timers"),
        (
            lambda s: s.key_by(abs).process(WrongDescriptor()),
            "get_list_state: takes a ListStateDescriptor, got ValueStateDescriptor: ValueStateDescriptor('seen')",
        ),
    ],
)
def test_the_error_says_what_to_return(build: Callable[[DataStream], DataStream], message: str) -> None:
    env = environment()
    build(env.from_collection([7, 8])).name("mistake").sink_to(CollectSink())
    with InProcessJob(env) as job:
        assert job.run_to_end() is JobStatus.FAILED
        assert "operator 'mistake' (subtask 0)" in job.failure
        assert message in job.failure
