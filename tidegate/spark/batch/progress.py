"""How far a batch job is: its stages, published while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tidegate.jobmanager.job_view import StageView

_INTERVAL_S = 0.5


class StageWatch:
    """A context manager around one run of the job: looks at Spark's stages twice a second on a thread of its own, and
    once more at the end, and hands them to `publish`."""

    def __init__(self, sc: Any, group: str, publish: Callable[[tuple[StageView, ...]], None]) -> None:
        self._tracker = sc.statusTracker()
        self._publish = publish
        self._group = group
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{group}-progress", daemon=True)

    def __enter__(self) -> StageWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self._publish(self._stages())

    def _run(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            self._publish(self._stages())

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
