"""The jobs that a server shows and changes: the interface, and what it says when there is no such thing."""

from __future__ import annotations

from typing import Any, Protocol

from tidegate.common.errors import TidegateError
from tidegate.jobmanager.job_view import JobView
from tidegate.web.live_state import StateQuestion


class NotThereError(TidegateError):
    """What was asked for does not exist: no such job, vertex, checkpoint. The sentence says what there is instead."""


class Jobs(Protocol):
    """Thread-safe. `views` and `view` never wait for a job. The others return when it is done; TidegateError says why
    it cannot be, NotThereError that there is no such job."""

    def views(self) -> list[JobView]:
        """All jobs, the newest first."""

    def view(self, job_id: str) -> JobView:
        """Raises NotThereError."""

    def savepoint(self, job_id: str, directory: str | None) -> str:
        """The path of the savepoint, once it is complete."""

    def stop(self, job_id: str, drain: bool, directory: str | None) -> str:
        """The path of the savepoint, once the job has ended."""

    def read_state(self, job_id: str, operator: str, state: str, question: StateQuestion) -> dict[str, Any]:
        """What `live_state.answer` says. Raises ConfigurationError for a wrong question."""

    def cancel(self, job_id: str) -> str:
        """The job's status, once it has ended."""


def no_such_job(job_id: str) -> NotThereError:
    return NotThereError(f"there is no job '{job_id}' here: see /v1/jobs")
