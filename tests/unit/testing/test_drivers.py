"""Drivers that die and jobs that are rescaled, in one process: another driver goes on, and no result suffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_tidegate import JobUnderFaults
from tests.unit.testing.test_in_process_jobs import environment
from tidegate.common import Types
from tidegate.datastream import DataStream, KeyedProcessFunction, RuntimeContext
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.testing import (
    CutConnections,
    FailAt,
    Fault,
    InProcessJob,
    KillDriver,
    KillWorker,
    Record,
    Rescale,
    StorageFails,
    Wait,
    assert_same_under_faults,
    scripted,
)
from tidegate.testing.drivers import Drivers

RECORDS = 60


class Totals(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.total.update((self.total.value() or 0) + value[1])
        yield value[0], self.total.value()


class InAnAttribute(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = 0

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.total += value[1]
        yield value[0], self.total


def totals(function: type[KeyedProcessFunction] = Totals, parallelism: int = 2) -> DataStream:
    steps = [step for i in range(RECORDS) for step in (Record((f"k{i % 5}", i), i), Wait(5))]
    stream = scripted(environment(parallelism), steps)
    return stream.key_by(lambda pair: pair[0]).process(function()).name("totals").uid("totals")


@pytest.mark.parametrize(
    "faults",
    [
        [KillDriver(after_ms=0)],
        [KillDriver(after_ms=153)],
        [KillDriver(checkpoint=4)],
        [Rescale(after_ms=101, parallelism=3)],
        [Rescale(checkpoint=3, parallelism=1)],
        [KillDriver(100), KillDriver(170)],
        [KillWorker(60), KillDriver(110), Rescale(160, parallelism=3), CutConnections(200, slot=2), KillDriver(250)],
        [FailAt("totals", record=12), Rescale(after_ms=60, parallelism=4), Rescale(after_ms=200)],
        [StorageFails(after_ms=90, for_ms=50), Rescale(after_ms=100, parallelism=3)],
    ],
    ids=str,
)
def test_results_and_state_are_those_of_one_driver(faults: Sequence[Fault], job_under_faults: JobUnderFaults) -> None:
    assert len(job_under_faults(totals, faults)) == RECORDS


@pytest.mark.parametrize("fault", [KillDriver(after_ms=150), Rescale(after_ms=150, parallelism=3)], ids=str)
def test_what_is_in_no_state_is_missed(fault: Fault) -> None:
    with pytest.raises(AssertionError, match="lost"):
        assert_same_under_faults(lambda: totals(InAnAttribute), [fault])


@pytest.mark.parametrize("fault", [KillDriver(after_ms=50_000), Rescale(after_ms=50_000)], ids=str)
def test_one_that_comes_after_the_end_shows_nothing(fault: Fault) -> None:
    with pytest.raises(AssertionError, match="has not happened, so this shows nothing"):
        assert_same_under_faults(totals, [fault])


def test_drivers_go_on_from_the_newest_checkpoint_and_at_another_parallelism(tmp_path: Any) -> None:
    plan: list[Fault] = [KillDriver(after_ms=150), Rescale(after_ms=200, parallelism=3)]
    drivers = Drivers(totals, plan, tmp_path, "auto")
    started = []

    def configured(env: Any) -> None:
        env._configuration.set_string("execution.checkpointing.dir", str(tmp_path / "checkpoints"))
        started.append(drivers.started_from)

    assert len(drivers.run(configured)) == RECORDS
    assert len(started) == 3
    assert "chk-" in str(started[2])  # of the one before
    assert "savepoint" in str(drivers.started_from)
    assert max(vertex.parallelism for vertex in drivers.last.graph.vertices) == 3


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="only assert_same_under_faults starts another driver"):
        InProcessJob.collecting(totals(), [KillDriver(after_ms=5)])
    with pytest.raises(ValueError, match="parallelism has to be 1 or more"):
        Rescale(after_ms=5, parallelism=0)
    with pytest.raises(ValueError, match="the job has no slot 3"):
        assert_same_under_faults(totals, [Rescale(after_ms=100, parallelism=3), KillWorker(200, slot=3)])
    with pytest.raises(ValueError, match="the job has no slot 1"):
        assert_same_under_faults(totals, [Rescale(after_ms=100), KillWorker(200, slot=1)])
