"""Commits at the end of a batch job, or of a micro-batch, on the driver: once per sink, what the tasks whose output
counts have prepared. And what the others have prepared is undone when the job is over."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from tidegate.common.errors import TidegateError
from tidegate.common.ids import OperatorId
from tidegate.graph.job_graph import JobGraph, OperatorNode
from tidegate.graph.operator_specs import SinkSpec
from tidegate.taskmanager.commit_retries import FailedTry, commit_with_retries

log = logging.getLogger("tidegate.batch")


class BatchCommitError(TidegateError):
    """Committables could not be committed within the allowed number of tries."""


def sinks_of(graph: JobGraph) -> Iterator[tuple[OperatorNode, Any]]:
    for vertex in graph.vertices:
        for node in vertex.operators:
            if isinstance(node.spec, SinkSpec):
                yield node, node.spec.sink


def commit_all(
    graph: JobGraph, committables: dict[OperatorId, list[Any]], retries: int, backoff_ms: float
) -> dict[OperatorId, int]:
    """How many each sink has committed. Raises at the first sink that cannot."""
    done = {}
    for node, sink in sinks_of(graph):
        waiting = committables.get(node.operator_id)
        if waiting:
            _commit(node.name, sink.create_committer(), waiting, retries, backoff_ms)
            done[node.operator_id] = len(waiting)
    return done


def _commit(name: str, committer: Any, waiting: list[Any], retries: int, backoff_ms: float) -> None:
    def warn(failed: FailedTry) -> None:
        log.warning("operator '%s': %s", name, failed.describe())

    try:
        left, last_error = commit_with_retries(committer, waiting, retries, backoff_ms, warn)
    finally:
        with contextlib.suppress(Exception):  # all is committed, or the error says what is not
            committer.close()
    if left:
        raise BatchCommitError(
            f"operator '{name}': {len(left)} of {len(waiting)} committables could not be committed in {retries + 1} "
            f"tries, the others are. Last error: {last_error!r}. Remove what is there before you run the job again"
        ) from last_error


def discard_leftovers(graph: JobGraph, job_id: str) -> None:
    """What attempts that do not count have written. Best effort."""
    for node, sink in sinks_of(graph):
        try:
            sink.discard_leftovers(job_id)
        except Exception as error:
            log.warning("operator '%s': left-overs of failed attempts could not be deleted: %s", node.name, error)


def discard_uncommitted(graph: JobGraph, job_id: str) -> None:
    """What the last batch of a micro-batch job has prepared, which does not count. Best effort."""
    for node, sink in sinks_of(graph):
        try:
            sink.discard_uncommitted(job_id)
        except Exception as error:
            log.warning("operator '%s': what was prepared and does not count could not be undone: %s", node.name, error)
