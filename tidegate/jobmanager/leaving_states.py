"""The states of a job without a gang that works: not started yet, between two attempts, on its way to the end, ended.

A gang that was told to leave has a time to do so; then Spark is asked to kill what is left. Its exit may come before or
after that, or during the delay of a restart, or never: each state says what it means there."""

from __future__ import annotations

from typing import assert_never

from tidegate.common.errors import InternalError, check_internal
from tidegate.common.ids import AttemptNumber
from tidegate.common.job_status import JobStatus
from tidegate.jobmanager.gang import Gang
from tidegate.jobmanager.job import Job, told
from tidegate.jobmanager.job_state import Due, JobState
from tidegate.jobmanager.restart_strategies import GiveUp, RestartAfter, RestartDecision
from tidegate.protocol.instructions import JobEnded
from tidegate.protocol.messages import FailureInfo, SlotToMaster, TaskFailed

_METADATA_GRACE_MS = 2_500.0  # how long the end of a job waits for metadata that is being written
_WHILE_LEAVING = {
    JobStatus.FINISHED: JobStatus.RUNNING,
    JobStatus.FAILED: JobStatus.FAILING,
    JobStatus.CANCELED: JobStatus.CANCELLING,
    JobStatus.SUSPENDED: JobStatus.FAILING,
}


def lost_workers(attempt: AttemptNumber, error: str | None) -> FailureInfo:
    """What the exit of a gang means that was not told to leave."""
    if error is None:
        return FailureInfo(summary=f"the workers of attempt {attempt} went away before the job was finished")
    return FailureInfo(summary=f"the workers of attempt {attempt} were lost: {error}")


def lost_engine(error: str) -> FailureInfo:
    """There is nothing any more that could run workers."""
    return FailureInfo(summary=f"Spark is gone, and with it the workers: {error}", permanent=True)


