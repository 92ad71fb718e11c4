"""Timers of one keyed operator: registered, deleted, fired in order, and kept in keyed state.

A timer is (key, namespace, timestamp), once per time domain. The queue is in memory; beside it every timer is an entry
of a keyed state, so that it is in every snapshot, moves with its key group, and is restored exactly.

`register` and `pop_due` are a hot path (benchmark `windows`, "timers registered and fired"). Three things make them
more than twice as fast as a heap with all times and a state that is always up to date: times are in a sorted list, to
which new ones are added many at a time; a timer is put into the state when a snapshot is taken, and most have fired by
then; nothing is made per timer but one pair.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.storage.handles import KeyedStateInfo
from tidegate.taskmanager.time_limit import TimeLimit

Entry = tuple[Any, Any]
"""(key, namespace) of a timer."""

OnTimer = Callable[[int, Any, Any], None]
"""Takes time, key and namespace."""

_MISSING: Any = object()
_FEW = 64  # new times that are not worth a merge


class TimerQueue:
    """Timers of one domain, fired in order of their time, and of their registration where that is equal.

    Grouped by time: the timers of windows share few different ones.
    """

    def __init__(self, backend: Any, name: str) -> None:
        self._table = backend.table(KeyedStateInfo(name=name, kind="timers", namespaced=True))
        # Time -> its only timer, or all in order, each with whether it is in the table.
        self._at: dict[int, Entry | dict[Entry, bool]] = {}
        # Times with timers that are not in the table -> which (some may be gone, or twice); None: the only one.
        self._unsaved: dict[int, list[Entry] | None] = {}
        # All times in _at are in one of these two, which may hold others, whose timers are gone.
        self._sorted: list[int] = []  # descending
        self._new: list[int] = []  # a heap
        self._firing: dict[int, list[Entry]] = {}  # time -> its timers in reverse order, but for newer ones
        for key, (namespace, timestamp) in self._table.live_keys():
            self._restore(timestamp, (key, namespace))
        self._sorted = sorted(self._at, reverse=True)

    def __len__(self) -> int:
        return sum(len(there) if type(there) is dict else 1 for there in self._at.values())

    def register(self, timestamp: int, key: Any, namespace: Any = None) -> None:
        """A second registration of the same timer changes nothing."""
        there = self._at.get(timestamp)
        if there is None:
            hash(key)  # refused here and not when a snapshot is taken: what is no key, or stands for none
            self._at[timestamp] = key, namespace
            self._unsaved[timestamp] = None
            heapq.heappush(self._new, timestamp)
        else:
            self._register_beside(timestamp, there, (key, namespace))

    def registrar(self, cursor: Any) -> Callable[[int], None]:
        """`register` for the current key of `cursor`, in one call less: for times that were checked."""
        at, unsaved, new, register = self._at, self._unsaved, self._new, self.register
        push, plain = heapq.heappush, (int, str)

        def register_current(timestamp: int) -> None:
            key = cursor.current_key
            if timestamp in at or type(key) not in plain:
                register(timestamp, key)
            else:
                at[timestamp] = key, None
                unsaved[timestamp] = None
                push(new, timestamp)

        return register_current

    def _register_beside(self, timestamp: int, there: Any, entry: Entry) -> None:
        if type(there) is not dict:
            if there == entry:
                return
            saved = timestamp not in self._unsaved
            if not saved:
                self._unsaved[timestamp] = [there]
            there = self._at[timestamp] = {there: saved}
        if entry not in there:
            there[entry] = False
            unsaved = self._unsaved.get(timestamp)
            if unsaved is None:
                self._unsaved[timestamp] = [entry]
            else:
                unsaved.append(entry)

    def delete(self, timestamp: int, key: Any, namespace: Any = None) -> None:
        there, entry = self._at.get(timestamp), (key, namespace)
        saved: bool | None
        if type(there) is dict:
            saved = there.pop(entry, None)
        else:
            saved = None if there != entry else timestamp not in self._unsaved
        if saved is not None:
            self._removed(timestamp, entry, saved)

    def next_timestamp(self) -> int | None:
        at, times, new = self._at, self._sorted, self._new
        while times and times[-1] not in at:
            times.pop()
        while new and new[0] not in at:
            heapq.heappop(new)
        if times and (not new or times[-1] <= new[0]):
            return times[-1]
        return new[0] if new else None

    def last_timestamp(self) -> int | None:
        return max(self._at, default=None)

    def clear(self) -> None:
        """Forget all timers; their entries in the state are the caller's business."""
        for held in (self._at, self._unsaved, self._sorted, self._new, self._firing):
            held.clear()

    def save(self) -> None:
        """Bring the state up to date; called in the synchronous part of a snapshot."""
        put, at = self._table.put, self._at
        for timestamp, entries in self._unsaved.items():
            there: Any = at[timestamp]
            if entries is None:
                put((there[0], (there[1], timestamp)), True)
                continue
            for entry in entries:
                if there.get(entry) is False:
                    there[entry] = True
                    put((entry[0], (entry[1], timestamp)), True)
        self._unsaved.clear()

    def pop_due(self, up_to: int) -> tuple[int, Any, Any] | None:
        """Time, key and namespace of the earliest timer at or before `up_to`; it is gone when this returns."""
        at, times, new = self._at, self._sorted, self._new
        while True:
            first = times[-1] if times and (not new or times[-1] <= new[0]) else new[0] if new else None
            if first is None or first > up_to:
                return None
            there = at.get(first)
            if type(there) is dict:
                entry = (self._firing.get(first) or self._in_order(first, there)).pop()
                saved = there.pop(entry, None)
                if saved is None:
                    continue  # deleted meanwhile
                if saved or not there:
                    self._removed(first, entry, saved)
                return first, entry[0], entry[1]
            if times and times[-1] == first:
                times.pop()
            else:
                heapq.heappop(new)
            if there is not None:
                del at[first]
                key, namespace = there
                if first in self._unsaved:
                    del self._unsaved[first]
                else:
                    self._table.remove((key, (namespace, first)))
                return first, key, namespace

    def due(self, up_to: int, limit: int) -> Iterator[tuple[int, Any, Any]]:
        """`pop_due` again and again, at most `limit` times; others may be registered and deleted meanwhile. Has a short
        way for a time with one timer while none are new."""
        at, unsaved, times, new = self._at, self._unsaved, self._sorted, self._new
        for _ in range(limit):
            if times and not new and (first := times[-1]) <= up_to:
                there: Any = at.get(first)
                if type(there) is tuple:
                    times.pop()
                    del at[first]
                    key, namespace = there
                    if unsaved.pop(first, _MISSING) is _MISSING:
                        self._table.remove((key, (namespace, first)))
                    yield first, key, namespace
                    continue
            timer = self.pop_due(up_to)
            if timer is None:
                return
            yield timer

    def merge_new(self) -> None:
        """Before many are popped: to take a time from the sorted list costs nothing, from a large heap a microsecond.
        Each time is moved a few times at the most, since so few of those that were there are moved for it."""
        if len(self._new) > _FEW and 8 * len(self._new) > len(self._sorted):
            self._sorted += self._new
            self._sorted.sort(reverse=True)
            self._new.clear()

    def _restore(self, timestamp: int, entry: Entry) -> None:
        there = self._at.get(timestamp)
        if there is None:
            self._at[timestamp] = entry
        elif type(there) is dict:
            there[entry] = True
        else:
            self._at[timestamp] = {there: True, entry: True}  # type: ignore[dict-item]

    def _removed(self, timestamp: int, entry: Entry, saved: bool) -> None:
        """A timer is gone from its time, or was the only one."""
        there = self._at[timestamp]
        if type(there) is not dict or not there:
            del self._at[timestamp]
            self._firing.pop(timestamp, None)
            self._unsaved.pop(timestamp, None)
        if saved:
            self._table.remove((entry[0], (entry[1], timestamp)))

    def _in_order(self, timestamp: int, there: dict[Entry, bool]) -> list[Entry]:
        """The timers of a time, the first at the end: to take the first of a dict again and again would look at all
        that were there before each time."""
        order = self._firing[timestamp] = list(reversed(there))
        return order


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

    def save(self) -> None:
        """Bring the state up to date; called in the synchronous part of a snapshot."""
        self.event.save()
        self.processing.save()

    def fire(self, queue: TimerQueue, up_to: int, limit: int, on_timer: OnTimer) -> bool:
        """Fire what is due, in order, also what firing registers anew, at most `limit`, and no more when the time is
        up. True: nothing due is left."""
        time_limit = self._time_limit
        if limit:
            queue.merge_new()
        for timestamp, key, namespace in queue.due(up_to, limit):
            on_timer(timestamp, key, namespace)
            if time_limit.expired:
                break
        following = queue.next_timestamp()
        return following is None or following > up_to
