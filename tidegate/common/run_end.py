"""What a program tells `tidegate run`, which has started it, of jobs with high availability that have ended for good.

Whoever starts programs again can then tell one that would do nothing any more from one that has to go on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tidegate.common.job_status import JobStatus

VARIABLE = "TIDEGATE_RUN_END"
"""Environment variable of the program: the file that it writes. Unset: nobody wants to know."""

_jobs: dict[str, JobStatus | None] = {}  # of this program, by where the record is; None: it leads it


def leads(where: str) -> None:
    """The program leads a job: it has to be started again when it dies."""
    _jobs[where] = None
    _tell()


def has_ended(where: str, status: JobStatus) -> None:
    """The end of the job is in its record: by this program, or by one before it."""
    _jobs[where] = status
    _tell()


def _tell() -> None:
    """The file is there exactly when nothing is left to do and something has gone wrong. Never raises: a program must
    not fail for want of it."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    unfinished = [status.name for status in _jobs.values() if status is not None and status is not JobStatus.FINISHED]
    with contextlib.suppress(OSError):
        if unfinished and None not in _jobs.values():
            Path(path).write_text(unfinished[-1])
        else:
            Path(path).unlink(missing_ok=True)


def end_told(path: Path) -> str | None:
    """For the one that has started the program: FAILED or CANCELED. None: a start of the program may still do
    something, or is not known to be in vain."""
    with contextlib.suppress(OSError):
        return path.read_text() or None
    return None
