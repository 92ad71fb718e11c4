"""The running jobs of this user on this machine, and those that have ended: what `tidegate ui` shows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tidegate.common.errors import TidegateError
from tidegate.jobmanager.job_view import JobView
from tidegate.web import remote
from tidegate.web.history import Document, History
from tidegate.web.job_folders import ArchivedFile
from tidegate.web.jobs import SilentJob, no_such_job
from tidegate.web.live_state import StateQuestion, path_of
from tidegate.web.registry import JobRecord, running_jobs

T = TypeVar("T")

_AT_ONCE = 16  # jobs that are asked


class AllJobs:
    """`tidegate.web.jobs.Jobs`. A running job is asked at its own port, and hides an earlier run of its id."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._summaries: dict[ArchivedFile, Document] = {}  # of the files that the history has

    def summaries(self, archived: bool = True) -> list[Document]:
        found = _at_once(_summary, running_jobs()[::-1])
        if any("error" in summary for summary in found):
            still = {record.job_id for record in running_jobs()}  # the others have ended in this moment
            found = [summary for summary in found if "error" not in summary or summary["job_id"] in still]
        if not archived:
            return found
        running = {summary["job_id"] for summary in found}
        self._summaries = self._history.summaries(self._summaries)
        ended = [summary for summary in self._summaries.values() if summary["job_id"] not in running]
        return found + sorted(ended, key=lambda summary: summary.get("ended_ms") or 0.0, reverse=True)

    def running(self) -> list[JobView | SilentJob]:
        found = _at_once(_view, running_jobs()[::-1])
        if any(isinstance(job, SilentJob) for job in found):
            still = {record.job_id for record in running_jobs()}  # the others have ended in this moment
            found = [job for job in found if not isinstance(job, SilentJob) or job.job_id in still]
        return found

    def document(self, job_id: str, path: str) -> bytes | None:
        return self._ask(job_id, lambda record: remote.document(record, path))

    def view(self, job_id: str) -> JobView:
        view = self._ask(job_id, remote.view_of) or self._history.view(job_id)
        if view is None:
            raise no_such_job(job_id)
        return view

    def savepoint(self, job_id: str, directory: str | None) -> str:
        return str(remote.call(self._running(job_id), "POST", "/savepoint", {"directory": directory})["path"])

    def stop(self, job_id: str, drain: bool, directory: str | None) -> str:
        arguments = {"directory": directory, "drain": drain}
        return str(remote.call(self._running(job_id), "POST", "/stop", arguments)["path"])

    def read_state(self, job_id: str, operator: str, state: str, question: StateQuestion) -> dict[str, Any]:
        return remote.call(self._running(job_id), "GET", path_of(operator, state, question))

    def cancel(self, job_id: str) -> str:
        return str(remote.call(self._running(job_id), "POST", "/cancel", {})["status"])

    def _ask(self, job_id: str, question: Callable[[JobRecord], T]) -> T | None:
        """None when the job is not running. Raises RemoteJobError."""
        record = self._record(job_id)
        if record is None:
            return None
        try:
            return question(record)
        except remote.RemoteJobError as error:
            if error.status or self._record(job_id) is not None:
                raise
            return None  # it has ended in this moment: the history has it

    @staticmethod
    def _record(job_id: str) -> JobRecord | None:
        return next((record for record in running_jobs() if record.job_id == job_id), None)

    def _running(self, job_id: str) -> JobRecord:
        record = self._record(job_id)
        if record is None:
            self.view(job_id)  # raises when it never was
            raise TidegateError(f"job {job_id} has ended")
        return record


def _at_once(question: Callable[[JobRecord], T], records: list[JobRecord]) -> list[T]:
    """Of all jobs at the same time: one that is silent holds up no other one."""
    if not records:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(records)), "tidegate-jobs") as pool:
        return list(pool.map(question, records))


def _summary(record: JobRecord) -> Document:
    try:
        return remote.summary(record)
    except remote.RemoteJobError as error:
        return {
            "job_id": record.job_id,
            "job_name": record.job_name,
            "status": "?",
            "started_ms": record.started_ms,
            "error": str(error),
        }


def _view(record: JobRecord) -> JobView | SilentJob:
    try:
        return remote.view_of(record)
    except remote.RemoteJobError:
        return SilentJob(record.job_id, record.job_name)
