"""What `assert_same_under_faults` finds: another order, other state, faults that did not happen; what it lets pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.testing.test_in_process_jobs import environment
from tidegate.common import Types
from tidegate.common.errors import OrderNotComparedWarning, SnapshotError
from tidegate.datastream import DataStream, KeyedProcessFunction, RuntimeContext
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.testing import CutConnections, FailAt, KillWorker, Record, Wait, assert_same_under_faults, scripted

KILL = [KillWorker(after_ms=150)]


class Forgetful(KeyedProcessFunction):
    """Emits what it is given, and keeps in state how often it was called by this attempt."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.calls = 0
        self.state = runtime_context.get_state(ValueStateDescriptor("calls", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.calls += 1
        self.state.update(self.calls)
        yield value


class Backwards(KeyedProcessFunction):
    """Gives the records of one key in pairs: those of the first attempt as they are, later ones turned round."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.turned = runtime_context.get_attempt_number() > 0
        self.waiting = runtime_context.get_state(ValueStateDescriptor("waiting", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        other = self.waiting.value()
        if other is None:
            self.waiting.update(value)
            return
        self.waiting.clear()
        yield from (value, other) if self.turned else (other, value)


def script(parallelism: int = 1) -> DataStream:
    steps = [step for i in range(60) for step in (Record(("ab"[i % 2], i), i), Wait(5))]
    return scripted(environment(parallelism), steps)


def keyed(function: type[KeyedProcessFunction], parallelism: int = 1) -> DataStream:
    return script(parallelism).key_by(lambda pair: pair[0]).process(function()).name("work")


@pytest.mark.parametrize("storage", [None, "filesystem"])
def test_state_at_the_end_that_differs_is_named(storage: str | None, tmp_path: Any) -> None:
    def build() -> DataStream:
        stream = keyed(Forgetful)
        if storage:
            configuration = stream.get_execution_environment()._configuration
            configuration.set_string("execution.checkpointing.dir", str(tmp_path / "own"))
        return stream

    with pytest.raises(AssertionError, match="the job gives other state") as failure:
        assert_same_under_faults(build, KILL)
    assert "state 'calls' of 'work' differs for 2 of 2 keys, for example key 'a'" in str(failure.value)
    assert sorted(assert_same_under_faults(build, KILL, state=False))[0] == ("a", 0)
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(("order_by", "parallelism"), [("auto", 1), ("0", 2)])
def test_records_of_one_key_in_another_order_are_named(order_by: str, parallelism: int) -> None:
    with pytest.raises(AssertionError, match=r"0 records are lost, .* [1-9]\d* are out of order") as failure:
        assert_same_under_faults(lambda: keyed(Backwards, parallelism), KILL, order_by=order_by)
    assert "out of order among the records of one key" in str(failure.value)


def test_state_that_cannot_be_read_is_a_failure_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be equal to anything."""

    def damaged(*place: str) -> Iterator[Any]:
        raise SnapshotError("nothing of the kind")

    monkeypatch.setattr("tidegate.chaos.differences.iterate_state", damaged)
    with pytest.raises(
        AssertionError, match=r"state 'calls' of 'work' is not compared.*nothing of the kind\nstate=False"
    ):
        assert_same_under_faults(lambda: keyed(Forgetful), KILL)
    assert len(assert_same_under_faults(lambda: keyed(Forgetful), KILL, state=False)) == 60


@pytest.mark.filterwarnings("error")
def test_without_an_order_only_the_records_count() -> None:
    assert len(assert_same_under_faults(lambda: keyed(Backwards), KILL, order_by="none")) == 60


@pytest.mark.parametrize("faults", [KILL, [CutConnections(checkpoint=4)]], ids=str)
def test_keys_that_stay_in_one_subtask_keep_their_order(faults: Any) -> None:
    assert len(assert_same_under_faults(lambda: keyed(Sorted, 2), faults)) == 60


class Sorted(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield value


def test_records_whose_order_depends_on_the_pace_of_workers_may_be_out_of_order() -> None:
    def build() -> DataStream:
        return script(2).rebalance().map(lambda pair: ("same", pair)).name("work")

    with pytest.warns(OrderNotComparedWarning, match="as soon as workers pause for a moment"):
        assert len(assert_same_under_faults(build, [FailAt("work", 30), KillWorker(after_ms=203)])) == 60


def test_a_fault_that_does_not_happen_is_a_failure_of_the_test() -> None:
    with pytest.raises(AssertionError, match=r"of the plan \[FailAt\(operator='wrok', .*\] has not happened"):
        assert_same_under_faults(script, [FailAt("wrok", 3), KillWorker(after_ms=100)])
