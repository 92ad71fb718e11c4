"""Sinks whose commits go wrong for a while."""

from __future__ import annotations

from typing import Any

from tidegate.chaos.storage_faults import BadTime
from tidegate.contracts.connectors import Committer, Sink


def fail_commits(sink: Sink[Any, Any], bad_time: BadTime) -> None:
    """From now on the committers that `sink` makes have a bad time. For a copy of the sink that is the worker's own."""
    create = sink.create_committer

    def create_committer() -> Committer[Any] | None:
        committer = create()
        return None if committer is None else _FailingCommits(committer, bad_time)

    object.__setattr__(sink, "create_committer", create_committer)


class _FailingCommits(Committer[Any]):
    """A committer in a bad time."""

    def __init__(self, committer: Committer[Any], bad_time: BadTime) -> None:
        self._committer = committer
        self._bad_time = bad_time

    def commit(self, committables: list[Any]) -> list[Any]:
        self._bad_time.strike()
        return self._committer.commit(committables)

    def close(self) -> None:
        self._committer.close()
