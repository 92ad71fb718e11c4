"""The process that runs the user's program under chaos: `python -m tidegate.chaos.child program.py [arguments]`."""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
import threading
import time

from tidegate.chaos.draws import DriverFault, driver_fault
from tidegate.chaos.rewriting import ChaosError, Rewritten, rewrite
from tidegate.chaos.segment import (
    STOPPED,
    VARIABLE,
    FailureSeen,
    Segment,
    SegmentResult,
    note_fault,
    problem_of,
    read_segment,
    say_problem,
    write_result,
)
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import TidegateError
from tidegate.common.job_status import JobStatus
from tidegate.datastream.interception import intercept
from tidegate.jobmanager.job_view import JobView, records_in
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.runtime import Submission

NOT_FOR_CHAOS = 96
"""Exit code: the program cannot be put under chaos; `problem.txt` says why."""

_LOOK_S = 0.1
_ANSWER_S = 10.0  # for an answer that comes with the end of the job


class Conductor:
    """Stands between the program and the runtime (`datastream.interception`). The program has one job."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._rewritten: Rewritten | None = None
        self._watcher: threading.Thread | None = None

    def submission(self, submission: Submission) -> Submission:
        if self._rewritten is not None:
            raise self._refused(
                "the program starts a second job; tidegate chaos follows one. Give each job a program of its own"
            )
        try:
            self._rewritten = rewrite(submission, self._segment)
        except ChaosError as error:
            raise self._refused(str(error)) from error
        return self._rewritten.submission

    def _refused(self, text: str) -> ChaosError:
        say_problem(self._segment.folder, text)
        return ChaosError(text)

    def started(self, client: PublishedJobClient) -> None:
        if self._rewritten is None:
            return
        watch = Watch(self._segment, self._rewritten, client)
        self._watcher = threading.Thread(target=watch.run, name="tidegate-chaos", daemon=True)
        self._watcher.start()

    def program_ended(self, well: bool) -> int | None:
        """The exit code, None: the program's own. `well`: it has not failed; what has says itself why it ran no job."""
        if self._watcher is not None:
            self._watcher.join(60)
        elif well and problem_of(self._segment.folder) is None:
            say_problem(
                self._segment.folder,
                "the program ended without running a job: it has to call env.execute() (or execute_and_collect())",
            )
        return None if problem_of(self._segment.folder) is None else NOT_FOR_CHAOS


class Watch:
    """Looks at the job until it has ended, writes down how it goes, and carries out the fault of the driver."""

    def __init__(self, segment: Segment, rewritten: Rewritten, client: PublishedJobClient) -> None:
        self._segment = segment
        self._rewritten = rewritten
        self._client = client
        self._processed: dict[int, int] = {}  # records taken in, by attempt
        self._stopping: CompletableFuture[str] | None = None  # with a savepoint, which this will be
        self._savepoint: str | None = None

    def run(self) -> None:
        fault = driver_fault(self._segment)
        running_since: float | None = None
        while True:
            view = self._client.view()
            self._processed[view.attempt] = max(records_in(view.metrics), self._processed.get(view.attempt, 0))
            if view.ended_ms is not None:
                if self._stopping is not None:
                    self._note_savepoint(self._stopping, _ANSWER_S)
                self._write(view)
                return
            self._write(view)
            if running_since is None and view.status is JobStatus.RUNNING:
                running_since = time.monotonic()
            due = fault is not None and running_since is not None and time.monotonic() > running_since + fault.after_s
            if fault is not None and due and self._strike(fault):
                fault = None
            time.sleep(_LOOK_S)

    def _strike(self, fault: DriverFault) -> bool:
        """False: it is not done yet, and this is to be called again."""
        folder = self._segment.folder
        if fault.kind == "driver":
            note_fault(folder, "driver", where="driver", detail="SIGKILL of the driver")
            os.kill(os.getpid(), signal.SIGKILL)
        if not self._rewritten.scalable:
            return True
        if self._stopping is None:
            # Asked for once, however long it takes: a second request would be refused while the first one goes on.
            self._stopping = self._client.stop_with_savepoint(False, f"{folder}/savepoints")
        if not self._stopping.done():
            return False
        stopping, self._stopping = self._stopping, None
        return self._note_savepoint(stopping, 0.0)

    def _note_savepoint(self, stopping: CompletableFuture[str], within_s: float) -> bool:
        """False: another fault came in between, or the job has ended, and there is none."""
        try:
            self._savepoint = stopping.result(within_s)
        except Exception:
            return False
        note_fault(self._segment.folder, "rescale", where="driver", detail=STOPPED)
        return True

    def _write(self, view: JobView) -> None:
        result = SegmentResult(
            job_id=view.job_id,
            operators=self._rewritten.operators,
            notes=self._rewritten.notes,
            status=view.status_name,
            started_ms=view.started_ms,
            ended_ms=view.ended_ms or time.time() * 1000,
            statuses=tuple((change.status_name, change.at_ms) for change in view.status_history),
            restarts=view.attempt,
            failures=tuple(
                FailureSeen(attempt=f.attempt, at_ms=f.at_ms, summary=f.failure.summary) for f in view.failures
            ),
            checkpoints_completed=view.checkpoints.completed,
            checkpoints_failed=view.checkpoints.failed,
            records=sum(self._processed.values()),
            savepoint=self._savepoint,
            scalable=self._rewritten.scalable,
            checkpoints=self._rewritten.checkpoints,
            at_least_once=self._rewritten.at_least_once,
        )
        write_result(self._segment.folder, self._segment.number, result)


def main() -> int:
    segment = read_segment(os.environ[VARIABLE])
    program, *arguments = sys.argv[1:]
    random.seed(f"{segment.seed}/{segment.number}/{os.getpid()}")  # a program that draws must not draw alike by chance
    conductor = Conductor(segment)
    intercept(conductor)
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException as error:
        refused = conductor.program_ended(well=isinstance(error, SystemExit) and not error.code)
        if refused is not None:
            return refused
        if not isinstance(error, TidegateError):
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return conductor.program_ended(well=True) or 0


if __name__ == "__main__":
    sys.exit(main())
