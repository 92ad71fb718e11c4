"""Bugs that only show when time, storage, messages or clocks misbehave: each is planted, and has to be found. (Those of
the protocol itself are in `test_planted_bugs.py`.)"""

from __future__ import annotations

import contextlib
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
from tests.simulation.storage_host import SimStorageThreads
from tests.simulation.test_planted_bugs import offset_of_the_batch_after
from tidegate.common.errors import InternalError, SnapshotError, StorageUnavailableError
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.task import BarrierTaskSide
from tidegate.jobmanager.gang_monitor import GangMonitor
from tidegate.jobmanager.job import Job
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.restart_strategies import FailureRate, GiveUp
from tidegate.jobmanager.working_states import Restoring
from tidegate.protocol.messages import TriggerCheckpoint
from tidegate.storage import cleanup, files, job_directory, metadata, reader
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.work_queues import WorkQueues
from tidegate.storage.writers import FileTaskStateWriter
from tidegate.taskmanager import commit_retries
from tidegate.taskmanager.commit_retries import CommitOutcome
from tidegate.taskmanager.failure import RestoreFailure
from tidegate.taskmanager.operators import sink

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


def metadata_is_damaged_by_one_answer(patch: Patch) -> None:
    """A starting driver passes over a checkpoint, or lets its files be deleted, for one read that went wrong."""
    patch.setattr(metadata, "_not_by_one_answer", lambda read: read())
    patch.setattr(StorageFaults, "garble_share", 1.0)


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


def processes_go_by_the_wall_clock(patch: Patch) -> None:
    """Which somebody sets while they run."""

    class WallClock:
        def __init__(self, schedule: Any) -> None:
            self._schedule = schedule

        def now_ms(self) -> float:
            return float(self._schedule.clock.now_ms() + self._schedule._wall_ms)

        def true_ms(self, time_ms: float) -> float:
            return float(time_ms - self._schedule._wall_ms)

    patch.setattr(Schedule, "new_clock", lambda self: WallClock(self))
    patch.setattr(FaultPlan, "jumps", (3,))


def a_full_storage_is_not_noticed(patch: Patch) -> None:
    """A worker acknowledges what the storage did not take."""
    close = FileTaskStateWriter.close

    def regardless(self: FileTaskStateWriter) -> None:
        with contextlib.suppress(StorageUnavailableError):
            close(self)

    patch.setattr(FileTaskStateWriter, "close", regardless)


def commits_are_given_up_in_silence(patch: Patch) -> None:
    """When the target has been away for longer than they are tried."""

    def once(*arguments: Any) -> CommitOutcome:
        return commit_retries.commit_with_retries(*arguments)._replace(left=[])

    patch.setattr(sink, "commit_with_retries", once)


def workers_that_do_not_leave_are_not_killed(patch: Patch) -> None:
    """One that hangs in a commit outlives its job."""
    patch.setattr(Job, "kill", lambda self, gang: None)
    patch.setattr(FaultPlan, "commit_hang_share", 1.0)


def a_slot_behind_a_partition_counts_as_alive(patch: Patch) -> None:
    patch.setattr(GangMonitor, "silence", lambda self, now_ms: None)
    patch.setattr(GangMonitor, "_silent_at", lambda self, member: math.inf)
    patch.setattr(FaultPlan, "partition_share", 1.0)


def a_write_that_never_returns_holds_up_all_others(patch: Patch) -> None:
    """No other thread takes the place of the one that is stuck."""
    patch.setattr(SimStorageThreads, "watch", lambda self, stuck: None)
    patch.setattr(SimStorageThreads, "stuck_share", 1.0)
    patch.setattr(Schedule, "hangs", lambda self: not self.calm and self.rng.random() < 0.1)


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
NEED_HARSHER_FAULTS: list[tuple[Callable[[Patch], None], Mode, Variation]] = [
    (metadata_is_damaged_by_one_answer, Mode.UNALIGNED, Variation.RESCALE),
    (processes_go_by_the_wall_clock, Mode.ALIGNED, Variation.PLAIN),
    (a_full_storage_is_not_noticed, Mode.ALIGNED, Variation.PLAIN),
    (commits_are_given_up_in_silence, Mode.ALIGNED, Variation.PLAIN),
    (workers_that_do_not_leave_are_not_killed, Mode.ALIGNED, Variation.PLAIN),
    (a_slot_behind_a_partition_counts_as_alive, Mode.ALIGNED, Variation.PLAIN),
    (a_write_that_never_returns_holds_up_all_others, Mode.ALIGNED, Variation.PLAIN),
]


@pytest.mark.parametrize(
    ("plant", "mode", "variation", "harsher"),
    [(*bug, bug in NEED_HARSHER_FAULTS) for bug in BUGS + NEED_HARSHER_FAULTS],
    ids=[f"{bug[0].__name__}-{bug[2].value}" for bug in BUGS + NEED_HARSHER_FAULTS],
)
def test_a_planted_bug_is_found(
    plant: Callable[[Patch], None], mode: Mode, variation: Variation, harsher: bool, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    for in_rocksdb in (Variation.TIME, Variation.RESCALE):  # soonest found where schedules are quick
        monkeypatch.setitem(IN_ROCKSDB, in_rocksdb, 0.0)
    for seed in range(MAX_SEEDS):
        try:
            run_seed(seed, mode, variation=variation, harsher=harsher)
        except SimulationFailed:
            return
    pytest.fail(f"{plant.__name__} went unnoticed in {MAX_SEEDS} schedules")
