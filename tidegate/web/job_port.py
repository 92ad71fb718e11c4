"""A job's REST port and its entry in the registry, opened on a thread of its own so that no job starts later for it."""

from __future__ import annotations

import logging
import os
import socket
import threading
from pathlib import Path

from tidegate.common.errors import ConfigurationError
from tidegate.web.jobs import Jobs
from tidegate.web.registry import JobRecord, process_start, publish, withdraw
from tidegate.web.rest import RestServer
from tidegate.web.rest_settings import RestSettings

log = logging.getLogger("tidegate.rest")


class JobPort:
    """`open` once, `close` once, in this order. A port that cannot be opened is a warning, never a failure of the
    job."""

    def __init__(
        self, jobs: Jobs, job_id: str, job_name: str, started_ms: float, settings: RestSettings | None = None
    ) -> None:
        self._settings = settings or RestSettings()
        self._server = RestServer(jobs, self._settings)
        self._job_id = job_id
        self._job_name = job_name
        self._started_ms = started_ms
        self._file: Path | None = None
        self._thread = threading.Thread(target=self._open, name="tidegate-rest-open", daemon=True)
        self.url = ""

    def open(self) -> None:
        self._thread.start()

    def address(self, patience_s: float) -> str:
        """The URL, "" when it cannot be opened or was not within so many seconds. After `open`."""
        self._thread.join(patience_s)
        return self.url

    def _open(self) -> None:
        try:
            self.url = self._server.start(f"job {self._job_name}")
            pid = os.getpid()
            self._file = publish(
                JobRecord(
                    job_id=self._job_id,
                    job_name=self._job_name,
                    pid=pid,
                    process_start=process_start(pid),
                    url=self.url,
                    token=self._server.token,
                    read_token=self._server.gate.read_token,
                    started_ms=int(self._started_ms),
                    host=socket.gethostname(),
                    authority=self._settings.tls.authority if self._settings.tls else "",
                )
            )
            log.info("job %s: its page and REST are at %s (tidegate ui logs in to it)", self._job_name, self.url)
        except (OSError, ConfigurationError) as error:
            log.warning(
                "job %s: it cannot be reached by the tidegate command, its REST port could not be opened: %s",
                self._job_name,
                error,
            )

    def close(self) -> None:
        """Calls that wait for the end of the job get their answer first."""
        self._thread.join()
        if self._file is not None:
            withdraw(self._file)
        self._server.close()
