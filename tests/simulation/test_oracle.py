"""What the simulator holds against a run and what it excuses, without a run."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.simulation.fake_storage import FakeStorage
from tests.simulation.fall_backs import FallBacks
from tests.simulation.faults import FaultPlan
from tests.simulation.outside_world import BrokenPromise
from tests.simulation.scenario import Mode, draw_scenario
from tests.simulation.sim_clock import SimClock
from tests.simulation.simulation import Simulation
from tests.unit.jobmanager.jobmanager_kit import KEYED, increment, keyed_state, metadata, operator, operator_metadata
from tidegate.common.errors import SnapshotError
from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.jobmanager.preparation import other_checkpoints
from tidegate.protocol.messages import DeclineCheckpoint, DeclineReason
from tidegate.storage import filesystem
from tidegate.storage.handles import CheckpointMetadata

CLOSED = "SnapshotError: operator 'Windows': the task was closed before its snapshot could be written"


def declined(detail: str, in_progress: tuple[int, ...]) -> None:
    sim = SimpleNamespace(coordinator=SimpleNamespace(in_progress=in_progress))
    plan = cast(Any, SimpleNamespace(_sim=sim))
    message = DeclineCheckpoint(
        attempt=AttemptNumber(0),
        vertex=VertexId(9),
        subtask=SubtaskIndex(0),
        checkpoint_id=CheckpointId(5),
        reason=DeclineReason.WRITE_FAILED,
        detail=detail,
    )
    FaultPlan.check_decline(plan, message)


def test_a_task_that_has_ended_may_decline_a_checkpoint_that_is_over() -> None:
    declined(CLOSED, in_progress=(6,))


@pytest.mark.parametrize("detail", [CLOSED, "SnapshotError: the RocksDB database is gone", "TypeError"])
def test_a_checkpoint_under_way_is_not_declined_without_a_fault(detail: str) -> None:
    with pytest.raises(BrokenPromise, match="declined a checkpoint by itself"):
        declined(detail, in_progress=(5,))


# ---------------------------------------------------------------- falling back


def fall_backs(damaged: str = "chk-3/file") -> FallBacks:
    """Of a job that has kept checkpoints 1 to 3, and in whose directory one file is damaged."""
    storage = FakeStorage()
    storage.fake_files.damaged[damaged] = "rotten"
    kept = [SimpleNamespace(checkpoint_id=CheckpointId(n)) for n in (1, 2, 3)]
    sim = SimpleNamespace(
        storage=storage,
        coordinator=SimpleNamespace(
            store=SimpleNamespace(checkpoints=kept), settings=SimpleNamespace(max_concurrent=1)
        ),
        world=SimpleNamespace(completed={1: (0, 0), 2: (0, 0), 3: (0, 0)}, rewind=lambda n: None),
    )
    made = FallBacks(cast(Any, sim))
    state = keyed_state(0, 128, increment(3, "chk-3/file"))
    made.on_writing(metadata(operator_metadata(KEYED, operator(KEYED, state)), checkpoint_id=3))
    return made


def text(refused: int, to: int) -> str:
    return f"checkpoint {refused} is damaged (checksum); falling back to checkpoint {to}: what was read"


def test_a_job_falls_back_from_what_is_damaged_to_the_nearest() -> None:
    found = fall_backs()
    found.on_log(text(3, 2))
    assert found.times == 1


def test_a_job_does_not_fall_back_when_something_else_is_damaged() -> None:
    with pytest.raises(BrokenPromise, match="nobody has damaged it"):
        fall_backs("chk-2/file").on_log(text(3, 2))


def test_a_job_does_not_fall_back_further_than_it_must() -> None:
    with pytest.raises(BrokenPromise, match="checkpoint 2 is nearer"):
        fall_backs().on_log(text(3, 1))


def test_only_results_that_were_delivered_since_may_come_again() -> None:
    found = fall_backs()
    checkpoints = found._sim.coordinator.store.checkpoints  # type: ignore[union-attr]
    later = [checkpoints.pop(), checkpoints.pop(), checkpoints.pop()]
    for record in range(4):
        found.on_results("sink", [((record,), ())])
        if later:
            checkpoints.append(later.pop())
    found.on_log(text(3, 2))
    assert sorted(found.excused["sink"]) == [(1,), (2,), (3,)]  # the first left before any checkpoint was complete


# ---------------------------------------------------------------- jobs that hang


def test_the_steps_of_a_job_that_hangs_count_from_when_a_frozen_worker_goes_on() -> None:
    """It finds what was sent to it meanwhile for hundreds of checkpoints, and has that to work off."""
    sim: Any = Simulation(draw_scenario(7, Mode.ALIGNED, faulty=True))
    thaw: list[Callable[[], None]] = []
    sim.after = lambda ms, do: thaw.append(do)
    sim.steps = 50_000
    slot = SimpleNamespace(frozen=False, receive_or_wait=lambda: None, wake=lambda: None)
    sim.freeze(slot, 2_000.0)
    assert sim.went_on_at == 0
    sim.steps = 59_000
    thaw[0]()
    assert sim.went_on_at == 59_000


# ---------------------------------------------------------------- drivers that start


def starting(look: Callable[[FakeStorage, RestorePoint], Any], fails: str) -> tuple[Any, int]:
    """What a driver sees that starts from checkpoint 3 of three, when an operation fails once; and how often it could
    not start."""
    storage = FakeStorage()
    for n in (1, 2, 3):
        storage.write_metadata(metadata(checkpoint_id=n))
    storage.fake_files.fail_next(fails)
    sim = SimpleNamespace(
        storage=storage,
        undisturbed=storage.fake_files.undisturbed,
        struck=Counter(),
        trace=lambda text: None,
        clock=SimClock(),
        rng=random.Random(1),
    )
    point = RestorePoint(metadata(checkpoint_id=3), storage.root, owned=True)
    seen = Simulation.look_again(cast(Any, sim), "the others", lambda: look(storage, point))
    return seen, sum(sim.struck.values())


@pytest.mark.parametrize("fails", ["read", "list"])
def test_a_driver_that_cannot_read_at_its_start_is_started_again(fails: str) -> None:
    others, failed = starting(other_checkpoints, fails)
    assert [other.checkpoint_id for other in others] == [1, 2]
    assert failed == 1


def test_the_nearest_aligned_checkpoint_is_not_passed_over() -> None:
    def nearest(storage: FakeStorage, point: RestorePoint) -> Any:
        with patch.object(filesystem, "storage_in", lambda location: storage):
            return filesystem.latest_aligned(point.root, point.checkpoint_id)

    found, failed = starting(nearest, "read")
    assert (found.checkpoint_id, failed) == (2, 1)


def test_a_driver_that_overlooks_what_it_cannot_read_is_found() -> None:
    def readable(storage: FakeStorage, point: RestorePoint) -> list[CheckpointMetadata]:
        found = []
        for n in storage.completed_checkpoints():
            with contextlib.suppress(SnapshotError):
                found.append(storage.read_metadata(n))
        return found

    with pytest.raises(BrokenPromise, match="a starting driver takes"):
        starting(readable, "read")
