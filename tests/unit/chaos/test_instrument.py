"""The faults that are put into workers and storage, one by one, in whole jobs in one process; and rates, by a clock."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.chaos import kit
from tests.unit.chaos.kit import run_in_process
from tidegate.chaos import instrument
from tidegate.chaos.draws import WorkerFault
from tidegate.chaos.instrument import ChaosInstrument, slow_down
from tidegate.chaos.recording import recorded
from tidegate.chaos.rewriting import Rewritten, rewrite
from tidegate.chaos.rounds import Run
from tidegate.chaos.segment import Segment, faults_of
from tidegate.chaos.storage_faults import BadTime, ChaosStorage
from tidegate.common.errors import StorageUnavailableError
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import MapFunction, StreamExecutionEnvironment
from tidegate.jobmanager.runtime import Submission
from tidegate.storage.cleanup import Deletion
from tidegate.storage.location import StorageLocation
from tidegate.storage.worker_storage import FileSystemWorkerStorage
from tidegate.taskmanager import commit_retries
from tidegate.testing import Record, Wait, scripted

RECORDS = 60
KINDS = ("exception", "commit", "storage")


class Clock:
    now = 100.0


def now() -> float:
    return Clock.now


def pass_by(seconds: float) -> None:
    Clock.now += seconds


class Ticks(MapFunction):
    """A hundredth of a second passes with each record."""

    def map(self, value: Any) -> Any:
        Clock.now += 0.01
        return value


def run(folder: Path, patch: pytest.MonkeyPatch, *faults: WorkerFault) -> Run:
    """Under one fault in each of its first attempts."""

    def with_clock(submission: Submission, segment: Segment) -> Rewritten:
        rewritten = rewrite(submission, segment)
        given: Any = rewritten.submission.instrument
        made = ChaosInstrument(segment, 1, 3.0, given._targets, now)
        return dataclasses.replace(rewritten, submission=dataclasses.replace(rewritten.submission, instrument=made))

    def build(env: StreamExecutionEnvironment) -> None:
        steps = [step for i in range(RECORDS) for step in (Record((i % 3, i), i), Wait(5))]
        scripted(env, steps).map(Ticks()).name("ticks").sink_to(CollectSink())

    patch.setattr(instrument, "worker_faults", lambda segment, attempt, slots: faults[attempt : attempt + 1])
    patch.setattr(kit, "rewrite", with_clock)
    return run_in_process(folder, build, kinds=KINDS, seed="1", faults_left=1)


def values(found: Run) -> list[Any]:
    sink = found.segments[0].operators[-1]
    return sorted(one.text for one in recorded(found.folder, sink.operator_id))


def all_values() -> list[str]:
    return sorted(str((i % 3, i)) for i in range(RECORDS))


@pytest.mark.parametrize(
    ("fault", "restarts", "told"),
    [
        (WorkerFault("exception", 0, 0.2, 1.0, choice=0.0), 1, "an exception in 'Source: "),
        (WorkerFault("exception", 0, 0.2, 1.0, choice=0.7), 1, "an exception in 'ticks', subtask 0"),
        (WorkerFault("exception", 0, 0.2, 1.0, choice=0.9), 1, "an exception in 'Sink: "),
        (WorkerFault("commit", 0, 0.1, 0.1, choice=0.0), None, "commits fail"),
        (WorkerFault("storage", 0, 0.1, 0.1, choice=0.0), 0, "storage fails"),
        (WorkerFault("storage", 0, 0.1, 0.1, choice=0.99), 0, "storage is full"),
    ],
    ids=lambda one: one.kind if isinstance(one, WorkerFault) else None,
)
def test_a_fault_strikes_is_noted_and_leaves_no_trace_in_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: WorkerFault, restarts: int | None, told: str
) -> None:
    monkeypatch.setattr(commit_retries, "time", SimpleNamespace(sleep=pass_by))
    found = run(tmp_path / "run", monkeypatch, fault)
    (noted,) = faults_of(found.folder)
    assert (noted["kind"], noted["attempt"]) == (fault.kind, 0)
    assert noted["detail"].startswith(told)
    assert restarts is None or found.segments[0].restarts == restarts
    assert values(found) == all_values()


def test_storage_may_fail_where_an_attempt_reads_the_state_that_it_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its own moment: nothing is read then."""
    first, second = WorkerFault("exception", 0, 0.2, 1.0, choice=0.9), WorkerFault("storage", 0, 1e9, 0.1, choice=0.2)
    found = run(tmp_path / "run", monkeypatch, first, second)
    assert [(noted["kind"], noted["attempt"]) for noted in faults_of(found.folder)] == [
        ("exception", 0),
        ("storage", 1),
    ]
    assert found.segments[0].restarts == 2
    assert values(found) == all_values()


