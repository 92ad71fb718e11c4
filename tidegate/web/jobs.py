"""The jobs that a server shows and changes: the interface, and what it says when there is no such thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.common.errors import TidegateError
from tidegate.jobmanager.job_view import JobView
from tidegate.web.live_state import StateQuestion


class NotThereError(TidegateError):
    """What was asked for does not exist: no such job, vertex, checkpoint. The sentence says what there is instead."""


@dataclass(frozen=True)
class SilentJob:
    """A job that runs, as far as its entry says, and does not answer."""

    job_id: str
    name: str


class Jobs(Protocol):
    """Thread-safe. Looks wait some seconds at most. Changes return when they are done; TidegateError says why
    something cannot be, NotThereError that there is no such job."""

    def summaries(self) -> list[dict[str, Any]]:
        """`documents.summary` of all jobs, the newest first; of a job that does not answer its id, its name, when it
        started, the status "?" and the `error`."""

    def running(self) -> Sequence[JobView | SilentJob]:
        """The jobs that have not ended, the newest first."""

    def document(self, job_id: str, path: str) -> bytes | None:
        """What the job's own port answers to a look at a path below its own, when it has another port than this one;
        None: it is to be made of `view`. Raises RemoteJobError."""

    def view(self, job_id: str) -> JobView:
        """Raises NotThereError, RemoteJobError."""

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
