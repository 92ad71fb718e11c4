"""The process that runs the program: what it says of a program that is none for chaos, and the stop of a rescale."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tidegate.chaos import child
from tidegate.chaos.comparison import Verdict
from tidegate.chaos.process_groups import ProcessGroups
from tidegate.chaos.rewriting import ChaosError
from tidegate.chaos.rounds import Rounds
from tidegate.chaos.segment import (
    VARIABLE,
    FailureSeen,
    Segment,
    SegmentResult,
    faults_of,
    problem_of,
    write_result,
)
from tidegate.chaos.wishes import Wishes
from tidegate.common import JobStatus
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.ids import CheckpointId
from tidegate.datastream import stream_execution_environment
from tidegate.datastream.interception import intercept
from tidegate.jobmanager.leadership.ended_job import EndedJobClient
from tidegate.jobmanager.leadership.job_record import GraphOutline, JobRecord, SnapshotPointer, encode
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.runtime import Submission
from tidegate.storage.leases.cells import open_cell
from tidegate.storage.location import StorageLocation

# ---------------------------------------------------------------- programs that are not for chaos


def run_program(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code of the process that runs it."""
    (folder / "program.py").write_text(text)
    segment = Segment(folder=str(folder), records=5)
    monkeypatch.setenv(VARIABLE, str(segment.write()))
    monkeypatch.setattr(sys, "argv", ["child", str(folder / "program.py")])
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        return child.main()
    except SystemExit as ended:
        return ended.code
    finally:
        intercept(None)


NO_JOB = "ended without running a job: it has to call env.execute()"


@pytest.mark.parametrize("text", ["", "import sys; sys.exit(0)", "import sys; sys.exit()"])
def test_a_program_that_runs_no_job_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_program(tmp_path, text, monkeypatch) == child.NOT_FOR_CHAOS
    assert NO_JOB in (problem_of(str(tmp_path)) or "")


def test_a_program_that_fails_before_its_job_says_why_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_program(tmp_path, "import sys; sys.exit('usage: a file')", monkeypatch) == "usage: a file"
    with pytest.raises(ZeroDivisionError):
        run_program(tmp_path, "1 / 0", monkeypatch)
    assert problem_of(str(tmp_path)) is None


TWO_JOBS = """
import sys
from tidegate.datastream import StreamExecutionEnvironment

def job():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1, 2]).print()
    env.execute()

job()
try:
    job()
except {caught}:
    pass
{end}
"""


@pytest.mark.parametrize(
    ("caught", "end"),
    [("Exception", "sys.exit(0)"), ("ZeroDivisionError", ""), ("Exception", "1 / 0"), ("Exception", "sys.exit(3)")],
)
def test_a_program_that_runs_two_jobs_is_refused_whatever_it_makes_of_that(
    caught: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_execution_environment, "runtime_of", lambda *_: SimpleNamespace(submit=ended_at_once))
    assert run_program(tmp_path, TWO_JOBS.format(caught=caught, end=end), monkeypatch) == child.NOT_FOR_CHAOS
    assert "starts a second job; tidegate chaos follows one" in (problem_of(str(tmp_path)) or "")


def ended_at_once(submission: Submission) -> PublishedJobClient:
    outline = GraphOutline(operators=(), edges=())
    record = JobRecord(job_id=submission.graph.job_id, name="job", graph=outline, status="FINISHED")
    return EndedJobClient(record, "", submission.graph, submission.configuration)


class ProgramsThatAreRefused(Rounds):
    """And end by themselves all the same."""

    def _start(self, processes: ProcessGroups, segment: Segment, seconds: float) -> tuple[int | None, str]:
        (Path(segment.folder) / "problem.txt").write_text("it is not for chaos")
        return 0, ""


def test_what_refuses_a_program_is_said_whatever_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(ChaosError, match="it is not for chaos"):
        ProgramsThatAreRefused(Wishes(program="job.py"), str(tmp_path)).undisturbed()


class FinishesAndFails(Rounds):
    """The job of the program finishes, after a failure that it has recovered from; the program itself does not. With
    `driver` its first start is killed."""

    driver = False

    def _start(self, processes: ProcessGroups, segment: Segment, seconds: float) -> tuple[int | None, str]:
        killed = self.driver and segment.number == 0
        result = SegmentResult(
            job_id="x",
            operators=(),
            notes=(),
            status="RUNNING" if killed else "FINISHED",
            failures=(FailureSeen(attempt=0, at_ms=1.0, summary="injected"),),
        )
        write_result(segment.folder, segment.number, result)
        return (-9, "") if killed else (3, "AssertionError: 7 results and not 8")


