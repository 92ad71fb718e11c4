"""How far a batch job is: its stages, published while it runs, and as a line on the terminal when there is one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from tidegate.jobmanager.job_view import StageView

_INTERVAL_S = 0.5
_WIDTH = 30


class StageWatch:
    """A context manager around one run of the job: looks at Spark's stages twice a second on a thread of its own, and
    once more at the end, and hands them to `publish`. Writes nothing when the stream is no terminal."""

    def __init__(
        self, sc: Any, group: str, publish: Callable[[tuple[StageView, ...]], None], stream: TextIO | None = None
    ) -> None:
        self._tracker = sc.statusTracker()
        self._publish = publish
        self._group = group
        self._stream = sys.stderr if stream is None else stream
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{group}-progress", daemon=True)

    def __enter__(self) -> StageWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self._publish(self._stages())
        self._write("")

    def _run(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            stages = self._stages()
            self._publish(stages)
            line = progress_line(stages)
            if line:
                self._write(line)

    def _stages(self) -> tuple[StageView, ...]:
        """Of the group's latest job."""
        try:
            jobs = self._tracker.getJobIdsForGroup(self._group)
            info = self._tracker.getJobInfo(max(jobs)) if jobs else None
            found = [self._tracker.getStageInfo(stage) for stage in (() if info is None else info.stageIds)]
        except Exception:  # the session is gone: there is nothing to show
            return ()
        stages = [
            StageView(
                stage=stage.stageId,
                name=stage.name,
                tasks=stage.numTasks,
                completed=stage.numCompletedTasks,
                active=stage.numActiveTasks,
                failed=stage.numFailedTasks,
            )
            for stage in found
            if stage is not None
        ]
        return tuple(sorted(stages, key=lambda stage: stage.stage))

    def _write(self, line: str) -> None:
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()


def progress_line(stages: tuple[StageView, ...]) -> str:
    """The stage that runs, how many of its tasks are done; "" when none runs."""
    done = sum(1 for stage in stages if stage.tasks and stage.completed == stage.tasks)
    for stage in stages:
        if stage.active:
            return progress_text(stage.name, stage.completed, stage.tasks, done, len(stages))
    return ""


def progress_text(name: str, completed: int, tasks: int, stages_done: int, stages: int) -> str:
    filled = _WIDTH * completed // max(1, tasks)
    bar = "=" * filled + (">" if filled < _WIDTH else "") + " " * (_WIDTH - filled - 1)
    shown = name if len(name) <= 40 else name[:37] + "..."
    return f"[{bar}] {completed}/{tasks} tasks of '{shown}', {stages_done}/{stages} stages done"
