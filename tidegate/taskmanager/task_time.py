"""Time in one task: the watermark over its inputs, the timers of its head, periodic watermarks. No I/O.

A watermark may make a great many timers due. They are fired in bounded portions: the watermark stays *pending*, no
further input is taken, and it is sent on when the last of them has fired. A snapshot taken meanwhile holds the timers
that are left, and the watermark, which fires them after a recovery. It says so: a timer that was set for a time that is
over already waits for the next watermark, and a recovery in between must not fire it.

At least once, the time of a task with inputs is in no snapshot: it begins anew, from what its sources say again. Such a
task has processed records and watermarks from behind some barriers when it takes its snapshot, so its time may be ahead
of the cut. Sources read those records again, and an exchange that is not by key may send them another way: through a
task whose restored time has passed them already, to one that would then fire its timers without them. They would be
lost. What comes of time that begins anew is at most that windows which have fired count what is read again once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tidegate.contracts.state import ListStateDescriptor
from tidegate.network.channels import InputChannel
from tidegate.network.elements import MIN_WATERMARK, Watermark, WatermarkStatus
from tidegate.storage.handles import WATERMARKS
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.watermark_valve import ChannelProgress, WatermarkValve

_TIMERS_AT_ONCE = 256


class SavedTime(NamedTuple):
    """The time of one subtask in a snapshot, stored as a plain tuple."""

    subtask: int
    watermark: int
    channels: dict[str, tuple[int, bool]]  # input channel -> (its watermark, whether it is idle)
    firing: bool = True  # timers of the watermark are left to fire
    parallelism: int = 0  # subtasks there were: one that says nothing has no watermark yet; 0: all have said something


class TaskTime:
    STATE_NAME = WATERMARKS

    def __init__(
        self,
        chain: OperatorChain,
        inputs: list[InputChannel],
        input_names: list[str],
        subtask: int,
        parallelism: int,
        interval_ms: float,
        exact_cuts: bool = True,
    ) -> None:
        """`exact_cuts`: whether snapshots hold what came before the barriers and nothing else."""
        self._head = chain.head
        self._makers = chain.periodic
        self._periodic = chain.periodic if interval_ms > 0 else []
        self._interval = interval_ms
        self._next_periodic = 0.0
        self._valve = WatermarkValve(len(inputs))
        self._names = input_names  # of the input channels, stable across restarts
        self._subtask = subtask
        self._parallelism = parallelism
        self._pending: int | None = None  # watermark whose timers are being fired
        self._kept = exact_cuts or not inputs
        self._state = self._head.context.operator_state.get_union_list_state(ListStateDescriptor(self.STATE_NAME))

    @property
    def pending(self) -> bool:
        """A watermark is being worked off: take no input, call `advance` when the task can emit."""
        return self._pending is not None

    @property
    def watermark(self) -> int:
        """Where the task's event time is; MIN_WATERMARK before it has begun."""
        return self._head.current_watermark

    @property
    def reached(self) -> int:
        """How far the input that has come furthest is: no idleness of the others makes time go further."""
        return max((channel.watermark for channel in self._valve.channels), default=MIN_WATERMARK)

    def on_element(self, channel: int, element: Watermark | WatermarkStatus) -> None:
        if isinstance(element, Watermark):
            progress = self._valve.on_watermark(channel, element.timestamp)
        else:
            progress = self._valve.on_status(channel, element.idle)
        if progress.watermark is not None:
            self._begin(progress.watermark)
        if progress.idle is not None:
            self._head.process_status(progress.idle)

    def _begin(self, watermark: int) -> None:
        self._head.current_watermark = watermark
        if self._head.fire_event_timers(0):
            self._head.process_watermark(watermark)
        else:
            self._pending = watermark

    def advance(self) -> None:
        """Fire a portion of the timers that the pending watermark makes due."""
        if self._pending is not None and self._head.fire_event_timers(_TIMERS_AT_ONCE):
            watermark, self._pending = self._pending, None
            self._head.process_watermark(watermark)

    def tick(self, now_ms: float, can_emit: bool) -> bool:
        """Periodic watermarks and processing-time timers. True: something was done."""
        worked = False
        if self._periodic and now_ms >= self._next_periodic:
            self._next_periodic = now_ms + self._interval
            for operator in self._periodic:
                operator.on_periodic(now_ms)
            worked = True
        due = self._head.next_processing_timer()
        if due is not None and due <= now_ms and can_emit:
            self._head.fire_processing_timers(now_ms, _TIMERS_AT_ONCE)
            worked = True
        return worked

    def next_deadline(self, can_emit: bool) -> float | None:
        times: list[float] = []
        if self._periodic:
            times.append(self._next_periodic)
        due = self._head.next_processing_timer()
        if due is not None and can_emit:
            times.append(float(due))
        return min(times, default=None)

    # ------------------------------------------------------------ snapshots
    def save(self, drained: bool = False) -> None:
        """Bring the state up to date; called in the synchronous part of a snapshot. Nothing for jobs without time.

        `drained`: time has come to its end only because the job was stopped; a job that goes on from there has a time
        of its own."""
        if drained or not self._kept:
            self._state.clear()
            return
        watermark = self._head.current_watermark
        channels = {name: (c.watermark, c.idle) for name, c in zip(self._names, self._valve.channels, strict=True)}
        if watermark > MIN_WATERMARK or any(c != (MIN_WATERMARK, False) for c in channels.values()):
            saved = SavedTime(self._subtask, watermark, channels, self.pending, self._parallelism)
            self._state.update([tuple(saved)])
        else:
            self._state.clear()

    def restore(self) -> None:
        """After the chain is open. With another parallelism than before, the lowest watermark of all subtasks counts:
        nothing becomes late that was not.

        What is known is said again: who reads this task may have been rescaled and know nothing. And whoever makes
        watermarks says that it is active, since those who read it may remember that it was idle."""
        entries = list(self._state.get())
        self._restore_channels(entries)
        watermark, firing = restored_watermark(entries, self._subtask, self._parallelism)
        if watermark > MIN_WATERMARK:
            self._restore_watermark(watermark, firing)
        for maker in self._makers:
            maker.announce_time()

    def _restore_channels(self, entries: list[Any]) -> None:
        """Of the same subtask among as many as there were."""
        saved, before = _saved_times(entries)
        own = saved.get(self._subtask) if before == self._parallelism else None
        valve = self._valve
        if own is not None and self._names and own.channels.keys() == set(self._names):
            valve.channels = [ChannelProgress(*own.channels[name]) for name in self._names]
            valve.watermark = own.watermark
            valve.idle = all(c.idle for c in valve.channels)
            for channel in valve.channels:
                channel.caught_up = channel.watermark >= own.watermark
            self._head.process_status(valve.idle)

    def _restore_watermark(self, watermark: int, firing: bool) -> None:
        self._head.current_watermark = watermark
        self._valve.watermark = max(watermark, self._valve.watermark)  # other inputs may begin before: never go back
        if firing:
            self._pending = watermark
        else:
            self._head.process_watermark(watermark)


def restored_watermark(entries: Iterable[Any], subtask: int, parallelism: int) -> tuple[int, bool]:
    """Where the time of a subtask was, and whether timers of that watermark are left to fire. `entries`: of all
    subtasks there were. With another parallelism than before, the lowest watermark counts."""
    saved, before = _saved_times(entries)
    if before == parallelism and subtask in saved:
        return saved[subtask].watermark, saved[subtask].firing
    if before != parallelism and saved and len(saved) == before:
        return min(t.watermark for t in saved.values()), any(t.firing for t in saved.values())
    return MIN_WATERMARK, False


def _saved_times(entries: Iterable[Any]) -> tuple[dict[int, SavedTime], int]:
    """By subtask, and how many subtasks there were."""
    saved = {time.subtask: time for time in (SavedTime(*entry) for entry in entries)}
    return saved, max((time.parallelism or len(saved) for time in saved.values()), default=0)
