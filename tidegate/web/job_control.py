"""What the REST port of a job can ask of it: `tidegate.web.rest.JobControl` on a job's client. What is shown comes from
the published view alone."""

from __future__ import annotations

import threading
from typing import Any

from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.web.job_port import JobPort, RestSettings


class ClientPort:
    """The REST port of a job that has a client. `open` when the job starts, `close` when it has ended; both do nothing
    without settings."""

    def __init__(self, client: PublishedJobClient, settings: RestSettings | None) -> None:
        self._control = ClientControl(client)
        self._port: JobPort | None = None
        if settings is not None:
            view = client.view()
            self._port = JobPort(self._control, view.job_id, view.name, view.started_ms, settings.host, settings.port)

    def open(self) -> None:
        if self._port is not None:
            self._port.open()

    def close(self) -> None:
        self._control.ended()
        if self._port is not None:
            self._port.close()


class ClientControl:
    """`ended` is called when the job has ended, before the port is closed."""

    def __init__(self, client: PublishedJobClient) -> None:
        self._client = client
        self._over = threading.Event()

    def ended(self) -> None:
        self._over.set()

    def describe(self) -> dict[str, Any]:
        view = self._client.view()
        completed = [c.checkpoint_id for c in view.checkpoints.history if c.ended_ms is not None and c.reason is None]
        return {
            "job_id": view.job_id,
            "job_name": view.name,
            "status": view.status_name,
            "parallelism": view.slots,
            "started_ms": int(view.started_ms),
            "attempt": view.attempt,
            "workers": len(view.workers),
            "failures": [f.failure.summary for f in view.failures],
            "last_checkpoint": completed[-1] if completed else None,
        }

    def checkpoints(self) -> list[dict[str, Any]]:
        return [
            {
                "id": c.checkpoint_id,
                "kind": c.kind.value,
                "status": c.status.name,
                "triggered_ms": int(c.triggered_ms),
                "ended_ms": None if c.ended_ms is None else int(c.ended_ms),
                "detail": c.detail,
            }
            for c in self._client.view().checkpoints.history
        ]

    def savepoint(self, directory: str | None) -> str:
        return self._client.trigger_savepoint(directory).result()

    def stop(self, drain: bool, directory: str | None) -> str:
        return self._client.stop_with_savepoint(drain, directory).result()

    def cancel(self) -> str:
        self._client.cancel()
        self._over.wait()
        return self._client.view().status_name
