"""Runs the program again and again: undisturbed, then round after round under faults."""

from __future__ import annotations

import glob
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tidegate.chaos.process_groups import ProcessGroups
from tidegate.chaos.recording import totals
from tidegate.chaos.rewriting import ChaosError
from tidegate.chaos.segment import (
    FOLDER,
    STOPPED,
    VARIABLE,
    Segment,
    SegmentResult,
    faults_of,
    note_fault,
    problem_of,
    read_result,
)
from tidegate.chaos.sources import measured_limits
from tidegate.chaos.wishes import Wishes
from tidegate.common.job_status import JobStatus
from tidegate.jobmanager.leadership.settings import HighAvailability
from tidegate.storage.job_directory import METADATA_NAME, checkpoint_of_directory
from tidegate.storage.location import StorageLocation

_MOST_SEGMENTS = 20  # of a round: then its driver is left alone
LONGEST_RUN_S = 3600.0  # of the program without faults, and of the user's command
_FIRST = "undisturbed 1"
_SHOWN_OUTPUT = 2000  # characters of what the program printed, when it has failed


@dataclass
class Run:
    """One undisturbed run or one round: everything that its processes have left."""

    name: str
    folder: str
    segments: list[SegmentResult] = field(default_factory=list)
    faults: list[dict[str, object]] = field(default_factory=list)
    problem: str | None = None  # why it did not come to its end
    seconds: float = 0.0
    decided: bool = False  # by the command of the user, whatever is compared beside that
    verified: str | None = None  # what that command said against it

    @property
    def ended(self) -> bool:
        return self.problem is None

    @property
    def failed_job(self) -> SegmentResult | None:
        """The job that has ended as failed, and why."""
        last = self.segments[-1] if self.segments else None
        return last if last is not None and last.status == JobStatus.FAILED.name and last.failures else None


