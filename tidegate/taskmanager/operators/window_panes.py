"""Tumbling time windows that are aggregated as records come and fire once, when they end.

A window is one entry per key (a *pane*) and is dropped as it fires. So the panes that exist are exactly those that have
yet to fire: no timers are kept, in memory or in state, and after a recovery the panes say what is due.

`_process` is a hot loop (benchmark `windows`). What costs most there is the look-up in a large dict by (key, window):
such keys are spread all over the memory. So with the heap backend the panes of each open window are in a dict by key
alone, which is twice as fast, and what has changed in it is put into the state when a snapshot is taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, MutableMapping
from typing import Any

from tidegate.common.ids import CheckpointId
from tidegate.common.value_sizes import estimated_size
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.window import TimeWindow
from tidegate.state.figures import StateFigures, size_by_sample
from tidegate.state.heap.table import HeapTable
from tidegate.state.read_budget import ReadBudget, check_parts
from tidegate.state.reading import CountedTable, NamespacesOf
from tidegate.storage.handles import KeyedStateInfo
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.window_base import BaseWindowOperator, aggregation_calls, called_by_runtime

Span = tuple[int, int]
"""Start and end of a window, as it is in the state: a plain pair, which the garbage collector can leave alone."""
_MISSING: Any = object()


class _HeapWindow:
    """The panes of an open window on the heap. Invariant: a key is in the table exactly when it is in `stored`.

    A pane of None is none (as everywhere in state), and the next record of its key begins anew.
    """

    def __init__(self, span: Span, table: Any) -> None:
        self.span = span
        self.keys: list[Any] = []  # all that have a pane, in the order of their first records; some without, or twice
        self.recent: dict[Any, Any] = {}  # panes that were changed since the last snapshot
        self._stored: dict[Any, Any] = {}  # panes as of the last snapshot, whether changed since or not
        self._table = table

    def restore(self, key: Any) -> None:
        self.keys.append(key)
        self._stored[key] = self._table.get((key, self.span))

    def older(self, key: Any) -> Any:
        """The pane of a key that has none in `recent`; None when there is none."""
        return None if key in self.recent else self._stored.get(key)

    def take(self, key: Any) -> Any:
        """The pane, which is gone when this returns; None when there is none."""
        pane = self.recent.pop(key, _MISSING)
        before = self._stored.pop(key, None)
        if before is not None:
            self._table.remove((key, self.span))
        return before if pane is _MISSING else pane

    def store(self) -> None:
        put, span = self._table.put, self.span
        for key in [key for key, pane in self.recent.items() if pane is None]:
            del self.recent[key]
            if self._stored.pop(key, None) is not None:
                self._table.remove((key, span))
        for key, pane in self.recent.items():
            put((key, span), pane)
        self._stored.update(self.recent)
        self.recent = {}

    def peek(self, key: Any) -> Any:
        """The pane, which stays; None when there is none."""
        pane = self.recent.get(key, _MISSING)
        return self._stored.get(key) if pane is _MISSING else pane

    def all_keys(self) -> Iterator[Any]:
        """All that have a pane."""
        yield from (key for key, pane in self.recent.items() if pane is not None)
        yield from (key for key in self._stored if key not in self.recent)


class _OpenPanes:
    """`state.reading.CountedTable` of the open windows on the heap."""

    def __init__(self, info: KeyedStateInfo, windows: dict[Span, _HeapWindow]) -> None:
        self.info = info
        self._windows = windows

    def peek(self, entry: Any, budget: ReadBudget) -> Any:
        pane = self._pane(entry)
        budget.take(self.info, 1, estimated_size(pane))
        return pane

    def _pane(self, entry: Any) -> Any:
        key, span = entry
        window = self._windows.get(tuple(span))
        return None if window is None else window.peek(key)

    def peek_namespaces(self, keys: Collection[Any], budget: ReadBudget) -> NamespacesOf:
        def namespaces(key: Any) -> list[Any]:
            budget.take(self.info, len(self._windows))
            found = [TimeWindow(*span) for span, window in self._windows.items() if window.peek(key) is not None]
            check_parts(self.info, len(found))
            return found

        return namespaces

    def peek_entries(self) -> Iterator[Any]:
        for span, window in self._windows.items():
            for key in window.all_keys():
                yield key, TimeWindow(*span)

    def figures(self) -> StateFigures:
        entries = sum(sum(1 for _ in window.all_keys()) for window in self._windows.values())
        sample = ((entry, self._pane(entry)) for entry in self.peek_entries())
        return StateFigures(entries=entries, exact=True, bytes=size_by_sample(sample, entries))


class _TableWindow:
    """The panes of an open window in any other backend: all in its table."""

    def __init__(self, span: Span, table: Any) -> None:
        self.span = span
        self.keys: list[Any] = []
        self.recent: Any = _Panes(span, table)
        self._table = table

    def restore(self, key: Any) -> None:
        self.keys.append(key)

    def older(self, key: Any) -> Any:
        return None

    def take(self, key: Any) -> Any:
        entry = key, self.span
        pane = self._table.get(entry)
        self._table.remove(entry)
        return pane

    def store(self) -> None: ...


class _Panes:
    """As much of a dict as the loop needs."""

    def __init__(self, span: Span, table: Any) -> None:
        self._span, self._get, self._put, self._remove = span, table.get, table.put, table.remove

    def get(self, key: Any) -> Any:
        return self._get((key, self._span))

    def __setitem__(self, key: Any, pane: Any) -> None:
        if pane is None:
            self._remove((key, self._span))
        else:
            self._put((key, self._span), pane)


class PaneWindowOperator(BaseWindowOperator):
    layout = "_window/panes"

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._first, self._add, self._result, _ = aggregation_calls(self.spec)
        self._size: int = self.assigner.size
        self._offset: int = self.assigner.offset
        self._open: dict[Span, _HeapWindow | _TableWindow] = {}
        self._order: list[Span] = []  # a heap of the windows in _open
        self._firing: Span | None = None  # its keys are in reverse order, to be taken from the end

    def open(self) -> None:
        super().open()
        self._table = self.backend.table(KeyedStateInfo(name=self.layout, kind="value", namespaced=True))
        self._kind = _HeapWindow if isinstance(self._table, HeapTable) else _TableWindow
        for key, span in list(self._table.live_keys()):
            self._window(tuple(span)).restore(key)

    def _window(self, span: Span) -> _HeapWindow | _TableWindow:
        window = self._open.get(span)
        if window is None:
            window = self._open[span] = self._kind(span, self._table)
            heapq.heappush(self._order, span)
        return window

    def readable_table(self, name: str) -> CountedTable | None:
        if name != self.layout or self._kind is not _HeapWindow:
            return None
        return _OpenPanes(self._table.info, self._open)  # type: ignore[arg-type]

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        for window in self._open.values():
            window.store()
        super().update_state(checkpoint_id, timestamp)

    # ------------------------------------------------------------ records
    def process(self, batch: RecordBatch) -> None:
        if self.event_time:
            self._process(batch, self.timestamps_of(batch), self.current_watermark)
        else:
            now = self.now()  # one look at the clock for the batch, which takes milliseconds
            self._process(batch, [now] * len(batch.values), now - self._size)
        self.flush()

    def _process(self, batch: RecordBatch, stamps: list[int], watermark: int) -> None:
        select, first, add = self.selector(batch.values[0]), self._first, self._add
        size, offset = self._size, self._offset
        start = end = 0  # of `window`; no timestamp lies in [0, 0)
        late = False
        window: _HeapWindow | _TableWindow
        panes: MutableMapping[Any, Any]
        key: Any = None
        taken, rest = self.limit.take(batch.values)
        try:
            for value, stamp in zip(rest, stamps, strict=False):
                if not start <= stamp < end:
                    start = stamp - (stamp - offset) % size
                    end = start + size
                    late = end - 1 <= watermark
                    if not late:
                        window = self._window((start, end))
                        panes = window.recent
                if late:
                    self.late_values.append(value)
                    self.late_stamps.append(stamp)
                    continue
                key = select(value)
                pane = panes.get(key)
                if pane is not None:
                    panes[key] = add(pane, value)
                else:
                    pane = window.older(key)
                    if pane is not None:
                        panes[key] = add(pane, value)
                    else:
                        panes[key] = first(value)
                        window.keys.append(key)
        except Exception as error:
            self.backend.current_key = key
            self.fail_in_window(error, taken, rest)
        self.taken(batch, taken)

    # ------------------------------------------------------------ time
    def fire_event_timers(self, limit: int) -> bool:
        return not self.event_time or self._fire(self.current_watermark, limit)

    def fire_processing_timers(self, now_ms: float, limit: int) -> bool:
        return self.event_time or self._fire(int(now_ms) - 1, limit)

    def next_processing_timer(self) -> int | None:
        return None if self.event_time or not self._order else self._order[0][1]

    def last_processing_timer(self) -> int | None:
        return None if self.event_time or not self._order else max(end for _, end in self._order)

    def _fire(self, up_to: int, limit: int) -> bool:
        """Fire the panes of windows that end by `up_to`, at most `limit`. True: none is left."""
        order = self._order
        try:
            while order and order[0][1] - 1 <= up_to and limit > 0:
                span = order[0]
                window = self._open[span]
                keys = window.keys
                if span != self._firing:
                    keys.reverse()
                    self._firing = span
                portion = keys[-limit:]
                portion.reverse()
                fired = self._fire_panes(window, portion)
                del keys[-fired:]
                limit = 0 if self.limit.expired else limit - fired
                if not keys:
                    del self._open[span]
                    heapq.heappop(order)
                    self._firing = None
        except Exception as error:
            self.fail(called_by_runtime(error), error)
        self.flush()
        return not order or order[0][1] - 1 > up_to

    def _fire_panes(self, window: _HeapWindow | _TableWindow, keys: list[Any]) -> int:
        """How many: all, unless the time is up before."""
        take, result = window.take, self._result
        if self._call is None:
            totals = [pane for key in keys if (pane := take(key)) is not None]
            self.values += totals if result is None else map(result, totals)
            self.stamps += [window.span[1] - 1] * len(totals)
            return len(keys)
        time_window = TimeWindow(*window.span)
        taken, rest = self.limit.take(keys)
        for key in rest:
            self.backend.current_key = key
            pane = take(key)
            if pane is None:
                continue
            self.evaluate(key, time_window, [pane if result is None else result(pane)])
            self.dropped(time_window)
        return len(taken)
