"""At most one driver decides per epoch, and no checkpoint is lost, doubled or resurrected, whatever fails; and planted
bugs are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.leader_world import Checkpoint, LeaderDriver, LeaderWorld
from tests.simulation.leader_world import run_leader_world as run
from tests.simulation.lease_world import BrokenLease
from tests.simulation.world_durations import USUAL
from tidegate.jobmanager.leadership.record_claim import (
    Claiming,
    RecordAnswer,
    RecordClaim,
    RecordFound,
    RecordInstruction,
)
from tidegate.storage.leases.lease import Instruction, Lease


@pytest.mark.parametrize("seed", range(60))
def test_what_is_committed_is_one_chain_whatever_fails(seed: int) -> None:
    run(LeaderWorld(seed))


def test_leaders_change_and_checkpoints_are_made_under_faults() -> None:
    worlds = [run(LeaderWorld(seed, durations=USUAL)) for seed in range(10)]
    assert min(len(world.epochs) for world in worlds) > 2
    assert min(len(world.target.chain) for world in worlds) > 20
    worlds = [run(LeaderWorld(seed)) for seed in range(10)]
    assert sum(len(world.epochs) for world in worlds) > 50
    assert sum(len(world.target.chain) for world in worlds) > 200


def test_an_undisturbed_leader_stays() -> None:
    assert list(run(LeaderWorld(1, faults=False)).epochs) == [1]


# ---------------------------------------------------------------- planted bugs


class NoEpochCheck(LeaderWorld):
    """The record is written whoever has written it before."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.records.conditional = False


class NotSealed(LeaderWorld):
    """A leader begins with what it has read, and does not first put its own epoch into the record."""

    def make_claim(self, name: str) -> RecordClaim:
        class Planted(RecordClaim):
            def on_answer(self, answer: RecordAnswer, now_ms: float, held: bool) -> RecordInstruction | None:
                if isinstance(answer, RecordFound) and isinstance(self.state, Claiming) and answer.record is not None:
                    self._asked = False
                    assert answer.version is not None
                    return self._own(self._signed(answer.record, answer.record.epoch + 1), answer.version)
                return super().on_answer(answer, now_ms, held)

        return Planted(name, super().make_claim(name).candidate, "the record", retry_ms=self.durations.retry_ms)


class RecordBeforeMetadata(LeaderWorld):
    def begin_checkpoint(self, driver: LeaderDriver, checkpoint: Checkpoint) -> None:
        self.target.prepare(checkpoint)
        driver.record(checkpoint)
        driver.write_metadata(checkpoint)


class CommittedBeforeTheRecord(LeaderWorld):
    def begin_checkpoint(self, driver: LeaderDriver, checkpoint: Checkpoint) -> None:
        super().begin_checkpoint(driver, checkpoint)
        self.later(self.delay() + self.durations.times.lease_ms / 10, lambda: self.target.commit(checkpoint))


class GivenUpTooEarly(LeaderWorld):
    """A write that was not answered counts as not done: the next checkpoint is built upon the one before."""

    def make_claim(self, name: str) -> RecordClaim:
        class Planted(RecordClaim):
            def _on_found(self, record: object, version: str | None, held: bool) -> RecordInstruction | None:
                if self._under_way is not None and self._wanted and version is not None:
                    self._wanted.popleft()
                    self._under_way = None
                    assert not isinstance(self.state, Claiming)
                    return self._own_again(record, version)
                return super()._on_found(record, version, held)  # type: ignore[arg-type]

            def _own_again(self, record: object, version: str) -> RecordInstruction | None:
                self.state = type(self.state)(record, version)  # type: ignore[call-arg, arg-type]
                return self._next()

        return Planted(name, super().make_claim(name).candidate, "the record", retry_ms=self.durations.retry_ms)


@pytest.mark.parametrize(
    "planted",
    [NoEpochCheck, NotSealed, RecordBeforeMetadata, CommittedBeforeTheRecord, GivenUpTooEarly],
    ids=lambda p: p.__name__,
)
def test_planted_bugs_are_found(planted: Callable[[int], LeaderWorld]) -> None:
    for seed in range(100):
        try:
            run(planted(seed))
        except BrokenLease:
            return
    raise AssertionError("100 seeds did not find it")


class NeverRenewed(LeaderWorld):
    def make_lease(self, name: str) -> Lease:
        class Planted(Lease):
            def on_tick(self, now_ms: float) -> Instruction | None:
                return None if self.epoch and self.held(now_ms) else super().on_tick(now_ms)

        return Planted(name, self.lease_times())


def test_a_lease_that_is_not_renewed_is_found() -> None:
    assert len(run(NeverRenewed(1, faults=False)).epochs) > 1