@pytest.mark.parametrize("driver", [False, True])
def test_a_program_that_fails_though_its_job_has_finished_does_not_hold(driver: bool, tmp_path: Path) -> None:
    rounds = FinishesAndFails(Wishes(program="job.py", rounds=1, kinds=("kill", "driver")), str(tmp_path))
    rounds.driver = driver
    (run,) = rounds.disturbed()
    assert not Verdict(run).held
    assert run.problem is not None
    assert run.problem.startswith("the job has finished, but the program ended with exit code 3")
    assert "7 results and not 8" in run.problem
    assert ("start 2 of this round" in run.problem) == driver


# ---------------------------------------------------------------- the stop of a rescale


class Stopping:
    """A job that is stopped with a savepoint at the third request, and takes three looks for it: the first two are too
    early. A request while another goes on is refused."""

    def __init__(self, ends_first: bool = False) -> None:
        self.requests, self.ended = 0, False
        self._ends_first = ends_first  # before its savepoint is told
        self._looks_left = 3
        self._under_way: CompletableFuture[str] | None = None

    def view(self) -> Any:
        if self._under_way is not None:
            self._looks_left -= 1
            if self._looks_left <= 0:
                self.ended = True
            if self._looks_left == 0 and not self._ends_first:
                self._under_way.complete("found")
        ended_ms = 1.0 if self.ended else None
        return SimpleNamespace(attempt=0, metrics=(), ended_ms=ended_ms, status=JobStatus.RUNNING)

    def stop_with_savepoint(self, drain: bool, folder: str) -> CompletableFuture[str]:
        self.requests += 1
        if self.requests < 3 or self._under_way is not None:
            return CompletableFuture.failed(RuntimeError("the job was restarting, or is being stopped"))
        self._under_way = CompletableFuture()
        if self._ends_first:
            self._under_way.result = lambda timeout=None: "found"  # type: ignore[method-assign, assignment]
        return self._under_way


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_rescale_is_asked_for_until_it_is_under_way_and_then_waited_for(
    ends_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment(folder=str(tmp_path), kinds=("rescale",), every_s=0.001, faults_left=1)
    job: Any = Stopping(ends_first)
    rewritten: Any = SimpleNamespace(scalable=2)
    watch = child.Watch(segment, rewritten, job)
    noted: list[str | None] = []
    monkeypatch.setattr(watch, "_write", lambda view: noted.append(watch._savepoint))
    watch.run()
    assert job.requests == 3
    assert noted[-1] == "found"
    assert [fault["kind"] for fault in faults_of(str(tmp_path))] == ["rescale"]


class StoppedAndNotNoted(Rounds):
    """A program whose job is stopped, which its driver does not live to note: the next one finishes what there is, and
    finds in the record that it was stopped."""

    def __init__(self, wishes: Wishes, folder: str) -> None:
        super().__init__(wishes, folder)
        self.started: list[Segment] = []

    def _start(self, processes: ProcessGroups, segment: Segment, seconds: float) -> tuple[int | None, str]:
        self.started.append(segment)
        status = "SUSPENDED" if len(self.started) == 1 else "FINISHED"
        pointer = SnapshotPointer(checkpoint_id=CheckpointId(7), path="file:/savepoint-7", epoch=1)
        record = JobRecord(
            job_id="x",
            name="job",
            graph=GraphOutline(operators=(), edges=()),
            status="FINISHED",
            savepoint=pointer if len(self.started) < 3 else None,
            stopped=len(self.started) < 3,
        )
        cell = open_cell(StorageLocation.parse(segment.leases).child(segment.cluster_id), "job", conditional=True)
        there = cell.read()
        cell.put(encode(record), None if there is None else there.version)
        result = SegmentResult(job_id="x", operators=(), notes=(), status=status, scalable=2)
        write_result(segment.folder, segment.number, result)
        return 0, ""


def test_a_stop_that_no_driver_has_noted_is_found_in_the_record(tmp_path: Path) -> None:
    """Otherwise half of the output would be judged as the whole."""
    wishes = Wishes(program="job.py", rounds=1, kinds=("rescale",))
    rounds = StoppedAndNotNoted(wishes, str(tmp_path))
    (run,) = rounds.disturbed()
    assert run.ended
    assert [(one.number, one.job_since, one.restore) for one in rounds.started] == [
        (0, 0, None),
        (1, 0, None),
        (2, 2, "file:/savepoint-7"),
    ]
    assert [fault["kind"] for fault in run.faults] == ["rescale"]


def test_a_job_that_has_finished_by_itself_is_not_continued(tmp_path: Path) -> None:
    rounds = Rounds(Wishes(program="job.py"), str(tmp_path))
    segment = Segment(folder=str(tmp_path), faults_left=3)
    result = SegmentResult(job_id="x", operators=(), notes=(), scalable=2, status="FINISHED")
    assert rounds._next_segment(segment, result, 0, random.Random(1), 0) is None
    saved = msgspec.structs.replace(result, savepoint="there")
    assert rounds._next_segment(segment, saved, 0, random.Random(1), 0) is not None
