"""The seam for tools that run somebody's program and want a hand in its job: `tidegate chaos`."""

from __future__ import annotations

from typing import Protocol

from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.runtime import Submission


class Interceptor(Protocol):
    def submission(self, submission: Submission) -> Submission:
        """What is submitted instead. Raises to refuse the job."""

    def started(self, client: PublishedJobClient) -> None:
        """The job was accepted."""


_interceptor: Interceptor | None = None


def intercept(interceptor: Interceptor | None) -> None:
    """From now on every job of this process goes through `interceptor`; None: through none."""
    global _interceptor
    _interceptor = interceptor


def intercepted(submission: Submission) -> Submission:
    return submission if _interceptor is None else _interceptor.submission(submission)


def started(client: PublishedJobClient) -> None:
    if _interceptor is not None:
        _interceptor.started(client)
