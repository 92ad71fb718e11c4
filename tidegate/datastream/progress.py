"""How far a bounded job is, as one line on the terminal of the program that runs it, or in the cell of a notebook."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.metric_values import (
    NUM_RECORDS_IN,
    NUM_RECORDS_IN_RATE,
    SOURCE_PROGRESS,
    CounterValue,
    GaugeValue,
    MeterValue,
)
from tidegate.common.notebook_cell import CellLine, notebook_cell
from tidegate.common.terminal_line import LINE, TerminalLine
from tidegate.jobmanager.job_view import JobView, StageView

_INTERVAL_S = 0.5
_WIDTH = 24
_WINDOW_S = 30.0  # the pace of which the time that is left is taken


def shown_progress(
    view: Callable[[], JobView], configuration: Configuration, line: TerminalLine = LINE
) -> contextlib.AbstractContextManager[object]:
    """Around the wait for a job: the line, when the job is bounded, there is a terminal or a cell, and it is wanted."""
    there = line if line.there else notebook_cell()
    wanted = view().bounded and there is not None and options.read(configuration, options.PROGRESS)
    return ProgressLine(view, there) if wanted and there is not None else contextlib.nullcontext()


class ProgressLine:
    """A context manager around the wait for a job: draws the line twice a second, on a thread of its own, and says at
    the end what was done."""

    def __init__(self, view: Callable[[], JobView], line: TerminalLine | CellLine = LINE) -> None:
        self._view = view
        self._line = line
        self._pace = Pace()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidegate-progress", daemon=True)

    def __enter__(self) -> ProgressLine:
        self._line.begin()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is None:
            self._line.end(summary(self._view()))
        else:
            self._line.erase()

    def _run(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            view = self._view()
            left_s = self._pace.left_s(share_done(view), time.monotonic())
            self._line.show(line_of(view, left_s, self._line.columns - 1))


class Pace:
    """How long it will take, from how the share that is done has grown lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()  # when, share; oldest first, no older than the window

    def left_s(self, share: float | None, now_s: float) -> float | None:
        """None: there is no telling yet."""
        if share is None:
            return None
        if self._seen and share < self._seen[-1][1]:  # the job went back to a checkpoint
            self._seen.clear()
        self._seen.append((now_s, share))
        while now_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        began_s, began = self._seen[0]
        if share <= began or now_s - began_s < 1.0:
            return None
        return (1.0 - share) * (now_s - began_s) / (share - began)


def share_done(view: JobView) -> float | None:
    """From 0 to 1; None: there is no telling. STREAMING: how much of their input the sources have read, each subtask
    counting the same. BATCH: of the tasks of the stages that are known."""
    if view.status_name == "FINISHED":
        return 1.0
    if view.mode == "BATCH":
        tasks = sum(stage.tasks for stage in view.stages)
        return sum(stage.completed for stage in view.stages) / tasks if tasks else None
    sources = _sources(view)
    shares = [
        m.value.value
        for m in view.metrics
        if m.name == SOURCE_PROGRESS and isinstance(m.value, GaugeValue) and m.value.value is not None
    ]
    subtasks = sum(vertex.parallelism for vertex in view.vertices if vertex.vertex in sources)
    return sum(shares) / subtasks if subtasks and len(shares) == subtasks else None


def line_of(view: JobView, left_s: float | None, width: int) -> str:
    share = share_done(view)
    parts = []
    if share is not None:
        filled = int(_WIDTH * share)
        bar = "=" * filled + (">" if filled < _WIDTH else "") + " " * (_WIDTH - filled - 1)
        parts.append(f"[{bar}] {share:.0%}")
    if view.status_name != "RUNNING":
        parts.append(view.status_name)
    if view.mode == "BATCH":
        parts.append(_stages(view.stages))
    else:
        parts += [f"{records_in(view):,} records", f"{_rate(view):,.0f}/s"]
    if left_s is not None:
        parts.append(f"{duration(left_s)} left")
    parts += _counts(view)
    text = " · ".join(part for part in parts if part)
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def summary(view: JobView) -> str:
    """Of a job that has ended."""
    took = duration(((view.ended_ms or view.started_ms) - view.started_ms) / 1000)
    counted = "" if view.mode == "BATCH" else f"{records_in(view):,} records in "
    name = "".join(c if c.isprintable() else "?" for c in view.name)
    return " · ".join([f"{name} is {view.status_name}: {counted}{took}", *_counts(view)])


def records_in(view: JobView) -> int:
    """By the sources, in this attempt."""
    sources = _sources(view)
    found = (m for m in view.metrics if m.name == NUM_RECORDS_IN and m.vertex in sources and not m.operator)
    return sum(m.value.count for m in found if isinstance(m.value, CounterValue))


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _counts(view: JobView) -> list[str]:
    done = view.checkpoints.completed
    counts = [(done, "checkpoint"), (view.checkpoints.failed, "failed checkpoint"), (view.attempt, "restart")]
    return [f"{number:,} {name}{'' if number == 1 else 's'}" for number, name in counts if number]


def _sources(view: JobView) -> set[int]:
    return {v.vertex for v in view.vertices} - {edge.target for edge in view.edges}


def _rate(view: JobView) -> float:
    sources = _sources(view)
    found = (m for m in view.metrics if m.name == NUM_RECORDS_IN_RATE and m.vertex in sources and not m.operator)
    return sum(m.value.rate for m in found if isinstance(m.value, MeterValue))


def _stages(stages: tuple[StageView, ...]) -> str:
    """The stage that runs, how many of its tasks are done, and how many stages are."""
    done = sum(1 for stage in stages if stage.tasks and stage.completed == stage.tasks)
    for stage in stages:
        if stage.active:
            name = "".join(c if c.isprintable() else "?" for c in stage.name)
            shown = name if len(name) <= 40 else name[:37] + "..."
            return f"{stage.completed}/{stage.tasks} tasks of '{shown}', {done}/{len(stages)} stages done"
    return f"{done}/{len(stages)} stages done" if stages else ""
