"""At most one owner at a time and per epoch, whatever fails; and planted bugs are found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.simulation.lease_world import BrokenLease, World
from tests.simulation.lease_world import run_lease_world as run
from tests.simulation.world_durations import USUAL
from tidegate.storage.leases.lease import Answer, End, Instruction, Lease, LeaseRecord, LeaseTimes, Over, Put, Stored


@pytest.mark.parametrize("seed", range(60))
def test_there_is_one_owner_per_epoch_whatever_fails(seed: int) -> None:
    run(World(seed))


def test_the_lease_moves_on_under_faults() -> None:
    assert min(run(World(seed, durations=USUAL)).log[-1][2] for seed in range(10)) > 2
    assert sum(run(World(seed)).log[-1][2] for seed in range(10)) > 50


def test_an_undisturbed_owner_keeps_it() -> None:
    world = run(World(1, faults=False))
    assert {epoch for _, _, epoch in world.log} == {1}


def test_a_released_lease_is_taken_at_once() -> None:
    world = World(2, drivers=2, faults=False)
    world.run(3_000)
    first = next(d for d in world.drivers if d.held())
    released = first.lease.release(first.now())
    assert released is not None
    assert not first.held()
    world.store.carry_out(released)
    world.run(3_500)
    (second,) = [d for d in world.drivers if d.held()]
    assert second is not first
    assert second.lease.epoch == 2


def test_a_lease_that_is_lost_stays_lost() -> None:
    world = World(3, drivers=2, faults=False)
    world.run(2_000)
    first = next(d for d in world.drivers if d.held())
    first.frozen_until = world.now + 5_000
    world.run(10_000)
    assert first.lease.state == Over(End.LOST)
    assert sum(d.held() for d in world.drivers) == 1


def test_something_that_is_no_record_is_waited_out() -> None:
    world = World(4, drivers=1, faults=False)
    world.store.stored = Stored(None, "garbage")
    world.run(900)
    assert world.log == []
    world.run(2_000)
    assert world.log[0][2] == 1


# ---------------------------------------------------------------- planted bugs


class Unchecked(World):
    """Writes whenever it once became the owner: no look at the lease before a write."""

    def may_write(self, lease: Lease, now_ms: float) -> bool:
        return lease.epoch > 0


class Impatient(World):
    def make_lease(self, name: str) -> Lease:
        class Planted(Lease):
            def _wait_ms(self, record: LeaseRecord | None) -> float:
                return self.times.lease_ms / 2

        return Planted(name, self.lease_times())


class WaitsAsLongAsItsOwnLease(World):
    """And not as long as the owner has said that it trusts its own."""

    def make_lease(self, name: str) -> Lease:
        class Planted(Lease):
            def _wait_ms(self, record: LeaseRecord | None) -> float:
                return self.times.lease_ms * (1 + self.times.drift)

        return Planted(name, self.lease_times())


class ClocksTakenForEqual(World):
    """Clocks that drift far apart, and a rival that looks often: seldom drawn together (seed 92 is the first)."""

    def __init__(self, seed: int) -> None:
        times = LeaseTimes(lease_ms=1000.0, renew_ms=300.0, look_ms=20.0, drift=0.3)
        super().__init__(seed, durations=dataclasses.replace(USUAL, times=times, rates=0.129, delay_ms=50.0))

    def make_lease(self, name: str) -> Lease:
        class Planted(Lease):
            def _wait_ms(self, record: LeaseRecord | None) -> float:
                return super()._wait_ms(record) / (1 + self.times.drift)

        return Planted(name, self.lease_times())


class TrustedFromTheAnswer(World):
    def make_lease(self, name: str) -> Lease:
        class Planted(Lease):
            def on_answer(self, answer: Answer, now_ms: float) -> Instruction | None:
                self._begun = dict.fromkeys(self._begun, now_ms)
                return super().on_answer(answer, now_ms)

        return Planted(name, self.lease_times())


class NeverRenewed(World):
    def make_lease(self, name: str) -> Lease:
        class Planted(Lease):
            def on_tick(self, now_ms: float) -> Instruction | None:
                return None if self.epoch and self.held(now_ms) else super().on_tick(now_ms)

        return Planted(name, self.lease_times())


class WithoutConditions(World):
    """Whoever writes last wins, as in a store that ignores the condition."""

    def __init__(self, seed: int, **arguments: int) -> None:
        super().__init__(seed, **arguments)  # type: ignore[arg-type]
        checked = self.store.carry_out

        def carry_out(instruction: Instruction) -> Answer:
            if isinstance(instruction, Put):
                expected = self.store.stored.version if self.store.stored is not None else None
                instruction = Put(instruction.record, expected)
            return checked(instruction)

        self.store.carry_out = carry_out  # type: ignore[method-assign]


class SameEpoch(World):
    def make_lease(self, name: str) -> Lease:
        class Planted(Lease):
            def _put(self, epoch: int, expected: str | None, now_ms: float) -> Instruction:
                return super()._put(1, expected, now_ms)

        return Planted(name, self.lease_times())


@pytest.mark.parametrize(
    "planted",
    [
        Unchecked,
        Impatient,
        WaitsAsLongAsItsOwnLease,
        ClocksTakenForEqual,
        TrustedFromTheAnswer,
        WithoutConditions,
        SameEpoch,
    ],
    ids=lambda p: p.__name__,
)
def test_planted_bugs_are_found(planted: Callable[[int], World]) -> None:
    for seed in range(60):
        try:
            run(planted(seed))
        except BrokenLease:
            return
    raise AssertionError("60 seeds did not find it")


def test_a_lease_that_is_not_renewed_is_found() -> None:
    epochs = {epoch for _, _, epoch in run(NeverRenewed(1, faults=False)).log}
    assert epochs != {1}


def test_times_that_cannot_work_are_refused() -> None:
    with pytest.raises(AssertionError):
        LeaseTimes(lease_ms=1000, renew_ms=900)
