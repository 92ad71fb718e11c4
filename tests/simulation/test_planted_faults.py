"""Bugs that only show when time, storage, messages or clocks misbehave: each is planted, and has to be found. (Those of
the protocol itself are in `test_planted_bugs.py`.)"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.faults import FaultPlan
from tests.simulation.led_drivers import LedDrivers
from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import IN_ROCKSDB, Mode, Variation
from tests.simulation.schedule import Schedule
from tests.simulation.simulation import Simulation
from tests.simulation.storage_faults import StorageFaults
from tests.simulation.test_planted_bugs import offset_of_the_batch_after
from tidegate.common.errors import InternalError, SnapshotError, StorageUnavailableError
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.task import BarrierTaskSide
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.restart_strategies import FailureRate, GiveUp
from tidegate.jobmanager.working_states import Restoring
from tidegate.protocol.messages import TriggerCheckpoint
from tidegate.storage import cleanup, files, job_directory, metadata, reader
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.work_queues import WorkQueues
from tidegate.taskmanager.failure import RestoreFailure

MAX_SEEDS = 300
Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.filterwarnings("ignore:.*never emits anything")


def what_cannot_be_read_counts_as_damaged(patch: Patch) -> None:
    """A storage that is away for a moment makes the job fall back."""
    patch.setattr(RestoreFailure, "proves_damage", property(lambda self: isinstance(self.cause, SnapshotError)))


def a_file_that_is_gone_for_good_counts_as_away(patch: Patch) -> None:
    patch.setattr(files, "is_gone", lambda files, path: False)
    patch.setattr(FaultPlan, "damage_share", 1.0)
    patch.setattr(StorageFaults, "metadata_share", 0.0)
    patch.setattr(StorageFaults, "kinds", ("lost",))


def checksums_are_not_checked(patch: Patch) -> None:
    patch.setattr(reader, "_is_whole", lambda data, handle: len(data) == handle.length)
    patch.setattr(FaultPlan, "damage_share", 1.0)


def the_record_goes_on_naming_what_was_refused(patch: Patch) -> None:
    """It is deleted like any other, and has taken the place of one that can be read."""
    patch.setattr(CheckpointCoordinator, "on_refused", lambda self, checkpoint_id: None)
    patch.setattr(FaultPlan, "damage_share", 1.0)


def metadata_of_another_checkpoint_counts(patch: Patch) -> None:
    """Intact, but in the wrong folder."""
    patch.setattr(metadata, "check_belongs", lambda metadata, directory, where: None)
    patch.setattr(FaultPlan, "damage_share", 1.0)
    patch.setattr(StorageFaults, "metadata_share", 1.0)
    patch.setattr(StorageFaults, "kinds", ("swapped",))


def two_drivers_write_into_one_checkpoint(patch: Patch) -> None:
    """A checkpoint gets a number that an earlier driver has used, whose workers write late, into files of one name."""
    patch.setattr(FileSystemStorage, "highest_checkpoint", lambda self: 0)
    patch.setattr(job_directory, "_task_file", lambda attempt, vertex, subtask: f"v{vertex}-s{subtask}.state")
    patch.setattr(Simulation, "late_share", 0.9)


def two_leaders_write_into_one_directory(patch: Patch) -> None:
    patch.setattr(LedDrivers, "next_directory", lambda self: self._sim.storage)


def metadata_that_was_not_written_counts(patch: Patch) -> None:
    write = FileSystemStorage.write_metadata

    def always(self: Any, metadata: Any) -> str:
        try:
            return write(self, metadata)
        except StorageUnavailableError:
            return ""

    patch.setattr(FileSystemStorage, "write_metadata", always)
    patch.setattr(StorageFaults, "trouble_share", 1.0)
    patch.setattr(StorageFaults, "rates", (0.2,))


def a_repeated_trigger_begins_a_checkpoint_again(patch: Patch) -> None:
    on_message = BarrierTaskSide.on_message

    def forgetful(self: Any, message: Any, now_ms: float) -> None:
        self._triggered = 0
        on_message(self, message, now_ms)

    patch.setattr(BarrierTaskSide, "on_message", forgetful)


def bytes_that_are_no_message_end_the_job_manager(patch: Patch) -> None:
    def dies(self: Any, incarnation: str, problem: str, permanent: bool, now_ms: float) -> Any:
        raise InternalError(problem)

    patch.setattr(JobMaster, "on_unreadable", dies)


def a_source_goes_by_the_clock_of_the_driver(patch: Patch) -> None:
    """It takes a barrier from the future for a mistake."""
    on_message = BarrierTaskSide.on_message

    def not_yet(self: Any, message: Any, now_ms: float) -> None:
        if not isinstance(message, TriggerCheckpoint) or message.barrier.timestamp <= now_ms + 1:
            on_message(self, message, now_ms)

    patch.setattr(BarrierTaskSide, "on_message", not_yet)


def the_failure_rate_counts_old_failures(patch: Patch) -> None:
    def for_ever(self: Any, now_ms: float) -> Any:
        self._recent.append(now_ms)
        return GiveUp("too many") if len(self._recent) > self._max_failures else on_failure(self, now_ms)

    on_failure = FailureRate.on_failure
    patch.setattr(FailureRate, "on_failure", for_ever)


def files_go_though_their_metadata_stays(patch: Patch) -> None:
    """When the metadata of a checkpoint cannot be deleted, the rest of it is."""
    patch.setattr(cleanup, "METADATA_NAME", "nothing is called so")


def a_restore_may_take_for_ever(patch: Patch) -> None:
    patch.setattr(Restoring, "_ready_by", math.inf)
    patch.setattr(Schedule, "stuck_restores", 1.0)


def deletions_overtake_writes(patch: Patch) -> None:
    """A checkpoint that was aborted while its metadata was being written is deleted before the write has ended."""
    patch.setattr(WorkQueues, "_is_behind_writes", lambda self, work: False)
    patch.setattr(Schedule, "hangs", lambda self: not self.calm and self.rng.random() < 0.2)


BUGS: list[tuple[Callable[[Patch], None], Mode, Variation]] = [
    (what_cannot_be_read_counts_as_damaged, Mode.ALIGNED, Variation.PLAIN),
    (a_file_that_is_gone_for_good_counts_as_away, Mode.ALIGNED, Variation.PLAIN),
    (checksums_are_not_checked, Mode.ALIGNED, Variation.PLAIN),
    (checksums_are_not_checked, Mode.ALIGNED, Variation.LED),
    (the_record_goes_on_naming_what_was_refused, Mode.UNALIGNED, Variation.LED),
    (metadata_of_another_checkpoint_counts, Mode.ALIGNED, Variation.PLAIN),
    (two_drivers_write_into_one_checkpoint, Mode.UNALIGNED, Variation.RESCALE),
    (two_leaders_write_into_one_directory, Mode.ALIGNED, Variation.LED),
    (metadata_that_was_not_written_counts, Mode.ALIGNED, Variation.PLAIN),
    (a_repeated_trigger_begins_a_checkpoint_again, Mode.UNALIGNED, Variation.PLAIN),
    (bytes_that_are_no_message_end_the_job_manager, Mode.ALIGNED, Variation.PLAIN),
    (a_source_goes_by_the_clock_of_the_driver, Mode.ALIGNED, Variation.PLAIN),
    (the_failure_rate_counts_old_failures, Mode.ALIGNED, Variation.PLAIN),
    (files_go_though_their_metadata_stays, Mode.CONCURRENT, Variation.PLAIN),
    (a_restore_may_take_for_ever, Mode.ALIGNED, Variation.PLAIN),
    (deletions_overtake_writes, Mode.ALIGNED, Variation.PLAIN),
    (offset_of_the_batch_after, Mode.AT_LEAST_ONCE, Variation.TIME),
]


@pytest.mark.parametrize(
    ("plant", "mode", "variation"), BUGS, ids=[f"{bug[0].__name__}-{bug[2].value}" for bug in BUGS]
)
def test_a_planted_bug_is_found(
    plant: Callable[[Patch], None], mode: Mode, variation: Variation, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    for in_rocksdb in (Variation.TIME, Variation.RESCALE):  # soonest found where schedules are quick
        monkeypatch.setitem(IN_ROCKSDB, in_rocksdb, 0.0)
    for seed in range(MAX_SEEDS):
        try:
            run_seed(seed, mode, variation=variation)
        except SimulationFailed:
            return
    pytest.fail(f"{plant.__name__} went unnoticed in {MAX_SEEDS} schedules")
