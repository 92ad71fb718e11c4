"""Random jobs on random schedules with failures.

Crashed, frozen and raising workers, a killed driver, broken connections, storage that fails, hangs and loses, commits
that fail, aborted and concurrent checkpoints, frames of old attempts, repeated and unreadable messages, clocks that
differ, restart strategies that give up (`faults.py`). Exactly-once: nothing lost, nothing doubled, nothing out
of order, the state as without failures. At-least-once: nothing lost.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.faults import FaultPlan
from tests.simulation.runner import run_seed
from tests.simulation.scenario import Mode, Variation
from tests.simulation.schedule import Schedule
from tests.simulation.sim_slot import AsyncWork, SimSlot
from tests.simulation.simulation import Simulation
from tests.simulation.workers import Workers
from tidegate.taskmanager.operators.sink import SinkOperator

CHUNK = 30
SCHEDULES = {
    Mode.ALIGNED: 240,
    Mode.CONCURRENT: 210,
    Mode.UNALIGNED: 270,
    Mode.TIMEOUT: 210,
    Mode.AT_LEAST_ONCE: 150,
}
CASES = [(mode, first) for mode, schedules in SCHEDULES.items() for first in range(0, schedules, CHUNK)]


@pytest.mark.parametrize(("mode", "first"), CASES, ids=[f"{mode.value}-{first}" for mode, first in CASES])
def test_failures_do_not_show_in_output_and_state(mode: Mode, first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed, mode)


@pytest.mark.parametrize("variation", [Variation.PLAIN, Variation.RESCALE, Variation.LED])
@pytest.mark.parametrize("mode", SCHEDULES)
def test_harsher_failures_do_not_show_either(mode: Mode, variation: Variation) -> None:
    """Writes, deletions and commits that never return, partitions, metadata that reads otherwise, torn uploads."""
    for seed in range(4):
        run_seed(seed, mode, variation=variation, harsher=True)


def test_there_are_enough_schedules() -> None:
    assert sum(SCHEDULES.values()) >= 1_000


def seen_in(simulation: Simulation) -> Counter[str]:
    """What a run has been through."""
    world = simulation.world
    return Counter(
        {
            "restarts": int(simulation.master.attempt),
            "restored": len(simulation.restored),
            "restarts of the driver": simulation.run_number,
            "completed": len(world.completed),
            "aborted": len(simulation.aborted),
            "savepoints": len(simulation.savepoints),
            "with in-flight records": simulation.with_channel_state,
            "failed commits": world.failed_commits,
            "fenced frames": simulation.faults.stale_delivered,
            "doubled": simulation.doubled,
            "repeated messages": simulation.faults.messages.repeated,
            "unreadable messages": simulation.faults.messages.unreadable,
            "damaged": len(simulation.faults.storage.damaged),
            **{f"failed to {what}": times for what, times in simulation.faults.storage.failed.items()},
        }
    )


def test_the_schedules_are_as_hard_as_they_claim() -> None:
    wanted = {"restarts", "restored", "restarts of the driver", "completed", "aborted", "with in-flight records"}
    wanted |= {"failed commits", "fenced frames", "repeated messages", "unreadable messages", "damaged"}
    wanted |= {f"failed to {what}" for what in ("create", "write", "commit", "read", "list", "delete", "discard")}
    seen: Counter[str] = Counter()
    for seed in range(CHUNK):
        for mode in SCHEDULES:
            seen += seen_in(run_seed(seed, mode))
        if wanted <= seen.keys():
            return
    pytest.fail(f"{wanted - seen.keys()} never happened, but {seen}")


def test_at_least_once_is_weaker_than_exactly_once() -> None:
    """Its tracker does not block channels, so records are replayed into a state that holds them already."""
    assert any(run_seed(seed, Mode.AT_LEAST_ONCE).doubled for seed in range(60))


def test_a_helper_that_hangs_in_a_commit_leaves_its_worker_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody ends it: it is no crash, and the rest of the worker goes on."""
    hung: list[bool] = []
    helper_hangs = SimSlot.helper_hangs

    def noted(self: SimSlot, why: str) -> None:
        helper_hangs(self, why)
        hung.append(self.working)

    monkeypatch.setattr(SimSlot, "helper_hangs", noted)
    monkeypatch.setattr(FaultPlan, "commit_hang_share", 1.0)
    for seed in range(CHUNK):
        run_seed(seed, Mode.ALIGNED, harsher=True)
    assert any(hung)


def test_what_a_worker_never_ends_is_a_write_and_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's timeout ends the wait for a write; commits have none."""
    stuck: list[AsyncWork] = []
    never_returns = Workers._never_returns

    def noted(self: Workers, work: AsyncWork) -> None:
        stuck.append(work)
        never_returns(self, work)

    monkeypatch.setattr(Workers, "_never_returns", noted)
    monkeypatch.setattr(Workers, "stuck_share", 1.0)
    monkeypatch.setattr(Schedule, "hangs", lambda self: not self.calm and self.rng.random() < 0.03)
    for seed in range(CHUNK):
        run_seed(seed, Mode.ALIGNED, harsher=True)
    assert stuck
    assert not [work for work in stuck if isinstance(getattr(work.done, "__self__", None), SinkOperator)]
