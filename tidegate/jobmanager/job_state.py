"""The states of a job: what all have in common, and what leads from one to the next (`docs/concepts/recovery.md` has a
picture).

::

    Created          start -> WaitingForSlots; cancel -> Ended
    WaitingForSlots  all slots have registered -> Restoring
    Restoring        all slots are ready -> Running; Finishing when the job was stopped in an earlier attempt
    Running          everything is processed and durable -> Finishing
    Finishing        all slots are finished -> Ending (as FINISHED)
        any of all: deposed (high availability) -> Ending or Ended (as SUSPENDED)
        any of these four: failure -> Failing, or Ending (as FAILED) without a restart; cancel -> Ending (as CANCELED)
    Failing          gang gone, or its time to leave is over -> RestartDelay; cancel -> Ending
    RestartDelay     delay over -> WaitingForSlots; gang gone -> the same; cancel -> Ending, Settling or Ended
    Ending           gang gone -> Settling, or Ended when there is nothing to wait for; killed and time over -> Ended
    Settling         the storage has answered, or its time is over -> Ended

A state is a class. It answers every event with the state that follows (itself, when nothing changes); what is to be
done besides goes into the job's outbox. Four have a gang that works (`working_states`), the others have one that leaves
or has left, or none (`leaving_states`). An attempt that is `Due` is submitted by the JobMaster at once.

The status that users see:

============================================  ==========================================================
CREATED, after the first failure RESTARTING   Created, WaitingForSlots, Restoring
RUNNING                                       Running, Finishing, Ending (as FINISHED)
FAILING                                       Failing, Ending (as FAILED or SUSPENDED)
RESTARTING                                    RestartDelay
CANCELLING                                    Ending (as CANCELED)
FINISHED, FAILED, CANCELED, SUSPENDED         Ended
============================================  ==========================================================
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.common.errors import check_internal
from tidegate.common.ids import AttemptNumber, OperatorId, SlotIndex, SubtaskIndex
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.job_side import FailAttempt, FinishAttempt, Outcome, TellSlots
from tidegate.jobmanager.gang import Gang
from tidegate.jobmanager.job import Job
from tidegate.protocol.instructions import FoundSplits, StateReadDone
from tidegate.protocol.messages import FailureInfo, SlotToMaster, StateLookup


class JobState(ABC):
    """One state. What every class has to answer is abstract: there is no event that a state has forgotten."""

    def __init__(self, job: Job, gang: Gang | None) -> None:
        self.job = job
        self.gang = gang  # of the current or latest attempt; None only before the first

    @property
    @abstractmethod
    def statuses(self) -> tuple[JobStatus, ...]:
        """What users may see while the job is in this state."""

    @abstractmethod
    def next_deadline(self) -> float | None:
        """When `on_tick` is due."""

    @abstractmethod
    def on_tick(self, now_ms: float) -> JobState | Due: ...

    @abstractmethod
    def on_message(self, message: SlotToMaster, now_ms: float) -> JobState | Due:
        """Of a slot of this state's gang."""

    def on_bad_message(self, failure: FailureInfo, now_ms: float) -> JobState | Due:
        """A worker of this state's gang has sent what cannot be read, or cannot be true; or the host has found another
        reason why it cannot go on. Nothing more can fail while no gang works: it is only logged."""
        self.job.out.log(logging.WARNING, failure.summary)
        return self

    @abstractmethod
    def on_gang_exit(self, error: str | None, now_ms: float) -> JobState | Due:
        """Spark says that this state's gang is over: normally (`error` None) or with its story in one line. It is told
        at most once of each gang, at any time after its submission."""

    def on_engine_gone(self, error: str, now_ms: float) -> JobState | Due:
        """Instead of `on_gang_exit`: what runs gangs is gone itself, and no other gang can be submitted."""
        return self.on_gang_exit(error, now_ms)

    @abstractmethod
    def on_cancel(self, now_ms: float) -> JobState | Due:
        """May come at any time, and repeatedly."""

    @abstractmethod
    def on_deposed(self, reason: str, now_ms: float) -> JobState:
        """Another JobManager goes on with the job. May come at any time, and repeatedly."""

    def on_outcome(self, outcome: Outcome, now_ms: float) -> JobState:
        """Of the model of fault tolerance. What it wants of an attempt counts only while there is one that works."""
        if not isinstance(outcome, TellSlots | FailAttempt | FinishAttempt):
            self.job.out.add(outcome)
        return self

    def apply(self, outcomes: Iterable[Outcome], now_ms: float) -> JobState:
        """Several, in order, each in the state that the ones before have led to."""
        state: JobState = self
        for outcome in outcomes:
            state = state.on_outcome(outcome, now_ms)
        return state

    def on_discovery(self, operator_id: OperatorId, found: FoundSplits | FailureInfo, now_ms: float) -> JobState:
        """An enumerator has answered a question of this state's attempt. Only a job that runs takes splits."""
        return self

    def on_storage_answered(self, now_ms: float) -> JobState:
        """The model has dealt with an answer of the storage."""
        return self

    def on_results_taken(self, operator_id: OperatorId, subtask: SubtaskIndex, seq: int) -> None:
        """The client has taken results; a sink that waits for it is told, if it still runs."""

    def on_read_state(self, request_id: int, slot: SlotIndex, lookups: tuple[StateLookup, ...]) -> None:
        """Somebody looks at the state of a slot. Only tasks that run can be asked."""
        self.job.out.add(StateReadDone(request_id, None))

    def see_time(self, now_ms: float) -> None:
        """Called before every event."""

    def check_invariants(self) -> None:
        check_internal(self.job.out.empty, "instructions were left behind")
        check_internal(
            self.job.status in self.statuses, f"status {self.job.status.name} in state {type(self).__name__}"
        )
        if self.gang is not None:
            self.gang.check_invariants()


@dataclass(frozen=True)
class Due:
    """The next attempt is to be submitted now."""

    attempt: AttemptNumber
