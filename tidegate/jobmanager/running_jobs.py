"""The jobs that this program runs right now, whatever the runtime. They end with the program."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol, TypeVar

_AT_EXIT_S = 5.0  # how long the end of the program waits for each job


class RunningJob(Protocol):
    @property
    def label(self) -> str:
        """The job for people: its name, its id, how many slots it takes."""

    @property
    def spark_groups(self) -> tuple[str, ...]:
        """The names of the Spark job groups that it has jobs in."""

    @property
    def has_workers(self) -> bool:
        """Whether workers of its own have come, so that it surely has slots; False also when it cannot know."""

    @property
    def running(self) -> bool:
        """Whether the job has not come to its end yet."""

    def cancel(self) -> None:
        """Ask it to end; it may have ended already."""

    def program_ends(self) -> None:
        """Ask it to leave this program, which cannot run it any longer: a job that other programs can lead goes on
        there, any other one is cancelled."""

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""


J = TypeVar("J", bound=RunningJob)

_started: weakref.WeakKeyDictionary[RunningJob, int] = weakref.WeakKeyDictionary()  # by the thread that started it


def add_running_job(job: RunningJob) -> None:
    """Before the job starts, on the thread that starts it."""
    _started[job] = threading.get_ident()


@contextlib.contextmanager
def cancelled_by_interrupt() -> Iterator[None]:
    """Ctrl-C in the block ends the jobs that this thread has started in it, also when nobody has got hold of them yet;
    it goes on as KeyboardInterrupt when they have ended. A second one does not wait for that."""
    before, here = set(_started), threading.get_ident()
    try:
        yield
    except KeyboardInterrupt:
        begun = [job for job, thread in list(_started.items()) if thread == here and job not in before]
        for job in begun:
            job.cancel()
        for job in begun:
            while job.running:
                job.join(1.0)
        raise


def running_jobs_of(kind: type[J]) -> list[J]:
    """The jobs of one runtime, in no particular order."""
    return [job for job in list(_started) if isinstance(job, kind) and job.running]


def running_jobs() -> list[RunningJob]:
    """In no particular order."""
    return [job for job in list(_started) if job.running]


def jobs_are_running() -> bool:
    return any(job.running for job in list(_started))


@atexit.register
def _leave_at_exit() -> None:
    """A job's driver side ends with the program."""
    for job in list(_started):
        if job.running:
            job.program_ends()
            job.join(_AT_EXIT_S)