class Rounds:
    """`undisturbed` (or `measured`) first, then `disturbed`. Raises ChaosError when the program cannot be put under
    chaos at all."""

    def __init__(self, wishes: Wishes, folder: str) -> None:
        self._wishes = wishes
        self._folder = folder
        self._rates: dict[str, float] = {}
        self._limits: dict[str, dict[str, int]] = {}  # of the first run, for all others
        self._records = wishes.records
        self._duration_s = wishes.duration_s
        self._longest_s = 0.0  # of the undisturbed runs

    def undisturbed(self) -> list[Run]:
        """Two runs that ought to be equal. The first is measured, the second is slowed down as all others are. One
        alone when its job has failed: then the program fails by itself."""
        first = self.measured()
        return [first, self._undisturbed("undisturbed 2")] if first.ended else [first]

    def measured(self) -> Run:
        """The first of them alone: for a program that is known to give the same in every run."""
        first = self._undisturbed(_FIRST)
        if not first.ended:
            return first
        self._limits = measured_limits(first.folder)
        self._duration_s = None
        self._rates = self._rates_of(first)
        return first

    def _undisturbed(self, name: str) -> Run:
        run = self._run(name, Segment(folder="", order_by=self._wishes.order_by), LONGEST_RUN_S)
        if run.failed_job is not None and name == _FIRST:
            return run
        if run.problem is not None:
            raise ChaosError(f"the program does not run undisturbed: {run.problem}")
        if run.verified is not None:
            raise ChaosError(
                f"--verify rejects a run without any fault, so it could not tell what faults do: {run.verified}. It is "
                f"run after each run and has to look at what that one has written: ${FOLDER} names its folder"
            )
        self._longest_s = max(self._longest_s, run.seconds)
        return run

    def _rates_of(self, run: Run) -> dict[str, float]:
        """So that a run lasts `stretch_s`; {} when it does by itself."""
        last = run.segments[-1]
        running = next((at for status, at in last.statuses if status == "RUNNING"), last.started_ms)
        wanted = self._wishes.stretch_s
        if (last.ended_ms - running) / 1000 >= wanted:
            return {}
        emitted = totals(run.folder)
        rates = {}
        for operator in last.operators:
            if operator.kind == "source" and operator.operator_id in emitted:
                count = emitted[operator.operator_id].count
                rates[operator.operator_id] = max(1.0, count / operator.parallelism / wanted)
        return rates

    def disturbed(self) -> Iterator[Run]:
        wishes = self._wishes
        numbers = range(1, wishes.rounds + 1) if wishes.only_round is None else (wishes.only_round,)
        for number in numbers:
            segment = Segment(
                folder="",
                seed=f"{wishes.seed}/{number}",
                kinds=wishes.kinds,
                every_s=wishes.every_s,
                faults_left=wishes.faults_per_round,
                order_by=wishes.order_by,
            )
            allowed = 120 + 6 * self._longest_s + 40 * wishes.faults_per_round
            yield self._run(f"round {number}", segment, allowed)

    # ------------------------------------------------------------ one run
    def _run(self, name: str, segment: Segment, seconds: float) -> Run:
        wishes = self._wishes
        folder = os.path.join(self._folder, name.replace(" ", "-"))
        os.makedirs(folder, mode=0o700)
        run = Run(name, folder, decided=wishes.verify is not None)
        began = time.monotonic()
        draw = random.Random(f"{segment.seed}/parallelism")
        changes: dict[str, object] = {
            "folder": folder,
            "keep_sinks": wishes.keep_sinks,
            "looked_at": wishes.verify is not None or wishes.looked_at,
            "records": self._records,
            "duration_s": self._duration_s,
            "limits": self._limits,
            "rates": self._rates,
            "settings": dict(wishes.settings),
        }
        segment = _with(segment, changes)
        os.makedirs(segment.leases)
        # The workers of a driver that was killed leave by themselves: the next driver may meet them.
        with ProcessGroups() as processes:
            while True:
                code, output = self._start(processes, segment, began + seconds - time.monotonic())
                refused = problem_of(folder)
                if refused is not None:
                    raise ChaosError(refused)
                result = _result(segment)
                before = len(run.faults)
                run.faults = list(faults_of(folder))
                if result is not None:
                    run.segments.append(result)
                if code is None:
                    run.problem = (
                        f"it did not end within {seconds:.0f} s (a run without faults took {self._longest_s:.0f} s)"
                        + (f"; its last failure: {result.failures[-1].summary}" if result and result.failures else "")
                    )
                    break
                again = self._next_segment(segment, result, code, draw, len(run.faults) - before)
                if again is None:
                    if code != 0 or result is None or result.status != JobStatus.FINISHED.name:
                        run.problem = _why(code, result, output, segment.number + 1)
                    break
                segment = again
        run.seconds = time.monotonic() - began
        if run.problem is None and wishes.verify is not None:
            run.verified = _verify(wishes.verify, folder)
        return run

    def _next_segment(
        self, segment: Segment, result: SegmentResult | None, code: int, draw: random.Random, faults: int
    ) -> Segment | None:
        """How the round goes on after its driver was killed or its job was stopped; None: it is over. `faults`: those
        that have come since the segment began; what earlier ones had is off its `faults_left` already."""
        killed = code == -signal.SIGKILL
        deposed = result is not None and result.status == JobStatus.SUSPENDED.name  # too slow to renew its lease
        stopped = not killed and result is not None and result.savepoint is not None
        if not (killed or deposed or stopped):
            return None
        most = segment.faults_left if segment.number + 1 < _MOST_SEGMENTS else 0
        changes: dict[str, object] = {
            "number": segment.number + 1,
            "faults_left": max(0, most - max(1, faults)),
        }
        if stopped:
            assert result is not None
            now = segment.parallelism or result.scalable
            choices = [p for p in range(1, result.scalable + 2) if p != now]
            changes |= {
                "restore": result.savepoint,
                "parallelism": draw.choice(choices),
                "job_since": segment.number + 1,
            }
        return _with(segment, changes)

    def _start(self, processes: ProcessGroups, segment: Segment, seconds: float) -> tuple[int | None, str]:
        """The exit code (None: it had to be killed) and what the program has printed last."""
        log = Path(segment.folder) / f"output-{segment.number}.log"
        environment = {**os.environ, VARIABLE: str(segment.write()), FOLDER: segment.folder}
        command = [sys.executable, "-m", "tidegate.chaos.child", self._wishes.program, *self._wishes.arguments]
        code = processes.run(command, environment, log, max(1.0, seconds))
        return code, log.read_text(errors="replace")[-_SHOWN_OUTPUT:]


