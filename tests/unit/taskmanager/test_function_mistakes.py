"""What people return by mistake from their functions: the error names the operator, the record and what to return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.taskmanager.slot_harness import InProcessJob
from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import JobStatus, Types
from tidegate.datastream import DataStream, KeyedProcessFunction, ProcessFunction, RuntimeContext
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.state import ValueStateDescriptor


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
