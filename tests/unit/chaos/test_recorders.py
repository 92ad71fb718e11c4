"""Recorders show what any sink would: records that are committed twice are there twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.chaos.kit import run_in_process
from tidegate.chaos.comparison import compare
from tidegate.chaos.recording import RecordingSink, recorded
from tidegate.common.ids import CheckpointId
from tidegate.contracts.collect_sink import CollectSink
from tidegate.contracts.connectors import Committer, DeliveryGuarantee, SinkContext
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.taskmanager.operators.sink import SinkOperator
from tidegate.testing import KillWorker, ManualClock, Record, StorageFails, Wait, scripted

SINK = "s"


def attempt(folder: Path, number: int, values: list[str], restored: list[Any]) -> tuple[list[tuple[str, str]], Any]:
    """The committables of an attempt that takes one checkpoint, and the state of its writer in that."""
    sink = RecordingSink(str(folder), SINK, DeliveryGuarantee.EXACTLY_ONCE, "auto", 0)
    writer = sink.create_writer(
        SinkContext("job", "recorder", 0, 1, number, ManualClock(), restored_state=restored, operator_id=SINK)
    )
    writer.write_batch(values, None)
    writer.flush(end_of_input=False)
    return writer.prepare_commit(), writer.snapshot_state(number)


def committer(folder: Path) -> Committer[tuple[str, str]]:
    made = RecordingSink(str(folder), SINK, DeliveryGuarantee.EXACTLY_ONCE, "auto", 0).create_committer()
    assert made is not None
    return made


def texts(folder: Path) -> list[str]:
    return [one.text for one in recorded(str(folder), SINK)]


def test_what_an_older_checkpoint_brings_again_is_there_twice(tmp_path: Path) -> None:
    """The first attempt has committed what the second, which starts from before that, writes and commits again."""
    first, _ = attempt(tmp_path, 0, ["a1", "a2"], [])
    committer(tmp_path).commit(first)
    second, _ = attempt(tmp_path, 1, ["a1", "a2", "a3"], [])
    committer(tmp_path).commit(second)
    assert sorted(texts(tmp_path)) == ["'a1'", "'a1'", "'a2'", "'a2'", "'a3'"]


def test_a_commit_that_is_repeated_shows_nothing_twice(tmp_path: Path) -> None:
    first, state = attempt(tmp_path, 0, ["a1", "a2"], [])
    committer(tmp_path).commit(first)
    committer(tmp_path).commit(first)
    second, _ = attempt(tmp_path, 1, ["a3"], state)
    committer(tmp_path).commit(second)
    assert texts(tmp_path) == ["'a1'", "'a2'", "'a3'"]  # in their order


def slow(env: StreamExecutionEnvironment) -> None:
    steps = [step for i in range(60) for step in (Record((f"k{i % 3}", i), 1_000 + i), Wait(5))]
    scripted(env, steps).map(lambda v: v).name("same").sink_to(CollectSink())


@pytest.mark.parametrize("early", [False, True])
def test_a_commit_before_the_end_of_its_checkpoint_is_doubled(
    tmp_path: Path, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint fails after its snapshots were taken, and the next attempt goes on from the one before. A sink that
    has committed with the snapshot, as is planted here, has its records twice then."""
    expected = run_in_process(tmp_path / "undisturbed", slow)
    if early:
        take = SinkOperator.update_state

        def hasty(self: SinkOperator, checkpoint_id: CheckpointId, timestamp: int) -> None:
            take(self, checkpoint_id, timestamp)
            self.notify_complete(checkpoint_id)

        monkeypatch.setattr(SinkOperator, "update_state", hasty)
    faults = [StorageFails(checkpoint=3, for_ms=200, how="full"), KillWorker(checkpoint=5)]
    run = run_in_process(tmp_path / "round 1", slow, faults)
    assert run.segments[-1].restarts == 1
    verdict = compare(expected, run)
    assert [sink.doubled > 0 for sink in verdict.sinks] == [early]
    assert [(sink.lost, sink.changed) for sink in verdict.sinks] == [(0, 0)]
    assert verdict.held is not early
