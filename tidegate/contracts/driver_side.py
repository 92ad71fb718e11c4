"""Sources that keep something on the driver while their job runs: a staged copy, a query that feeds them."""

from __future__ import annotations

import abc

from tidegate.common.job_client import JobClient


class DriverSide(abc.ABC):
    """Implemented by a `Source` beside its own methods. All calls are on the driver, in this order::

    create_splits, then check_start, then exactly one of job_started and job_refused
    """

    def check_start(self, num_slots: int) -> None:
        """Raise when a job of so many slots could not run."""

    @abc.abstractmethod
    def job_started(self, client: JobClient) -> None:
        """The job was accepted. Its end is told by the future of its result. Must not raise for what can be told to
        the running job instead."""

    @abc.abstractmethod
    def job_refused(self) -> None:
        """The job was not started: leave nothing behind. Also called when `create_splits` was not."""
