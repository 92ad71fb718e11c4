"""What the states of a job share: everything that outlives an attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import assert_never

from tidegate.common import options
from tidegate.common.ids import AttemptNumber
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.job_side import JobFaultTolerance
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.collect_ledger import CollectLedger
from tidegate.jobmanager.failure_history import FailureHistory
from tidegate.jobmanager.gang import Gang
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.outbox import Outbox
from tidegate.jobmanager.recovery_policy import RecoveryPolicy
from tidegate.jobmanager.restart_strategies import GiveUp, RestartAfter, RestartDecision
from tidegate.jobmanager.split_discovery import SplitDiscovery
from tidegate.jobmanager.state_assignment import StateAssigner
from tidegate.protocol.instructions import CancelGang, StatusChanged
from tidegate.protocol.messages import FailureInfo, FaultToleranceMessage, Register, SlotToMaster

_RESULTS_AGAIN = (
    "results of execute_and_collect that were delivered come again: the job has no checkpoints, so it starts anew "
    "(env.enable_checkpointing(interval) makes them come once)"
)


class Job:
    """Only the states change it, in the course of an event; what they want done is collected in `out`."""

    def __init__(
        self,
        graph: JobGraph,
        settings: JobSettings,
        model: JobFaultTolerance,
        policy: RecoveryPolicy,
        assigner: StateAssigner,
        plan_for: Callable[[AttemptNumber], bytes],
        *,
        from_snapshot: bool,
    ) -> None:
        self.graph = graph
        self.settings = settings
        self.model = model
        self.policy = policy
        self.assigner = assigner
        self.plan_for = plan_for
        self.discovery = SplitDiscovery(graph)
        model.keep_in_snapshots(self.discovery.states)
        self.out = Outbox()
        self.failures = FailureHistory()
        self.collected = CollectLedger(any_first=from_snapshot)
        self.status = JobStatus.CREATED  # as the host knows it: that of the present state, between any two events
        self.started_ms: float | None = None
        self.restored: RestorePoint | None = None  # what the current attempt was deployed with
        self.engine_gone = False  # there is nothing any more that could run a gang
        self.fenced_messages = 0  # messages of attempts that are over, dropped

    def show(self, status: JobStatus) -> None:
        """The host learns of it when it has changed."""
        if status is not self.status:
            self.status = status
            self.out.add(StatusChanged(status))

    def tell_of(self, attempt: AttemptNumber, failure: FailureInfo) -> None:
        """Log the failure of an attempt: with its traceback when it is the first of its kind."""
        story = self.failures.story_of(failure)
        told = f"attempt {attempt} of job '{self.settings.job_name}' failed: {story}"
        self.out.log(logging.WARNING, told, in_view=True)

    def how_to_resume(self) -> str:
        """For a job that has failed; "" when nothing of it is kept."""
        path = self.model.resume_path(keep=self.engine_gone)
        if path is None:
            return ""
        return (
            f"The job can go on from {path}: run it with `tidegate run -s {path} PROGRAM`, or set "
            f"{options.RECOVERY_PATH.key} to that path"
        )

    def fence(self, message: SlotToMaster) -> None:
        """A message of an attempt that is over, or that is leaving: nothing follows from it."""
        self.fenced_messages += 1
        if isinstance(message, Register):
            self.out.refuse(message, f"attempt {message.attempt} of the job is over")
        elif isinstance(message, FaultToleranceMessage):
            self.out.extend(self.model.on_late_message(message))

    def kill(self, gang: Gang) -> None:
        """Spark is asked, once, to kill what is left of the gang."""
        if not gang.killed and not gang.exited:
            gang.killed = True
            self.out.add(CancelGang(gang.attempt))

    def decide(self, failure: FailureInfo, now_ms: float) -> RestartDecision:
        """What follows the failure of an attempt."""
        verdict = self.policy.on_failure(failure, now_ms)
        if verdict.warning:
            self.out.log(logging.WARNING, verdict.warning)
        if verdict.falls_back:
            self.collected.start_over()
        elif self.model.repeats_results and isinstance(verdict.decision, RestartAfter) and self.collected.any_taken:
            self.collected.start_over()
            self.out.log(logging.WARNING, _RESULTS_AGAIN)
        self.failures.decided(verdict.warning or told(verdict.decision))
        return verdict.decision


def told(decision: RestartDecision) -> str:
    """For people to read."""
    match decision:
        case RestartAfter(delay_ms):
            return f"restart after {delay_ms / 1000:,.3g} s" if delay_ms else "restart at once"
        case GiveUp(reason):
            return f"no restart: {reason}"
        case _:
            assert_never(decision)