class Created(JobState):
    """Nothing runs yet."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, None)

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return (JobStatus.CREATED,)

    def next_deadline(self) -> None:
        return None

    def start(self, now_ms: float) -> Due:
        self.job.started_ms = now_ms
        return Due(AttemptNumber(0))

    def on_tick(self, now_ms: float) -> Created:
        return self

    def on_message(self, message: SlotToMaster, now_ms: float) -> Created:
        raise InternalError(f"{type(message).__name__} of a gang that was never submitted")

    def on_gang_exit(self, error: str | None, now_ms: float) -> Created:
        raise InternalError("the exit of a gang that was never submitted")

    def on_cancel(self, now_ms: float) -> Ended:
        self.job.show(JobStatus.CANCELLING)
        return end(self.job, None, JobStatus.CANCELED, "", now_ms)

    def on_deposed(self, reason: str, now_ms: float) -> Ended:
        return end(self.job, None, JobStatus.SUSPENDED, reason, now_ms)


# ---------------------------------------------------------------- after a failure


def after_failure(
    job: Job, gang: Gang, failed_at_ms: float, leave_by_ms: float, decision: RestartDecision
) -> Failing | Ending:
    """The attempt has failed, and its gang was told to leave."""
    match decision:
        case RestartAfter(delay_ms):
            return Failing(job, gang, failed_at_ms, leave_by_ms, failed_at_ms + delay_ms)
        case GiveUp(reason):
            return Ending(job, gang, JobStatus.FAILED, leave_by_ms, reason, failed_at_ms)
        case _:
            assert_never(decision)


def better_cause(job: Job, message: TaskFailed, now_ms: float) -> RestartDecision | None:
    """A slot tells of a failure while the gang is leaving: kept when what is known so far only followed from it.
    Returns what follows when that is something else now."""
    failure = message.failure
    job.fence(message)
    if failure.consequence or not job.failures.latest_is_consequence():
        return None
    job.failures.replace_latest(failure)
    job.tell_of(job.failures.entries[-1].attempt, failure)
    if failure.permanent or failure.corrupt_checkpoint:
        return job.decide(failure, now_ms)
    given_up = job.policy.on_known_cause(failure)
    if given_up is not None:
        job.failures.decided(told(given_up))
    return given_up


class Failing(JobState):
    """An attempt has failed and another one follows. The gang leaves, and the delay of the restart strategy runs."""

    gang: Gang

    def __init__(self, job: Job, gang: Gang, failed_at_ms: float, leave_by_ms: float, restart_at_ms: float) -> None:
        super().__init__(job, gang)
        self._failed_at = failed_at_ms
        self._leave_by = leave_by_ms
        self._restart_at = restart_at_ms

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return (JobStatus.FAILING,)

    def next_deadline(self) -> float:
        return self._leave_by

    def on_tick(self, now_ms: float) -> Failing | RestartDelay | Due:
        if now_ms < self._leave_by:
            return self
        self.job.kill(self.gang)
        return self._restart(now_ms)

    def on_message(self, message: SlotToMaster, now_ms: float) -> Failing | Ending:
        if not isinstance(message, TaskFailed):
            self.job.fence(message)
            return self
        decision = better_cause(self.job, message, now_ms)
        if decision is None:
            return self
        return after_failure(self.job, self.gang, self._failed_at, self._leave_by, decision)

    def on_gang_exit(self, error: str | None, now_ms: float) -> RestartDelay | Due:
        self.gang.exited = True
        if error is not None and self.job.failures.latest_is_consequence():
            self.job.failures.replace_latest(lost_workers(self.gang.attempt, error))
        return self._restart(now_ms)

    def on_engine_gone(self, error: str, now_ms: float) -> Settling | Ended:
        self.gang.exited = self.job.engine_gone = True
        if self.job.failures.latest_is_consequence():
            self.job.failures.replace_latest(lost_engine(error))
        return settle(self.job, self.gang, JobStatus.FAILED, lost_engine(error).summary, now_ms)

    def on_cancel(self, now_ms: float) -> Ending:
        self.job.show(JobStatus.CANCELLING)
        return Ending(self.job, self.gang, JobStatus.CANCELED, self._leave_by)

    def on_deposed(self, reason: str, now_ms: float) -> Ending | Ended:
        return suspend(self.job, self.gang, reason, now_ms)

    def _restart(self, now_ms: float) -> RestartDelay | Due:
        self.job.show(JobStatus.RESTARTING)
        if self._restart_at <= now_ms:
            return Due(AttemptNumber(self.gang.attempt + 1))
        return RestartDelay(self.job, self.gang, self._restart_at)

    def check_invariants(self) -> None:
        super().check_invariants()
        check_internal(not self.gang.exited, "a gang that is gone is waited for")


class RestartDelay(JobState):
    """The next attempt is submitted when the delay is over. The gang of the last one has left, or Spark was asked to
    kill it: in the second case its exit may still be told."""

    gang: Gang

    def __init__(self, job: Job, gang: Gang, restart_at_ms: float) -> None:
        super().__init__(job, gang)
        self._restart_at = restart_at_ms

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return (JobStatus.RESTARTING,)

    def next_deadline(self) -> float:
        return self._restart_at

    def on_tick(self, now_ms: float) -> RestartDelay | Due:
        return self if now_ms < self._restart_at else Due(AttemptNumber(self.gang.attempt + 1))

    def on_message(self, message: SlotToMaster, now_ms: float) -> RestartDelay:
        self.job.fence(message)
        return self

    def on_gang_exit(self, error: str | None, now_ms: float) -> RestartDelay:
        self.gang.exited = True
        return self

    def on_cancel(self, now_ms: float) -> Ending | Settling | Ended:
        self.job.show(JobStatus.CANCELLING)
        if self.gang.exited:
            return settle(self.job, self.gang, JobStatus.CANCELED, "", now_ms)
        return Ending(self.job, self.gang, JobStatus.CANCELED, now_ms + self.job.settings.leave_grace_ms)

    def on_deposed(self, reason: str, now_ms: float) -> Ending | Ended:
        return suspend(self.job, self.gang, reason, now_ms)

    def check_invariants(self) -> None:
        super().check_invariants()
        check_internal(self.gang.exited or self.gang.killed, "the last gang is neither gone nor killed")


# ---------------------------------------------------------------- the end


def suspend(job: Job, gang: Gang, reason: str, now_ms: float) -> Ending | Ended:
    """Another JobManager goes on with the job. What is left of the gang is not waited for: Spark kills it."""
    job.show(JobStatus.FAILING)
    job.kill(gang)
    if gang.exited:
        return end(job, gang, JobStatus.SUSPENDED, reason, now_ms)
    return Ending(job, gang, JobStatus.SUSPENDED, now_ms + job.settings.leave_grace_ms, reason)


class Ending(JobState):
    """The job ends as `outcome` when its gang has left. Spark is given as long again to kill what has not, so that
    nothing outlives the job; after that it ends in any case."""

    gang: Gang

    def __init__(
        self,
        job: Job,
        gang: Gang,
        outcome: JobStatus,
        leave_by_ms: float,
        reason: str = "",
        failed_at_ms: float = 0.0,
    ) -> None:
        super().__init__(job, gang)
        self._outcome = outcome
        self._leave_by = leave_by_ms
        self._reason = reason  # why there is no further restart, when FAILED
        self._failed_at = failed_at_ms  # likewise

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return (_WHILE_LEAVING[self._outcome],)

    def next_deadline(self) -> float:
        return self._leave_by

    def on_tick(self, now_ms: float) -> Ending | Ended:
        if now_ms < self._leave_by:
            return self
        if self.gang.killed:
            return end(self.job, self.gang, self._outcome, self._reason, now_ms)
        self.job.kill(self.gang)
        self._leave_by = now_ms + self.job.settings.leave_grace_ms
        return self

    def on_message(self, message: SlotToMaster, now_ms: float) -> Failing | Ending:
        if not isinstance(message, TaskFailed) or self._outcome is not JobStatus.FAILED:
            self.job.fence(message)
            return self
        decision = better_cause(self.job, message, now_ms)
        if decision is None:
            return self
        return after_failure(self.job, self.gang, self._failed_at, self._leave_by, decision)

    def on_gang_exit(self, error: str | None, now_ms: float) -> Settling | Ended:
        self.gang.exited = True
        failed = self._outcome is JobStatus.FAILED
        if failed and error is not None and self.job.failures.latest_is_consequence():
            self.job.failures.replace_latest(lost_workers(self.gang.attempt, error))
        return settle(self.job, self.gang, self._outcome, self._reason, now_ms)

    def on_cancel(self, now_ms: float) -> Ending:
        """A job that has committed everything already still finishes."""
        if self._outcome is not JobStatus.FAILED:
            return self
        self.job.show(JobStatus.CANCELLING)
        return Ending(self.job, self.gang, JobStatus.CANCELED, self._leave_by)

    def on_deposed(self, reason: str, now_ms: float) -> Ending | Ended:
        return self if self._outcome is JobStatus.SUSPENDED else suspend(self.job, self.gang, reason, now_ms)

    def check_invariants(self) -> None:
        super().check_invariants()
        check_internal(not self.gang.exited, "a gang that is gone is waited for")


def settle(job: Job, gang: Gang, outcome: JobStatus, reason: str, now_ms: float) -> Settling | Ended:
    """No gang is left."""
    if not job.model.awaits_storage or outcome is JobStatus.SUSPENDED:
        return end(job, gang, outcome, reason, now_ms)
    return Settling(job, gang, outcome, reason, now_ms + min(job.settings.leave_grace_ms, _METADATA_GRACE_MS))


class Settling(JobState):
    """The gang is gone, and the storage still works for the model: the job waits for that for a moment."""

    gang: Gang

    def __init__(self, job: Job, gang: Gang, outcome: JobStatus, reason: str, until_ms: float) -> None:
        super().__init__(job, gang)
        self._outcome = outcome
        self._reason = reason
        self._until = until_ms

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return (_WHILE_LEAVING[self._outcome],)

    def next_deadline(self) -> float:
        return self._until

    def on_tick(self, now_ms: float) -> Settling | Ended:
        return self if now_ms < self._until else end(self.job, self.gang, self._outcome, self._reason, now_ms)

    def on_message(self, message: SlotToMaster, now_ms: float) -> Settling:
        self.job.fence(message)
        return self

    def on_gang_exit(self, error: str | None, now_ms: float) -> Settling:
        raise InternalError("the second exit of a gang")

    def on_cancel(self, now_ms: float) -> Settling:
        if self._outcome is not JobStatus.FAILED:
            return self
        self.job.show(JobStatus.CANCELLING)
        return Settling(self.job, self.gang, JobStatus.CANCELED, "", self._until)

    def on_deposed(self, reason: str, now_ms: float) -> Ended:
        return end(self.job, self.gang, JobStatus.SUSPENDED, reason, now_ms)

    def on_storage_answered(self, now_ms: float) -> Settling | Ended:
        if self.job.model.awaits_storage:
            return self
        return end(self.job, self.gang, self._outcome, self._reason, now_ms)


def end(job: Job, gang: Gang | None, outcome: JobStatus, reason: str, now_ms: float) -> Ended:
    job.show(outcome)
    if outcome is JobStatus.FAILED:
        reason = "\n".join(text for text in (reason, job.how_to_resume()) if text)
    keep = job.engine_gone or outcome is JobStatus.SUSPENDED
    job.out.extend(job.model.on_job_end(outcome, keep=keep))
    accumulators: tuple[bytes, ...] = ()
    if outcome is JobStatus.FINISHED and gang is not None:
        accumulators = tuple(gang.finished[slot] for slot in sorted(gang.finished))
    runtime = now_ms - job.started_ms if job.started_ms is not None else 0.0
    gone = job.engine_gone and outcome is JobStatus.FAILED
    job.out.add(JobEnded(outcome, job.failures.entries, job.failures.total, runtime, accumulators, reason, gone))
    return Ended(job, gang)


class Ended(JobState):
    """Nothing happens any more. Events that were under way may still come."""

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return tuple(_WHILE_LEAVING)

    def next_deadline(self) -> None:
        return None

    def on_tick(self, now_ms: float) -> Ended:
        return self

    def on_message(self, message: SlotToMaster, now_ms: float) -> Ended:
        self.job.fence(message)
        return self

    def on_gang_exit(self, error: str | None, now_ms: float) -> Ended:
        return self

    def on_cancel(self, now_ms: float) -> Ended:
        return self

    def on_deposed(self, reason: str, now_ms: float) -> Ended:
        return self
