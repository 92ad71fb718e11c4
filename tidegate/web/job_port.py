"""A job's REST port and its entry in the registry, opened on a thread of its own so that no job starts later for it."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.web.jobs import Jobs
from tidegate.web.registry import JobRecord, process_start, publish, withdraw
from tidegate.web.rest import RestServer

log = logging.getLogger("tidegate.rest")


@dataclass(frozen=True)
class RestSettings:
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one

    @staticmethod
    def from_configuration(configuration: Configuration) -> RestSettings | None:
        """None: the job opens no port."""
        if not options.read(configuration, options.REST_ENABLED):
            return None
        host = options.read(configuration, options.REST_BIND_ADDRESS)
        return RestSettings(host, options.read(configuration, options.REST_PORT))


class JobPort:
    """`open` once, `close` once, in this order. A port that cannot be opened is a warning, never a failure of the
    job."""

    def __init__(self, jobs: Jobs, job_id: str, job_name: str, started_ms: float, host: str, port: int) -> None:
        self._jobs = jobs
        self._host = host
        self._wanted = port
        self._server = RestServer(jobs, host, port)
        self._job_id = job_id
        self._job_name = job_name
        self._started_ms = started_ms
        self._file: Path | None = None
        self._thread = threading.Thread(target=self._open, name="tidegate-rest-open", daemon=True)
        self.url = ""

    def open(self) -> None:
        self._thread.start()

    def _open(self) -> None:
        try:
            self.url = self._start()
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
                )
            )
        except OSError as error:
            log.warning(
                "job %s: it cannot be reached by the tidegate command, its REST port could not be opened: %s",
                self._job_name,
                error,
            )

    def _start(self) -> str:
        """Another job may have the port that is configured: then any free one is taken."""
        try:
            return self._server.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not self._wanted:
                raise
            self._server = RestServer(self._jobs, self._host)
            url = self._server.start()
            log.warning("job %s: port %d is in use; its page and REST are at %s", self._job_name, self._wanted, url)
            return url

    def close(self) -> None:
        """Calls that wait for the end of the job get their answer first."""
        self._thread.join()
        if self._file is not None:
            withdraw(self._file)
        self._server.close()
