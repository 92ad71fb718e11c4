"""Timers of one keyed operator: registered, deleted, fired in order, and kept in keyed state.

A timer is (key, namespace, timestamp), once per time domain. The queue is in memory; beside it every timer is an entry
of a keyed state, so that it is in every snapshot, moves with its key group, and is restored exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NamedTuple

from tidegate.storage.handles import KeyedStateInfo
from tidegate.taskmanager.time_limit import TimeLimit


class Timer(NamedTuple):
    timestamp: int
    key: Any
    namespace: Any


Entry = tuple[Any, Any]
"""(key, namespace) of a timer."""


class TimerQueue:
    """Timers of one domain, fired in order of their time, and of their registration where that is equal.

    Grouped by time: the timers of windows share few different ones, and only these are in a heap.
    """

    def __init__(self, backend: Any, name: str) -> None:
        self._table = backend.table(KeyedStateInfo(name=name, kind="timers", namespaced=True))
        self._times: list[int] = []  # a heap of all times in _at; may hold others, whose timers have been deleted
        self._at: dict[int, Entry | dict[Entry, None]] = {}  # time -> its only timer, or all in order
        self._firing: dict[int, list[Entry]] = {}  # time -> its timers in reverse order, but for newer ones
        self._size = 0
        for key, (namespace, timestamp) in self._table.live_keys():
            self._add(timestamp, (key, namespace))

    def __len__(self) -> int:
        return self._size

    def register(self, timestamp: int, key: Any, namespace: Any = None) -> None:
        """A second registration of the same timer changes nothing."""
        if self._add(timestamp, (key, namespace)):
            self._table.put((key, (namespace, timestamp)), True)

    def delete(self, timestamp: int, key: Any, namespace: Any = None) -> None:
        if self._discard(timestamp, (key, namespace)):
            self._table.remove((key, (namespace, timestamp)))

    def next_timestamp(self) -> int | None:
        times = self._times
        while times:
            if times[0] in self._at:
                return times[0]
            heapq.heappop(times)
        return None

    def last_timestamp(self) -> int | None:
        return max(self._at, default=None)

    def clear(self) -> None:
        """Forget all timers; their entries in the state are the caller's business."""
        self._times.clear()
        self._at.clear()
        self._firing.clear()
        self._size = 0

    def pop_due(self, up_to: int) -> Timer | None:
        """The earliest timer at or before `up_to`; it is gone when this returns."""
        timestamp = self.next_timestamp()
        if timestamp is None or timestamp > up_to:
            return None
        key, namespace = entry = self._first(timestamp)
        self._discard(timestamp, entry)
        self._table.remove((key, (namespace, timestamp)))
        return Timer(timestamp, key, namespace)

    def _add(self, timestamp: int, entry: Entry) -> bool:
        there = self._at.get(timestamp)
        if there is None:
            self._at[timestamp] = entry
            heapq.heappush(self._times, timestamp)
        elif type(there) is dict:
            if entry in there:
                return False
            there[entry] = None
        elif there == entry:
            return False
        else:
            self._at[timestamp] = {there: None, entry: None}  # type: ignore[dict-item]
        self._size += 1
        return True

    def _discard(self, timestamp: int, entry: Entry) -> bool:
        there = self._at.get(timestamp)
        if type(there) is dict:
            if entry not in there:
                return False
            del there[entry]
            if not there:
                del self._at[timestamp]
                self._firing.pop(timestamp, None)
        elif there == entry and there is not None:
            del self._at[timestamp]
        else:
            return False
        self._size -= 1
        return True

    def _first(self, timestamp: int) -> Entry:
        """Taking the first of a dict again and again would look at all that were there before each time."""
        there = self._at[timestamp]
        if type(there) is not dict:
            return there  # type: ignore[return-value]
        order = self._firing.get(timestamp)
        while True:
            if not order:
                order = self._firing[timestamp] = list(reversed(there))
            entry = order.pop()
            if entry in there:
                return entry


class OperatorTimers:
    """Both domains of one operator. `fire` is called by the operator; user code registers through a TimerService."""

    EVENT = "_timers/event"
    PROCESSING = "_timers/processing"

    def __init__(self, backend: Any, limit: TimeLimit | None = None) -> None:
        self._time_limit = limit or TimeLimit()
        self.event = TimerQueue(backend, self.EVENT)
        self.processing = TimerQueue(backend, self.PROCESSING)

    def clear(self) -> None:
        self.event.clear()
        self.processing.clear()

    def fire(self, queue: TimerQueue, up_to: int, limit: int, on_timer: Callable[[Timer], None]) -> bool:
        """Fire what is due, in order, also what firing registers anew, at most `limit`, and no more when the time is
        up. True: nothing due is left."""
        time_limit = self._time_limit
        for _ in range(limit):
            timer = queue.pop_due(up_to)
            if timer is None:
                return True
            on_timer(timer)
            if time_limit.expired:
                break
        following = queue.next_timestamp()
        return following is None or following > up_to
