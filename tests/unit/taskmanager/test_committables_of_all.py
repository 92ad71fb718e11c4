"""A sink that asks for it is told at its start what waits to be committed in all subtasks, not only in its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_jobs import environment, ticks

from tidegate.common.errors import JobGraphError
from tidegate.common.job_status import JobStatus
from tidegate.contracts.driver_side import DriverSide
from tidegate.datastream.connectors.base import Committer, Sink, SinkContext, SinkWriter
from tidegate.graph.driver_sides import StartingJob
from tidegate.testing.in_process_job import InProcessJob


class Seen:
    contexts: list[SinkContext] = []


class Curious(Sink[Any, Any]):
    def __init__(self, sees_all: bool) -> None:
        self.sees_all_committables = sees_all

    def shown_to_all(self, committable: str) -> str:
        return committable.upper()

    def create_writer(self, context: SinkContext) -> SinkWriter[Any, Any]:
        Seen.contexts.append(context)
        return _Writer(context.subtask)

    def create_committer(self) -> Committer[Any]:
        return _Committer()


class _Writer(SinkWriter[Any, Any]):
    def __init__(self, subtask: int) -> None:
        self._subtask = subtask

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None: ...

    def prepare_commit(self) -> list[Any]:
        return [f"of {self._subtask}"]


class _Committer(Committer[Any]):
    def commit(self, committables: list[Any]) -> list[Any]:
        return []


def job(directory: Path, parallelism: int, sees_all: bool, keys: dict[str, Any] | None = None) -> Any:
    settings = {
        "execution.checkpointing.interval": "50 ms",
        "execution.checkpointing.dir": str(directory),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        **(keys or {}),
    }
    env = environment(settings, parallelism)
    ticks(env, count=40).rebalance().sink_to(Curious(sees_all)).uid("out")
    return env


@pytest.mark.parametrize("sees_all", [True, False])
def test_after_a_rescaling_each_writer_is_told_of_all_committables(tmp_path: Path, sees_all: bool) -> None:
    with InProcessJob(job(tmp_path / "a", 3, sees_all)) as first:
        first.advance(200).cancel()
    path = max((tmp_path / "a").glob("*/chk-*"), key=lambda p: int(p.name[4:]))
    Seen.contexts = []
    with InProcessJob(job(tmp_path / "b", 2, sees_all, {"execution.state-recovery.path": str(path)})) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED, resumed.failure
    assert len(Seen.contexts) == 2
    own = [context.restored_committables for context in Seen.contexts]
    assert sorted({*own[0], *own[1]}) == ["of 0", "of 1", "of 2"]
    assert all(set(part) != {"of 0", "of 1", "of 2"} for part in own)  # each has a share, nobody has all
    expected = {"OF 0", "OF 1", "OF 2"} if sees_all else set()
    assert [set(context.committables_of_all) for context in Seen.contexts] == [expected, expected]


class Side(DriverSide):
    def __init__(self, name: str | None) -> None:
        self._name = name

    @property
    def exclusive_name(self) -> str | None:
        return self._name

    def job_started(self, client: Any) -> None: ...

    def job_refused(self) -> None: ...


def test_two_connectors_of_a_job_cannot_have_one_exclusive_name() -> None:
    StartingJob([Side("the prefix 'a'"), Side("the prefix 'b'"), Side(None), Side(None)]).check_start(1)
    with pytest.raises(JobGraphError, match="have the prefix 'a'; give each its own"):
        StartingJob([Side("the prefix 'a'"), Side(None), Side("the prefix 'a'")]).check_start(1)
