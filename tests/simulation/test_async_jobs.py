"""Random jobs with asynchronous calls in the place of their maps: the calls finish in any order, or not before a
crash."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import scenario
from tests.simulation.functions import Record
from tests.simulation.random_job import JobBuilder, _Stream
from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import Mode
from tidegate.common import Time
from tidegate.datastream import AsyncDataStream, AsyncFunction
from tidegate.taskmanager.operators.async_wait import AsyncWaitOperator
from tidegate.testing.coroutines import Pause

SEEDS = 30
CALLS = [0]


class Ask(AsyncFunction[Record, Record]):
    async def async_invoke(self, value: Record) -> list[Record]:
        CALLS[0] += 1
        await Pause(1)
        return [value]


class AsyncJobBuilder(JobBuilder):
    def _map(self, s: _Stream) -> _Stream:
        s = self._exchange(s)
        capacity = self._rng.choice((1, 2, 5, 50))
        if self._rng.random() < 0.5:
            return self._after(s, AsyncDataStream.ordered_wait(s.stream, Ask(), Time.seconds(0), capacity), "ordered")
        after = self._after(s, AsyncDataStream.unordered_wait(s.stream, Ask(), Time.seconds(0), capacity), "unordered")
        return _Stream(after.stream, after.parallelism, after.idents, dict.fromkeys(after.order))

    def _sink(self, s: Any) -> None:
        super()._sink(self._map(s))


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.UNALIGNED, Mode.TIMEOUT], ids=lambda m: m.value)
def test_pending_calls_survive_failures_and_their_results_come_once(mode: Mode, monkeypatch: Any) -> None:
    monkeypatch.setattr(scenario, "JobBuilder", AsyncJobBuilder)
    CALLS[0] = 0
    for seed in range(SEEDS):
        run_seed(seed, mode)
    assert CALLS[0] > 1000


def test_the_simulation_notices_when_pending_calls_are_left_out_of_the_snapshot(monkeypatch: Any) -> None:
    monkeypatch.setattr(scenario, "JobBuilder", AsyncJobBuilder)
    monkeypatch.setattr(AsyncWaitOperator, "update_state", lambda *_: None)
    for seed in range(SEEDS):
        try:
            run_seed(seed, Mode.ALIGNED)
        except SimulationFailed:
            return
    pytest.fail(f"it went unnoticed in {SEEDS} schedules")
