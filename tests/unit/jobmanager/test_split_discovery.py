"""Splits that turn up while a job runs, in whole jobs without processes: found, handed out, kept in snapshots."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.common.job_status import JobStatus
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.contracts.connectors import (
    Boundedness,
    Discovery,
    Source,
    SourceContext,
    SourceSplit,
    SplitEnumerator,
    SplitReader,
)
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.graph.splits import make_splits
from tidegate.protocol.instructions import DiscoverSplits
from tidegate.protocol.messages import AssignSplits, SourceSplits
from tidegate.storage.handles import EnumeratorState
from tidegate.storage.metadata import decode_metadata, encode_metadata, read_metadata
from tidegate.testing.in_process_job import InProcessJob, graph_of

SHELF: list[str] = []
"""What the enumerators of this module see: names of splits. A `.` says that there will be no others."""
FAILURES: list[str] = []
READ: list[str] = []
"""Names of the splits that were read, in all attempts. The results of a job are there a checkpoint later."""


class Shelf(Source[str]):
    """Each split is its name, once; `slow` ones are never at their end."""

    def __init__(self, first: Sequence[str] = (), interval_ms: float | None = 100.0, slow: bool = False) -> None:
        self._first = tuple(first)
        self._interval_ms = interval_ms
        self._slow = slow

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED if self._slow else Boundedness.BOUNDED

    @property
    def discovery_interval_ms(self) -> float | None:
        return self._interval_ms

    def create_splits(self, parallelism: int) -> list[SourceSplit]:
        return [SourceSplit(name) for name in self._first]

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return ShelfEnumerator()

    def create_reader(self, split: SourceSplit, offset: Any, context: SourceContext) -> SplitReader[str]:
        return ShelfReader(split.split_id, offset, self._slow)


class ShelfEnumerator(SplitEnumerator):
    def discover(self, known: AbstractSet[str]) -> Discovery:
        if FAILURES:
            raise OSError(FAILURES.pop())
        new = [SourceSplit(name) for name in SHELF if name not in known and name != "."]
        return Discovery(new, complete="." in SHELF)


class ShelfReader(SplitReader[str]):
    def __init__(self, name: str, offset: int | None, slow: bool) -> None:
        self._name = name
        self._read = offset or 0
        self._slow = slow

    def poll(self, max_records: int) -> list[str] | None:
        if self._read:
            return [] if self._slow else None
        self._read = 1
        READ.append(self._name)
        return [self._name]

    def offset(self) -> int:
        return self._read

    def wake_at_ms(self) -> float | None:
        return 1e15


@pytest.fixture(autouse=True)
def empty_shelf() -> None:
    SHELF.clear()
    FAILURES.clear()
    READ.clear()


def job(source: Shelf, parallelism: int = 1, snapshot: Path | None = None, folder: Path | None = None) -> InProcessJob:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.enable_checkpointing(1000)
    if folder is not None:
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(folder))
    if snapshot is not None:
        env._configuration.set_string("execution.state-recovery.path", str(snapshot))
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "shelf").uid("shelf")
    return InProcessJob.collecting(stream)


def test_splits_are_found_at_once_and_then_every_interval() -> None:
    SHELF[:] = ["a", "b"]
    with job(Shelf(["a"])) as run:
        run.run()
        assert READ == ["a", "b"]
        SHELF.append("c")
        run.advance(50)
        assert READ == ["a", "b"]
        run.advance(60)
        assert READ == ["a", "b", "c"]
        assert [d.known for d in run.of(DiscoverSplits)] == [{"a"}, {"a", "b"}]
        SHELF.append(".")
        assert run.run_to_end() is JobStatus.FINISHED
        assert run.results == ["a", "b", "c"]


def test_splits_are_dealt_out_in_turn_after_those_of_the_submission() -> None:
    SHELF[:] = ["a", "b", "c", "d", "."]
    with job(Shelf(["a"]), 2) as run:
        assert run.run_to_end() is JobStatus.FINISHED
    given = {
        slot: [pickle.loads(s).split_id for m in run.told(AssignSplits, slot) for s in m.splits] for slot in (0, 1)
    }
    assert given == {0: ["c"], 1: ["b", "d"]}
    assert sorted(run.results) == ["a", "b", "c", "d"]


def test_a_source_without_splits_waits_for_some() -> None:
    with job(Shelf(slow=True)) as run:
        run.advance(1000)
        assert run.master.status is JobStatus.RUNNING
        SHELF.append("a")
        run.advance(200)
        assert READ == ["a"]


def test_a_repeated_message_adds_nothing() -> None:
    SHELF[:] = ["a"]
    with job(Shelf(slow=True)) as run:
        run.run()
        (message,) = run.told(AssignSplits)
        run.slots[0].on_message(message)
        run.advance(500)
        assert READ == ["a"]


def test_what_was_found_after_the_checkpoint_is_found_again() -> None:
    SHELF[:] = ["a", "b"]
    with job(Shelf(slow=True)) as run:
        run.run()
        run.checkpoint()
        SHELF.append("c")
        run.advance(150)
        assert READ == ["a", "b", "c"]
        run.kill_worker()
        run.advance(3000)
        assert run.restarts == 1
        assert READ == ["a", "b", "c", "c"]
        assert run.results == ["a", "b", "c"]
        assert [pickle.loads(s).split_id for m in run.told(AssignSplits) for s in m.splits] == ["a", "b", "c", "c"]


def test_splits_that_were_read_to_their_end_are_forgotten_by_the_readers_and_known_to_the_checkpoint() -> None:
    SHELF[:] = ["a", "b"]
    with job(Shelf()) as run:
        run.advance(10)
        run.checkpoint()
        (checkpoint,) = run.coordinator.store.checkpoints[-1:]
        (state,) = checkpoint.metadata.enumerators.values()
        assert state == EnumeratorState(known=["a", "b"], handed_out=2)
        splits = [s for o in checkpoint.metadata.operators for t in o.subtasks for s in t.lists if "splits" in s.name]
        assert [s.count for s in splits] == [0]
        run.kill_worker()
        SHELF.append(".")
        assert run.run_to_end() is JobStatus.FINISHED
        assert run.results == ["a", "b"]


def test_a_complete_source_ends_after_a_recovery_too() -> None:
    SHELF[:] = ["a", "."]
    with job(Shelf(["z"]), 2) as run:
        run.step(3)
        run.kill_worker()
        assert run.run_to_end() is JobStatus.FINISHED
        assert sorted(run.results) == ["a", "z"]


def test_an_enumerator_that_raises_fails_the_attempt_and_is_asked_again() -> None:
    SHELF[:] = ["a", "."]
    FAILURES[:] = ["the shelf is locked"]
    with job(Shelf()) as run:
        assert run.run_to_end() is JobStatus.FINISHED
        assert run.restarts == 1
        assert "'Source: shelf': looking for new splits: OSError: the shelf is locked" in run.logged
        assert run.results == ["a"]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_savepoint_restores_at_any_parallelism(tmp_path: Path, parallelism: int) -> None:
    SHELF[:] = ["a", "b", "c"]
    with job(Shelf(["a"], slow=True), 2) as run:
        run.run()
        run.stop(tmp_path / "s")
        assert run.run_to_end() is JobStatus.FINISHED
    SHELF.append("d")
    with job(Shelf(["a"], slow=True), parallelism, tmp_path / "s") as again:
        READ.clear()
        again.advance(500)
        assert READ == ["d"]
        assert {name for m in again.heard(SourceSplits) for name in m.names} == {"a", "b", "c"}


def test_a_savepoint_of_a_source_that_did_not_grow_restores_into_one_that_does(tmp_path: Path) -> None:
    """Snapshots of older versions: nothing but the states of the readers says which splits there were."""
    with job(Shelf(["a", "b"], interval_ms=None, slow=True), 3) as run:  # the third subtask is at its end at once
        run.run()
        run.stop(tmp_path / "s")
        assert run.run_to_end() is JobStatus.FINISHED
    assert read_metadata(str(tmp_path / "s")).metadata.enumerators == {}
    SHELF[:] = ["a", "b", "c", "d"]
    with job(Shelf(["a", "b"], slow=True), 3, tmp_path / "s") as again:
        READ.clear()
        again.advance(500)
        assert READ == ["c", "d"]


def test_a_savepoint_of_a_growing_source_restores_into_one_that_does_not(tmp_path: Path) -> None:
    SHELF[:] = ["a", "b"]
    with job(Shelf(slow=True)) as run:
        run.run()
        run.stop(tmp_path / "s")
        assert run.run_to_end() is JobStatus.FINISHED
    with job(Shelf(interval_ms=None), 1, tmp_path / "s") as again:
        READ.clear()
        assert again.run_to_end() is JobStatus.FINISHED
        assert READ == []


def test_metadata_without_enumerators_is_read(tmp_path: Path) -> None:
    with job(Shelf(["a"], interval_ms=None, slow=True)) as run:
        run.run()
        run.stop(tmp_path / "s")
        run.run_to_end()
    metadata = read_metadata(str(tmp_path / "s")).metadata
    plain = msgspec.to_builtins(metadata)
    del plain["enumerators"]
    old = msgspec.convert(plain, type(metadata))
    assert decode_metadata(encode_metadata(old), "here").enumerators == {}


def test_a_batch_job_waits_until_all_splits_are_there() -> None:
    SHELF[:] = ["a", "b", "."]
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(Shelf(["a"]), WatermarkStrategy.no_watermarks(), "shelf").print()
    (head,) = [v.operators[0] for v in make_splits(graph_without_splits(env), all_of_them=True).vertices]
    assert [s.split_id for s in head.spec.splits] == ["a", "b"]


def graph_without_splits(env: StreamExecutionEnvironment) -> Any:
    graph = graph_of(env)
    (vertex,) = graph.vertices
    head = vertex.operators[0]
    bare = replace(head, spec=replace(head.spec, splits=None))
    return replace(graph, vertices=(replace(vertex, operators=(bare, *vertex.operators[1:])),))
