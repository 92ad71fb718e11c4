"""Sources that keep something on the driver while their job runs: a staged copy, a query that feeds them."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.graph.operator_specs import SourceSpec

if TYPE_CHECKING:
    from tidegate.common.job_client import JobClient
    from tidegate.graph.job_graph import JobGraph


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


class StartingJob:
    def __init__(self, sides: list[DriverSide]) -> None:
        self._sides = sides

    def check_start(self, num_slots: int) -> None:
        for side in self._sides:
            side.check_start(num_slots)

    def started(self, client: JobClient) -> None:
        sides, self._sides = self._sides, []
        for side in sides:
            side.job_started(client)

    def refused(self) -> None:
        sides, self._sides = self._sides, []
        for side in sides:
            side.job_refused()


@contextlib.contextmanager
def starting_job(job_graph: JobGraph) -> Iterator[StartingJob]:
    """Around the making of the splits and the submission. What was not told that the job has started by the end of the
    block is told that it was refused."""
    heads = [vertex.operators[0].spec for vertex in job_graph.vertices]
    job = StartingJob(list(_sides(head.source for head in heads if isinstance(head, SourceSpec))))
    try:
        yield job
    finally:
        job.refused()


def _sides(sources: Iterable[Any]) -> Iterator[DriverSide]:
    for source in sources:
        if isinstance(source, DriverSide):
            yield source
        yield from _sides(getattr(source, "inner_sources", ()))
