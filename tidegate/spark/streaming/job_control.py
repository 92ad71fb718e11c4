"""What the REST port of a job can ask of it: `tidegate.web.rest.JobControl` on a SparkJobClient."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tidegate.common.job_status import JobStatus

if TYPE_CHECKING:
    from tidegate.spark.streaming.job_client import SparkJobClient


class ClientControl:
    """`ended` is called by the JobManager before it closes the port."""

    def __init__(self, client: SparkJobClient, job_name: str, parallelism: int, started_ms: float) -> None:
        self._client = client
        self._job_name = job_name
        self._parallelism = parallelism
        self._started_ms = started_ms
        self._over = threading.Event()

    def ended(self) -> None:
        self._over.set()

    def describe(self) -> dict[str, Any]:
        client = self._client
        completed = [r for r in client.checkpoint_history() if r.ended_ms is not None and r.reason is None]
        return {
            "job_id": str(client.get_job_id()),
            "job_name": self._job_name,
            "status": self._status().name,
            "parallelism": self._parallelism,
            "started_ms": int(self._started_ms),
            "attempt": client.attempt(),
            "workers": len(client.workers()),
            "failures": [f.failure.summary for f in client.failures()],
            "last_checkpoint": completed[-1].checkpoint_id if completed else None,
        }

    def checkpoints(self) -> list[dict[str, Any]]:
        return [
            {
                "id": r.checkpoint_id,
                "kind": r.kind.value,
                "status": r.status.name,
                "triggered_ms": int(r.triggered_ms),
                "ended_ms": None if r.ended_ms is None else int(r.ended_ms),
                "detail": r.detail,
            }
            for r in self._client.checkpoint_history()
        ]

    def savepoint(self, directory: str | None) -> str:
        return self._client.trigger_savepoint(directory).result()

    def stop(self, drain: bool, directory: str | None) -> str:
        return self._client.stop_with_savepoint(drain, directory).result()

    def cancel(self) -> str:
        self._client.cancel()
        self._over.wait()
        return self._status().name

    def _status(self) -> JobStatus:
        return self._client.get_job_status().result()