def test_before_its_moment_and_in_another_slot_nothing_strikes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, fault in enumerate(
        [WorkerFault(kind, 0, 1e9, 1.0, 0.0) for kind in KINDS] + [WorkerFault("exception", 1, 0.0, 1.0, 0.9)]
    ):
        found = run(tmp_path / f"run {number}", monkeypatch, fault)
        assert not list(faults_of(found.folder))
        assert found.segments[0].restarts == 0
        assert values(found) == all_values()


def test_slow_storage_only_takes_its_time() -> None:
    slept: list[float] = []
    bad = BadTime(90.0, 110.0, "is slow", lambda: None, clock=lambda: 100.0, sleep=slept.append)
    bad.strike()
    assert len(slept) == 1
    dataclasses.replace(bad, ends=100.0).strike()  # it is over
    assert len(slept) == 1


class Storage:
    """As far as `ChaosStorage` needs one."""

    root = "/checkpoints"

    def __init__(self) -> None:
        self.deleted: list[Deletion] = []

    def worker_storage(self) -> FileSystemWorkerStorage:
        return FileSystemWorkerStorage(StorageLocation.parse("/checkpoints"))

    def write_metadata(self, metadata: Any) -> str:
        return f"chk-{metadata.checkpoint_id}"

    def delete(self, deletion: Deletion) -> list[str]:
        self.deleted.append(deletion)
        return []


def test_the_newest_checkpoint_stays_and_metadata_may_have_a_bad_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.chaos.storage_faults.checkpoint_files", lambda metadata: ["shared/a"])
    below: Any = Storage()
    clock = [0.0]
    storage = ChaosStorage(below, BadTime(10.0, 20.0, "fails", lambda: None, clock=lambda: clock[0]))
    metadata: Any = SimpleNamespace(checkpoint_id=7)
    assert storage.write_metadata(metadata) == "chk-7"
    storage.delete(Deletion(["shared/a", "shared/b", "chk-7/_metadata"], ["chk-6", "chk-7"]))
    assert below.deleted == [Deletion(["shared/b"], ["chk-6"])]
    assert storage.root == "/checkpoints"
    clock[0] = 15.0
    with pytest.raises(StorageUnavailableError, match="does not answer"):
        storage.write_metadata(metadata)
    clock[0] = 20.0
    storage.write_metadata(metadata)


def test_the_driver_may_not_complete_a_savepoint_and_its_bad_time_is_not_shipped_to_workers(tmp_path: Path) -> None:
    below: Any = Storage()
    clock = [15.0]
    storage = ChaosStorage(below, BadTime(10.0, 20.0, "is full", lambda: None, clock=lambda: clock[0])).worker_storage()
    files = storage.savepoint_files(str(tmp_path / "savepoint"))
    file = files.create("_metadata")
    file.write(b"some")
    with pytest.raises(StorageUnavailableError, match="No space left"):
        file.commit()
    file.discard()  # as after any failure
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "savepoint"])
    clock[0] = 20.0
    file = files.create("_metadata")
    file.write(b"some")
    file.commit()
    assert files.read("_metadata") == b"some"
    assert pickle.loads(pickle.dumps(storage)) == below.worker_storage()


def test_a_disk_that_is_full_can_be_read() -> None:
    bad = BadTime(90.0, 110.0, "is full", lambda: None, clock=lambda: 100.0)
    bad.strike(reading=True)
    assert not bad.struck
    with pytest.raises(StorageUnavailableError):
        dataclasses.replace(bad, way="fails").strike(reading=True)


def test_a_source_is_slowed_down_to_its_rate() -> None:
    clock, asked = [0.0], []

    def poll(max_records: int, now_ms: float) -> int:
        asked.append(max_records)
        return max_records

    source: Any = SimpleNamespace(poll=poll, wake_at_ms=None)
    slow_down(source, 10.0, lambda: clock[0])
    got = 0
    for step in range(101):
        clock[0] = step / 10  # ten seconds
        got += source.poll(1000, clock[0] * 1000)
    assert 98 <= got <= 102
    assert source.poll(1000, 10_000.0) == 0
    assert source.wake_at_ms > 10_000.0
    clock[0] = 1000.0  # a long pause is no credit for a flood
    assert source.poll(1000, 1e6) <= 2
    assert all(asked)
