"""Logging in a worker process, for as long as it works for a job.

In local mode STREAMING workers send their lines to the driver; in every other case they write them to their standard
error, which Spark keeps with the executor's log (in local mode it is that of the program).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidegate.common.log_lines import ROOT, LogLine, LogSettings, Place
from tidegate.common.terminal_line import TAKEN_AWAY

Send = Callable[[LogLine], bool]
"""Hands a line over, at once; False: it cannot be, and the process's own output has to do."""


@dataclass(frozen=True)
class WorkerLogs:
    """What travels to the workers."""

    job_id: str
    job_name: str
    settings: LogSettings = field(default_factory=LogSettings)
    to_driver: bool = False
    on_terminal: bool = False  # the standard error of the workers ends on the terminal of the program


class WorkerHandler(logging.Handler):
    """`send` may be called from any thread, also from the one that sends: it must not wait."""

    def __init__(self, logs: WorkerLogs, attempt: int, send: Send | None) -> None:
        super().__init__()
        self._logs = logs
        self._attempt = attempt
        self._send = send
        self._host = socket.gethostname()
        self.setFormatter(logs.settings.formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = LogLine.of(record, self._place())
            if self._send is None or not self._send(line):
                text = self.format(line.to_record())
                if self._logs.on_terminal:
                    text = TAKEN_AWAY + text  # the line of progress, which is drawn again below
                sys.stderr.write(text + "\n")  # one write: lines of workers must not mix
                sys.stderr.flush()
        except Exception:
            self.handleError(record)

    def _place(self) -> Place:
        from tidegate.taskmanager.log_place import operator_at_work  # late: a worker of Spark starts with few imports

        operator = operator_at_work()
        return Place(
            job=self._logs.job_name,
            job_id=self._logs.job_id,
            operator="" if operator is None else operator.node.name,
            subtask=None if operator is None else operator.subtask,
            attempt=self._attempt,
            host=self._host,
            pid=os.getpid(),
        )


_installed = False  # tasks of a batch job run within each other: the outermost has the handler


@contextlib.contextmanager
def worker_logging(logs: WorkerLogs | None, attempt: int, send: Send | None = None) -> Iterator[None]:
    """Levels and handler of a job; afterwards they are as before: the process may work for another one next."""
    global _installed
    if logs is None or _installed:
        yield
        return
    handler, before = WorkerHandler(logs, attempt, send), {}
    for name, level in logs.settings.levels.items():
        logger = logging.getLogger(None if name == ROOT else name)
        before[logger] = logger.level
        logger.setLevel(level)
    logging.root.addHandler(handler)
    _installed = True
    try:
        yield
    finally:
        _installed = False
        logging.root.removeHandler(handler)
        for logger, level in before.items():
            logger.setLevel(level)
