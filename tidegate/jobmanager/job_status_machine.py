"""The states of a job and the steps between them.

::

    CREATED -> RUNNING -> FINISHED
       |          |
       |          v
       +------> FAILING -> RESTARTING -> RUNNING ...
       |          |            |
       |          v            +-> FAILING
       |        FAILED
       +-- (from every state that is not terminal) --> CANCELLING -> CANCELED

RUNNING means that the sources were told to start: a job whose gang waits for Spark or restores its state is still
CREATED (first attempt) or RESTARTING (later ones).
"""

from __future__ import annotations

from tidegate.common.errors import check_internal
from tidegate.common.job_status import JobStatus

_STEPS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.CREATED: frozenset({JobStatus.RUNNING, JobStatus.FAILING, JobStatus.CANCELLING}),
    JobStatus.RUNNING: frozenset({JobStatus.FINISHED, JobStatus.FAILING, JobStatus.CANCELLING}),
    JobStatus.FAILING: frozenset({JobStatus.RESTARTING, JobStatus.FAILED, JobStatus.CANCELLING}),
    JobStatus.RESTARTING: frozenset({JobStatus.RUNNING, JobStatus.FAILING, JobStatus.CANCELLING}),
    JobStatus.CANCELLING: frozenset({JobStatus.CANCELED}),
    JobStatus.FINISHED: frozenset(),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELED: frozenset(),
}

TERMINAL = frozenset(status for status, steps in _STEPS.items() if not steps)


class JobStatusMachine:
    """The status of one job. `step` is the only mutator; a step that is not in the picture is an InternalError."""

    def __init__(self) -> None:
        self._status = JobStatus.CREATED

    @property
    def status(self) -> JobStatus:
        return self._status

    @property
    def terminal(self) -> bool:
        return self._status in TERMINAL

    def step(self, to: JobStatus) -> None:
        check_internal(to in _STEPS[self._status], f"a job cannot go from {self._status.name} to {to.name}")
        self._status = to
