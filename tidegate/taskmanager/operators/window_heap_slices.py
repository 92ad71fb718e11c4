"""Sliding windows on the heap: `window_slices` with the slices kept by time, then by key.

A record goes into the dict of its slice, which is by key alone: half the cost of a dict of slices per key, and a third
of the objects. When a window ends, the keys that are due (`window_due`) are taken in portions, and the parts of each
are combined in one pass over the slices of the window; a slice is dropped whole when its last window has fired. The
state, which has a map of slices and a timer per key as with every other backend, gets what has changed when a snapshot
is taken.

`_process` and `_fire_keys` are hot (benchmark `windows`, sliding windows: from 0.2 to 0.4 of the keyed count).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, repeat
from operator import is_not
from typing import Any

from tidegate.common.ids import CheckpointId
from tidegate.common.value_sizes import estimated_size
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.window import TimeWindow
from tidegate.state.figures import StateFigures, size_by_sample
from tidegate.state.keyed_states import HeapMapState
from tidegate.state.read_budget import ReadBudget, check_parts
from tidegate.state.reading import CountedTable, NamespacesOf
from tidegate.storage.handles import KeyedStateInfo
from tidegate.taskmanager.operators.window_base import called_by_runtime
from tidegate.taskmanager.operators.window_due import DueKeys
from tidegate.taskmanager.operators.window_slices import SliceWindowOperator
from tidegate.taskmanager.own_results import ENOUGH, stays
from tidegate.taskmanager.timers import OperatorTimers

_MISSING: Any = object()


_InHand = tuple[dict[Any, Any], dict[Any, Any], list[Any]]
"""`recent` and `stored` of a slice, and the keys that have got a part in it from the batch in hand."""


class _Slice:
    """The parts of all keys in one slice. Invariant: a key has this slice in the state exactly when it is in `stored`.

    A part of None is none (as everywhere in state), and the next record of its key begins anew.
    """

    __slots__ = ("recent", "stored")

    def __init__(self) -> None:
        self.recent: dict[Any, Any] = {}  # parts that were changed since the last snapshot
        self.stored: dict[Any, Any] = {}  # parts as of the last snapshot, whether changed since or not

    def peek(self, key: Any) -> Any:
        part = self.recent.get(key, _MISSING)
        return self.stored.get(key) if part is _MISSING else part

    def column(self, keys: list[Any]) -> list[Any]:
        """The parts of these keys, None where there is none."""
        if not self.stored:
            return list(map(self.recent.get, keys))
        return list(map(self.peek, keys))


class _OpenSlices:
    """`state.reading.CountedTable` of the slices: a map of slices per key, as in the state."""

    def __init__(self, info: KeyedStateInfo, slices: dict[int, _Slice], due: DueKeys) -> None:
        self.info = info
        self._slices = slices
        self._due = due

    def peek(self, entry: Any, budget: ReadBudget) -> Any:
        budget.take(self.info, 1 + len(self._slices))
        found = self._parts(entry)
        check_parts(self.info, len(found))
        budget.take(self.info, 0, estimated_size(found))
        return found or None

    def _parts(self, entry: Any) -> dict[int, Any]:
        return {start: part for start, kept in self._slices.items() if (part := kept.peek(entry)) is not None}

    def peek_namespaces(self, keys: Collection[Any], budget: ReadBudget) -> NamespacesOf:
        return lambda key: []

    def peek_entries(self) -> Iterator[Any]:
        seen: set[Any] = set()
        for kept in self._slices.values():
            for key in chain(kept.recent, kept.stored):
                if key not in seen:
                    seen.add(key)
                    yield key

    def figures(self) -> StateFigures:
        entries = self._due.count()  # who has a slice is due, and there are fewer ends than slices
        sample = ((key, self._parts(key)) for key in self.peek_entries())
        return StateFigures(entries=entries, exact=True, bytes=size_by_sample(sample, entries))


class HeapSliceWindowOperator(SliceWindowOperator):
    """For the heap backend and windows without allowed lateness, whose slices are dropped as their last window
    fires."""

    _slices: HeapMapState

    def open(self) -> None:
        super().open()
        self._fired: list[Any] = []  # keys that have fired of the window that is being worked off
        self._fired_end = 0  # of that window
        self._open: dict[int, _Slice] = {}  # by start
        self._looked_into = 0  # parts, for something that can be changed in place
        self._changeable = False  # there was one
        for key, slices in self.backend.table(self._info()).live_items():
            for start, part in slices.items():
                if part is not None:
                    self._slice(start).stored[key] = part

    def _open_timers(self) -> None:
        names = OperatorTimers.EVENT, OperatorTimers.PROCESSING
        event, processing = (DueKeys(self.backend, name) for name in names)  # both: a state has both
        self._due = event if self.event_time else processing

    def _info(self) -> KeyedStateInfo:
        return KeyedStateInfo(name=self.layout, kind="map")

    def _slice(self, start: int) -> _Slice:
        kept = self._open.get(start)
        if kept is None:
            kept = self._open[start] = _Slice()
        return kept

    def forget_keys(self) -> None:
        self._open.clear()
        self._fired.clear()
        self._due.clear()
        super().forget_keys()

    # ------------------------------------------------------------ state
    def readable_table(self, name: str) -> CountedTable | None:
        return (
            _OpenSlices(self.backend.table(self._info()).info, self._open, self._due) if name == self.layout else None
        )

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        self._drop_fired(at_snapshot=True)
        self._due.save()
        for start, kept in self._open.items():
            self._store(start, kept)
        super().update_state(checkpoint_id, timestamp)

    def _store(self, start: int, kept: _Slice) -> None:
        backend, state = self.backend, self._slices
        map_of = state.changed_maps().get
        for key, part in kept.recent.items():
            if part is None:
                self._unstore(start, kept, key)
                continue
            slices = map_of(key)
            if slices is None:
                backend.current_key = key
                state.put(start, part)
            else:
                slices[start] = part
            kept.stored[key] = part
        kept.recent = {}

    def _unstore(self, start: int, kept: _Slice, key: Any) -> None:
        if kept.stored.pop(key, None) is not None:
            self.backend.current_key = key
            self._slices.remove(start)

    # ------------------------------------------------------------ records
    def _process(self, batch: RecordBatch, stamps: list[int], watermark: int) -> None:
        select, first, add = self.selector(batch.values[0]), self._first, self._add
        length, offset, as_it_is = self._length, self._offset, self.spec.kind == "reduce"
        start = stop = 0  # of the slice in hand; no timestamp lies in [0, 0)
        seen: dict[int, _InHand | tuple[()]] = {}  # by start; (): it is late
        known: _InHand | tuple[()] | None
        parts: dict[Any, Any] = {}
        stored: dict[Any, Any] = {}
        new: list[Any] = []
        key: Any = None
        taken, rest = self.limit.take(batch.values)
        try:
            for value, stamp in zip(rest, stamps, strict=False):
                if not start <= stamp < stop:
                    start = stamp - (stamp - offset) % length
                    known = seen.get(start)
                    if known is None:
                        known = seen[start] = self._in_hand(start, watermark)
                    if not known:
                        start = stop = 0
                        self.late_values.append(value)
                        self.late_stamps.append(stamp)
                        continue
                    stop = start + length
                    parts, stored, new = known
                key = select(value)
                part = parts.get(key)
                if part is None and stored and key not in parts:
                    part = stored.get(key)
                if part is not None:
                    parts[key] = add(part, value)
                else:
                    parts[key] = value if as_it_is else first(value)
                    new.append(key)
        except Exception as error:
            self.backend.current_key = key
            self.fail_in_window(error, taken, rest)
        for begun, known in seen.items():
            if known:
                self._due.add(self._next_end(begun, watermark), known[2])
        self.taken(batch, taken)

    def _in_hand(self, start: int, watermark: int) -> _InHand | tuple[()]:
        """A slice that a batch has records for; () when these are late."""
        if self._last_end(start) - 1 <= watermark:
            return ()
        kept = self._slice(start)
        return kept.recent, kept.stored, []

    def _next_end(self, start: int, watermark: int) -> int:
        """The end of the next window that a slice is in, which is not late."""
        end = self._first_end(start)
        return end if end - 1 > watermark else self._first_end(watermark + 1)

    # ------------------------------------------------------------ time
    def next_processing_timer(self) -> int | None:
        return None if self.event_time else self._due.next_end()

    def last_processing_timer(self) -> int | None:
        last = None if self.event_time else self._due.last_end()
        return None if last is None else last - 1 + self._size  # firing a window sets the timer of the next one

    def _fire(self, up_to: int, limit: int) -> bool:
        due = self._due
        try:
            while limit > 0 and (found := due.first(up_to, limit)) is not None:
                end, keys = found
                fired = self._fire_keys(end, keys)
                if due.fired(fired):
                    self._drop_before(end - self._size + self._slide)
                else:
                    self._drop_fired(at_snapshot=False)
                limit = 0 if self.limit.expired else limit - fired
        except Exception as error:
            self.fail(called_by_runtime(error), error)
        self.flush()
        following = due.next_end()
        return following is None or following - 1 > up_to

    def _fire_keys(self, end: int, keys: list[Any]) -> int:
        """The windows that end, of these keys. How many: all, unless the time is up before."""
        begin, next_begin = end - self._size, end - self._size + self._slide
        starts = sorted(start for start in self._open if begin <= start < end)
        columns = [self._open[start].column(keys) for start in starts]
        taken, rest = self.limit.take(keys) if columns else (keys, iter(()))
        merge, values = self._merge, self.values
        if self._result is None and self._call is None and self._never_change(columns):
            append = values.append
            for _, parts in zip(rest, zip(*columns, strict=True), strict=False):
                total = None
                for part in parts:
                    if part is not None:
                        total = part if total is None else merge(total, part)
                if total is not None:
                    append(total)
            self.stamps += [end - 1] * (len(values) - len(self.stamps))
        else:
            window = TimeWindow(begin, end)
            for key, *found in zip(rest, *columns, strict=False):
                self.backend.current_key = key
                self._combine(end, [part for part in found if part is not None])
                self.dropped(window)
        self._fired += taken
        self._fired_end = end
        if starts and starts[-1] >= next_begin and all(map(is_not, columns[-1], repeat(None))):
            self._due.add(end + self._slide, taken)  # as a rule: all have something in the latest slice
        else:
            self._go_on(end, taken, [c for s, c in zip(starts, columns, strict=True) if s >= next_begin])
        return len(taken)

    def _never_change(self, columns: list[list[Any]]) -> bool:
        """There is nothing in these parts that `merge`, or who gets a result, could change in place, so that no copy is
        needed. As with `OwnResults`, the first are all looked into, and three of each portion later."""
        if self._changeable:
            return False
        for column in columns:
            some = column if self._looked_into < ENOUGH else (column[0], column[len(column) // 2], column[-1])
            if not all(map(stays, some)):
                self._changeable = True
                return False
            self._looked_into += len(some)
        return True

    def _go_on(self, end: int, keys: list[Any], kept: list[list[Any]]) -> None:
        """Keys with parts that the next window has too are due again when it ends."""
        there = [False] * len(keys)
        for column in reversed(kept):
            there = [found or part is not None for found, part in zip(there, column, strict=False)]
            if all(there):
                break
        self._due.add(end + self._slide, [key for key, found in zip(keys, there, strict=True) if found])

    def _drop_before(self, next_begin: int) -> None:
        """A window has fired for all its keys, and slices that are in none of those to come are needed no more."""
        self._fired = []
        for start in [start for start in self._open if start < next_begin]:
            kept = self._open.pop(start)
            for key in list(kept.stored):
                self._unstore(start, kept, key)

    def _drop_fired(self, at_snapshot: bool) -> None:
        """As `_drop_before`, for the keys of a window that have fired when others have not yet. Not at once where
        nobody can see it: what is in the state goes portion by portion, which would take long at the end of the window,
        and with processing time the clock may go backwards, and a slice begin anew."""
        next_begin = self._fired_end - self._size + self._slide
        ended = [(start, kept) for start, kept in self._open.items() if start < next_begin] if self._fired else []
        if not (at_snapshot or not self.event_time or any(kept.stored for _, kept in ended)):
            return
        for start, kept in ended:
            for key in self._fired:
                kept.recent.pop(key, None)
                if kept.stored:
                    self._unstore(start, kept, key)
        self._fired = []