def _result(segment: Segment) -> SegmentResult | None:
    """What the process of the segment has left. It may have ended, or lost its lease, before it noted the savepoint
    with which its job was stopped: then the job's record has it, and the job is over only in so far."""
    result = read_result(segment.folder, segment.number)
    if result is None or result.status != JobStatus.FINISHED.name or result.savepoint is not None:
        return result
    record = HighAvailability("filesystem", segment.cluster_id, 5000.0, False, segment.leases).record()
    if record is None or not record.stopped or record.savepoint is None:
        return result
    note_fault(segment.folder, "rescale", where="driver", detail=STOPPED)
    return msgspec.structs.replace(result, savepoint=record.savepoint.path)


def _with(segment: Segment, changes: dict[str, object]) -> Segment:
    return msgspec.structs.replace(segment, **changes)


def checkpoints_of(run: Run) -> str:
    """The folder in which the run's last job had its checkpoints: the round's own, unless -D says another one."""
    told = run.segments[-1].checkpoints if run.segments else ""
    return told or os.path.join(run.folder, "checkpoints")


def latest_state(run: Run) -> str | None:
    """The last checkpoint of a run's last job, which chaos keeps: the state at the end. None: there is none, or not on
    a disk that this process sees."""
    folder = StorageLocation.parse(checkpoints_of(run))
    if not run.segments or not folder.is_local:
        return None
    found = []
    for directory in Path(folder.local_path).glob(f"{glob.escape(run.segments[-1].job_id)}*"):
        job, _, epoch = directory.name.rpartition("-e")
        if directory.name != run.segments[-1].job_id and (job != run.segments[-1].job_id or not epoch.isdigit()):
            continue  # of another job, whose id begins alike
        for one in directory.iterdir():
            number = checkpoint_of_directory(one.name)
            if number is not None and (one / METADATA_NAME).exists():
                found.append((int(epoch) if job else 0, number, str(one)))
    return max(found)[2] if found else None


def _why(code: int, result: SegmentResult | None, output: str, starts: int) -> str:
    """`starts`: how often the program was started in this run."""
    if result is not None and result.status == JobStatus.FINISHED.name:
        reason = f"the job has finished, but the program ended with exit code {code}"
        if starts > 1:
            reason += (
                f" (start {starts} of this round: execute_and_collect() gives what came since the checkpoint from "
                "which that one has gone on, as after a real failure of the driver)"
            )
    elif result is not None and result.failures:
        reason = f"the job ended as {result.status}: {result.failures[-1].summary}"
    else:
        reason = f"the program ended with exit code {code}"
    return f"{reason}\n{output.strip()}"


def _verify(command: str, folder: str, seconds: float = LONGEST_RUN_S) -> str | None:
    """None: the user's command is content."""
    log = Path(folder) / "output-verify.log"
    with ProcessGroups() as processes:
        code = processes.run(["/bin/sh", "-c", command], {**os.environ, FOLDER: folder}, log, seconds)
    if code == 0:
        return None
    how = f"did not end within {seconds:.0f} s" if code is None else f"ended with {code}"
    said = log.read_bytes()[-_SHOWN_OUTPUT:].decode(errors="replace").strip()[-500:]
    return f"{command} {how}: {json.dumps(said, ensure_ascii=False)}"
