"""The running jobs of this user on this machine, and those that have ended: what `tidegate ui` shows."""

from __future__ import annotations

from typing import Any

from tidegate.common.errors import TidegateError
from tidegate.jobmanager.job_view import JobView
from tidegate.web import remote
from tidegate.web.history import History
from tidegate.web.jobs import no_such_job
from tidegate.web.live_state import StateQuestion, path_of
from tidegate.web.registry import JobRecord, running_jobs


class AllJobs:
    """`tidegate.web.jobs.Jobs`. A running job is asked at its own port, and hides an earlier run of its id."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._ended: dict[str, JobView] = {}  # of the history, which does not change; as many as that keeps

    def views(self) -> list[JobView]:
        found = []
        running = set()
        for record in reversed(running_jobs()):
            try:
                found.append(remote.view_of(record))
                running.add(record.job_id)
            except remote.RemoteJobError:  # it ends in this moment: the history has it soon
                continue
        archived = [self._archived(job_id) for job_id in self._history.job_ids() if job_id not in running]
        ended = [view for view in archived if view is not None]
        return found + sorted(ended, key=lambda view: view.ended_ms or 0.0, reverse=True)

    def view(self, job_id: str) -> JobView:
        record = self._record(job_id)
        if record is not None:
            try:
                return remote.view_of(record)
            except remote.RemoteJobError:
                pass  # it ends in this moment
        self._ended.pop(job_id, None)
        view = self._archived(job_id)
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

    def _archived(self, job_id: str) -> JobView | None:
        if job_id not in self._ended:
            view = self._history.view(job_id)
            if view is None:
                return None
            if len(self._ended) >= max(1, self._history.size):
                self._ended.clear()
            self._ended[job_id] = view
        return self._ended[job_id]

    @staticmethod
    def _record(job_id: str) -> JobRecord | None:
        return next((record for record in running_jobs() if record.job_id == job_id), None)

    def _running(self, job_id: str) -> JobRecord:
        record = self._record(job_id)
        if record is None:
            self.view(job_id)  # raises when it never was
            raise TidegateError(f"job {job_id} has ended")
        return record
