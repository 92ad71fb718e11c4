"""Sources and sinks with a side on the driver: a staged copy, a query that feeds them, a check before the start."""

from __future__ import annotations

import abc

from tidegate.common.job_client import JobClient


class DriverSide(abc.ABC):
    """Implemented by a `Source` or a `Sink` beside its own methods. All calls are on the driver, in this order::

    create_splits (of a source), then check_start, then check_checkpoints (of a streaming job),
    then exactly one of job_started and job_refused
    """

    def check_start(self, num_slots: int) -> None:
        """Raise when a job of so many slots could not run."""

    def check_checkpoints(self, interval_ms: float | None) -> None:
        """Raise, or warn, when this could not go on with checkpoints so far apart. None: the job makes none."""

    @property
    def exclusive_name(self) -> str | None:
        """What no other source or sink of the job may have: text that says what it is and its name."""
        return None

    @abc.abstractmethod
    def job_started(self, client: JobClient) -> None:
        """The job was accepted. Its end is told by the future of its result. Must not raise for what can be told to
        the running job instead."""

    @abc.abstractmethod
    def job_refused(self) -> None:
        """The job was not started: leave nothing behind. Also called when `create_splits` was not."""
