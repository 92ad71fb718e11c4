"""The port of a job that has a client. What it shows comes from the published view alone."""

from __future__ import annotations

import threading
import time
from typing import Any

from tidegate.jobmanager.job_view import JobView
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.storage.files import Files
from tidegate.web import documents, live_state
from tidegate.web.history import History
from tidegate.web.job_port import JobPort
from tidegate.web.jobs import no_such_job
from tidegate.web.live_state import StateQuestion
from tidegate.web.otel import OtelPush, OtelSettings
from tidegate.web.rest_settings import RestSettings


class ClientPort:
    """What the world sees of a job that has a client: its REST port, its place in the history, what is pushed. `open`
    when the job starts, `close` when it has ended. No port and no push without settings."""

    def __init__(
        self,
        client: PublishedJobClient,
        settings: RestSettings | None,
        history: History,
        otel: OtelSettings | None = None,
        beside: Files | None = None,
    ) -> None:
        """`beside`: the job's folder of checkpoints, if it has one."""
        self._client = client
        self._history = history
        self._beside = beside
        self._jobs = ClientJobs(client)
        self._port: JobPort | None = None
        self._push = None if otel is None else OtelPush(otel, client.view)
        if settings is not None:
            view = client.view()
            self._port = JobPort(self._jobs, view.job_id, view.name, view.started_ms, settings)

    def open(self) -> None:
        if self._port is not None:
            self._port.open()
        if self._push is not None:
            self._push.start()

    def address(self, patience_s: float) -> str:
        """Of the page, "" when there is none or it was not open within so many seconds. After `open`."""
        return "" if self._port is None else self._port.address(patience_s)

    def close(self, keep: bool = True) -> None:
        """`keep`: the last view goes to the history, and beside the checkpoints that are left."""
        self._jobs.ended()
        if keep:
            self._history.keep(self._client.view(), self._beside)
        if self._push is not None:
            self._push.close()
        if self._port is not None:
            self._port.close()


class ClientJobs:
    """`tidegate.web.jobs.Jobs` of one job. `ended` is called when the job has ended, before the port is closed."""

    def __init__(self, client: PublishedJobClient) -> None:
        self._client = client
        self._over = threading.Event()

    def ended(self) -> None:
        self._over.set()

    def summaries(self) -> list[dict[str, Any]]:
        return [documents.summary(self._client.view(), time.time() * 1000)]

    def running(self) -> list[JobView]:
        view = self._client.view()
        return [] if view.ended_ms is not None else [view]

    def document(self, job_id: str, path: str) -> bytes | None:
        return None

    def view(self, job_id: str) -> JobView:
        view = self._client.view()
        if view.job_id != job_id:
            raise no_such_job(job_id)
        return view

    def savepoint(self, job_id: str, directory: str | None) -> str:
        self.view(job_id)
        return self._client.trigger_savepoint(directory).result()

    def stop(self, job_id: str, drain: bool, directory: str | None) -> str:
        self.view(job_id)
        return self._client.stop_with_savepoint(drain, directory).result()

    def read_state(self, job_id: str, operator: str, state: str, question: StateQuestion) -> dict[str, Any]:
        self.view(job_id)
        return live_state.answer(self._client.get_state(operator, state), question)

    def cancel(self, job_id: str) -> str:
        self.view(job_id)
        self._client.cancel()
        self._over.wait()
        return self._client.view().status_name
