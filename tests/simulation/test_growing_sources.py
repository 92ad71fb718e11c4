"""Random jobs whose sources get splits while they run: found during checkpoints, sent as workers and drivers die, at
another parallelism after that. No split is lost, none is read twice. And the simulator finds what would break that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import Mode, Variation
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.jobmanager.split_discovery import SplitDiscovery, _Known
from tidegate.storage.handles import EnumeratorState
from tidegate.taskmanager.operators.source import SourceOperator

SEEDS = {
    Mode.NONE: range(6),  # only with savepoints, and without failures
    Mode.ALIGNED: range(20),
    Mode.CONCURRENT: range(10),
    Mode.UNALIGNED: range(12),
    Mode.AT_LEAST_ONCE: range(6),
}
MAX_SEEDS = 150
Patch = pytest.MonkeyPatch


def test_splits_that_turn_up_are_read_once() -> None:
    seen: Counter[str] = Counter()
    for mode, seeds in SEEDS.items():
        for seed in seeds:
            run = run_seed(seed, mode, mode is not Mode.NONE, Variation.GROWING)
            assert run.restarts is not None
            seen["rescaled"] += run.restarts.rescaled
            seen["from a savepoint"] += run.restarts.from_savepoint
            seen["restored"] += len(run.restored)
            seen["found while it ran"] += sum(run.world.splits_there.values())
    assert {"found while it ran", "rescaled", "from a savepoint", "restored"} <= set(+seen), seen


# ---------------------------------------------------------------- planted bugs


def known_at_completion_instead_of_the_trigger(patch: Patch) -> None:
    """A split that was sent behind the barrier is known, and nobody's."""
    begin, write = SplitDiscovery.begin, CheckpointCoordinator._write_metadata
    latest: list[SplitDiscovery] = []

    def remember(self: SplitDiscovery, *arguments: Any) -> None:
        latest[:] = [self]
        begin(self, *arguments)

    def as_of_now(self: Any, pending: Any, now_ms: float) -> None:
        pending._enumerators = latest[0].states()
        write(self, pending, now_ms)

    patch.setattr(SplitDiscovery, "begin", remember)
    patch.setattr(CheckpointCoordinator, "_write_metadata", as_of_now)


def enumerator_not_in_the_checkpoint(patch: Patch) -> None:
    """What was read to its end is found again."""
    patch.setattr(SplitDiscovery, "states", lambda self: {})


def only_first_splits_are_remembered(patch: Patch) -> None:
    """After a recovery splits that the readers have are handed out once more."""

    def forget(self: _Known) -> EnumeratorState:
        return self.source.first

    patch.setattr(_Known, "state", property(forget))
    patch.setattr(SplitDiscovery, "on_restored", lambda self, operator_id, names: None)


def repetitions_are_taken(patch: Patch) -> None:
    """A message that comes twice adds its splits twice."""
    take = SourceOperator.take_splits

    def again(self: Any, number: int, payloads: list[bytes], complete: bool) -> None:
        self._messages = number - 1
        take(self, number, payloads, complete)

    patch.setattr(SourceOperator, "take_splits", again)


def splits_of_the_latest_message_are_not_in_the_snapshot(patch: Patch) -> None:
    take, update = SourceOperator.take_splits, SourceOperator.update_state

    def remember(self: Any, number: int, payloads: list[bytes], complete: bool) -> None:
        before = len(self._splits)
        take(self, number, payloads, complete)
        self.planted = {s.split.split_id for s in self._splits[before:]}

    def without(self: Any, checkpoint_id: Any, timestamp: int) -> None:
        update(self, checkpoint_id, timestamp)
        fresh = getattr(self, "planted", set())
        self._state.update([e for e in self._state.get() if e[0].split_id not in fresh])

    patch.setattr(SourceOperator, "take_splits", remember)
    patch.setattr(SourceOperator, "update_state", without)


BUGS: list[tuple[Callable[[Patch], None], Mode]] = [
    (known_at_completion_instead_of_the_trigger, Mode.ALIGNED),
    (enumerator_not_in_the_checkpoint, Mode.ALIGNED),
    (only_first_splits_are_remembered, Mode.ALIGNED),
    (repetitions_are_taken, Mode.ALIGNED),
    (splits_of_the_latest_message_are_not_in_the_snapshot, Mode.UNALIGNED),
]


@pytest.mark.parametrize(("plant", "mode"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_a_bug_of_the_hand_over_is_found(plant: Callable[[Patch], None], mode: Mode, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    found = _first_failure(mode)
    assert found is not None, f"{plant.__name__} went unnoticed in {MAX_SEEDS} schedules"
    assert any(word in found for word in ("lost", "doubled", "counted", "history")), found


def _first_failure(mode: Mode) -> str | None:
    for seed in range(MAX_SEEDS):
        try:
            run_seed(seed, mode, variation=Variation.GROWING)
        except SimulationFailed as failure:
            return str(failure)
    return None
