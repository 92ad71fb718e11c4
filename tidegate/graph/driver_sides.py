"""The sources and sinks of a job that have something to do on the driver, told of its start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.common import Configuration, options
from tidegate.common.errors import JobGraphError
from tidegate.common.job_client import JobClient
from tidegate.contracts.driver_side import DriverSide
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SinkSpec, SourceSpec


class StartingJob:
    def __init__(self, sides: list[DriverSide]) -> None:
        self._sides = sides

    def check_start(self, num_slots: int) -> None:
        names: set[str] = set()
        for side in self._sides:
            name = side.exclusive_name
            if name is not None and name in names:
                raise JobGraphError(f"Two sinks or sources of this job have {name}; give each its own")
            names.update(() if name is None else (name,))
            side.check_start(num_slots)

    def check_checkpoints(self, configuration: Configuration) -> None:
        """Of a streaming job."""
        interval = options.read(configuration, options.CHECKPOINT_INTERVAL)
        apart = max(interval, options.read(configuration, options.CHECKPOINT_MIN_PAUSE)) if interval else None
        for side in self._sides:
            side.check_checkpoints(apart)

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
    specs = [node.spec for vertex in job_graph.vertices for node in vertex.operators]
    sources = [spec.source for spec in specs if isinstance(spec, SourceSpec)]
    sinks = [spec.sink for spec in specs if isinstance(spec, SinkSpec)]
    job = StartingJob(list(_sides([*sources, *sinks])))
    try:
        yield job
    finally:
        job.refused()


def _sides(connectors: Iterable[Any]) -> Iterator[DriverSide]:
    for connector in connectors:
        if isinstance(connector, DriverSide):
            yield connector
        yield from _sides(getattr(connector, "inner_sources", ()))
