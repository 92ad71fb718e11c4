"""The sources of a job that keep something on the driver, told of its start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.common.job_client import JobClient
from tidegate.contracts.driver_side import DriverSide
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SourceSpec


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
