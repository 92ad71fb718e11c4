"""Random jobs with asynchronous calls in the place of their maps: the calls finish in any order, or not before a
crash. Half of the operators that make the calls stand inside a chain, where records often wait before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation import scenario
from tests.simulation.functions import Record
from tests.simulation.random_job import JobBuilder, _Stream
from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import Mode
from tidegate.common import Time
from tidegate.datastream import AsyncDataStream, AsyncFunction
from tidegate.taskmanager.chain import OperatorChain
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
    often_cut = True

    def _exchange(self, s: _Stream, broadcast: bool = True) -> _Stream:
        return super()._exchange(s, broadcast) if self._rng.random() < 0.5 else s

    def _map(self, s: _Stream) -> _Stream:
        s = self._exchange(s)
        capacity = self._rng.choice((1, 2, 5, 50))
        if self._rng.random() < 0.5:
            return self._after(s, AsyncDataStream.ordered_wait(s.stream, Ask(), Time.seconds(0), capacity), "ordered")
        after = self._after(s, AsyncDataStream.unordered_wait(s.stream, Ask(), Time.seconds(0), capacity), "unordered")
        return _Stream(after.stream, after.parallelism, after.idents, dict.fromkeys(after.order))

    def _sink(self, s: Any) -> None:
        super()._sink(self._map(s))


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.ALIGNED, Mode.UNALIGNED, Mode.TIMEOUT], ids=lambda m: m.value)
def test_pending_calls_survive_failures_and_their_results_come_once(mode: Mode, monkeypatch: Any) -> None:
    monkeypatch.setattr(scenario, "JobBuilder", AsyncJobBuilder)
    CALLS[0] = 0
    for seed in range(SEEDS):
        run_seed(seed, mode, mode is not Mode.NONE)
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


def emits_only_when_nothing_waits(patch: pytest.MonkeyPatch) -> None:
    """Not even behind the operator with the results: it stays full, and what is before it waits for ever."""
    advance = OperatorChain.advance
    patch.setattr(OperatorChain, "advance", lambda self, now, room: advance(self, now, room and not self.behind))


def goes_on_only_when_all_operators_take_more(patch: pytest.MonkeyPatch) -> None:
    """Also those that the records have behind them: one that is full waits for what is behind it to go on."""
    patch.setattr(OperatorChain, "may_catch_up", OperatorChain.available)


@pytest.mark.parametrize("plant", [emits_only_when_nothing_waits, goes_on_only_when_all_operators_take_more])
def test_the_simulation_notices_when_operators_in_a_chain_wait_for_each_other(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenario, "JobBuilder", AsyncJobBuilder)
    plant(monkeypatch)
    for seed in range(2 * SEEDS):
        try:
            run_seed(seed, Mode.NONE, False)
        except SimulationFailed as failed:
            if "the job hangs" not in str(failed):
                raise
            return
    pytest.fail(f"it went unnoticed in {2 * SEEDS} schedules")
