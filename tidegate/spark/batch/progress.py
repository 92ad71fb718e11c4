"""A line of progress on the terminal while a batch job runs."""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO

_INTERVAL_S = 0.5
_WIDTH = 30


class ProgressLine:
    """A context manager. Writes nothing when the stream is no terminal."""

    def __init__(self, sc: Any, group: str, stream: TextIO | None = None) -> None:
        self._tracker = sc.statusTracker()
        self._group = group
        self._stream = sys.stderr if stream is None else stream
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ProgressLine:
        if self._stream.isatty():
            self._thread = threading.Thread(target=self._run, name=f"{self._group}-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._write("")

    def _run(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            line = self.line()
            if line:
                self._write(line)

    def line(self) -> str:
        """The stage that runs, how many of its tasks are done; "" when none runs."""
        try:
            for job in self._tracker.getJobIdsForGroup(self._group):
                info = self._tracker.getJobInfo(job)
                stages = [self._tracker.getStageInfo(i) for i in (info.stageIds if info is not None else ())]
                done = sum(1 for s in stages if s is not None and s.numTasks and s.numCompletedTasks == s.numTasks)
                for stage in stages:
                    if stage is not None and stage.numActiveTasks:
                        return progress_text(stage.name, stage.numCompletedTasks, stage.numTasks, done, len(stages))
        except Exception:  # the session is gone: there is nothing to show
            return ""
        return ""

    def _write(self, line: str) -> None:
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()


def progress_text(name: str, completed: int, tasks: int, stages_done: int, stages: int) -> str:
    filled = _WIDTH * completed // max(1, tasks)
    bar = "=" * filled + (">" if filled < _WIDTH else "") + " " * (_WIDTH - filled - 1)
    shown = name if len(name) <= 40 else name[:37] + "..."
    return f"[{bar}] {completed}/{tasks} tasks of '{shown}', {stages_done}/{stages} stages done"
