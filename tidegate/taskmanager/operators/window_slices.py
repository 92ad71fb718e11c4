"""Sliding time windows whose partial results can be combined.

Time is cut into *slices* as long as the greatest common divisor of size and slide, so that each window is a whole
number of slices. A record goes into one slice of its key, however many windows it belongs to; when a window ends the
slices in it are combined. Per key there is one timer, for the end of its next window: firing it sets the one after it
as long as there are slices in that window.

Slices are combined in order of time, records within a slice in the order in which they came.

With the heap backend and without allowed lateness, `window_heap_slices` does the same in a faster way.
"""

from __future__ import annotations

from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.state import MapStateDescriptor
from tidegate.contracts.window import TimeWindow
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.state.serialization import dumps, loads
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.merge_check import MergeCheck
from tidegate.taskmanager.operators.window_base import BaseWindowOperator, aggregation_calls, called_by_runtime
from tidegate.taskmanager.own_results import stays
from tidegate.taskmanager.timers import OperatorTimers


class SliceWindowOperator(BaseWindowOperator):
    layout = "_window/slices"

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._first, self._add, self._result, self._merge = aggregation_calls(self.spec)
        self._size: int = self.assigner.size
        self._slide: int = self.assigner.slide
        self._offset: int = self.assigner.offset
        self._length: int = self.assigner.pane
        self._check: MergeCheck | None = None
        if self._result is not None:
            name = type(self.spec.aggregation).__name__
            self._check = MergeCheck(name, self._first, self._add, self._result, self._merge)

    def open(self) -> None:
        super().open()
        self._open_timers()
        self._slices = self.backend.get_state(MapStateDescriptor(self.layout))  # start of a slice -> partial result

    def _open_timers(self) -> None:
        self.timers = OperatorTimers(self.backend, self.limit)
        self._queue = self.timers.event if self.event_time else self.timers.processing

    # ------------------------------------------------------------ records
    def process(self, batch: RecordBatch) -> None:
        if self._check is not None:
            self._try_merge(self._check, batch)
        if self.event_time:
            self._process(batch, self.timestamps_of(batch), self.current_watermark)
        else:
            now = self.now()  # one look at the clock for the batch, which takes milliseconds
            self._process(batch, [now] * len(batch.values), MIN_WATERMARK)
        self.flush()

    def _try_merge(self, check: MergeCheck, batch: RecordBatch) -> None:
        try:
            check.on_records(batch.values)
        except ConfigurationError as error:
            self.fail("merge()", error)
        if check.done:
            self._check = None

    def _process(self, batch: RecordBatch, stamps: list[int], watermark: int) -> None:
        select, first, add, backend = self.selector(batch.values[0]), self._first, self._add, self.backend
        get, put = self._slices.get, self._slices.put
        length, offset = self._length, self._offset
        fires_late = self.lateness > 0
        taken, rest = self.limit.take(batch.values)
        try:
            for value, stamp in zip(rest, stamps, strict=False):
                backend.current_key = select(value)
                start = stamp - (stamp - offset) % length
                so_far = get(start)
                if so_far is not None:  # then it is not late: slices go when their last window does
                    put(start, add(so_far, value))
                elif self._last_end(start) - 1 + self.lateness <= watermark:
                    self.late_values.append(value)
                    self.late_stamps.append(stamp)
                    continue
                else:
                    put(start, first(value))
                    self._set_timers(start, watermark)
                if fires_late and self._first_end(start) - 1 <= watermark:
                    self._fire_again(start, watermark)
        except Exception as error:
            self.fail_in_window(error, taken, rest)
        self.taken(batch, taken)

    def _first_end(self, time: int) -> int:
        """The end of the earliest window that `time` is in."""
        return time + 1 + (self._offset + self._size - time - 1) % self._slide

    def _last_end(self, time: int) -> int:
        """The end of the latest window that `time` is in."""
        return time - (time - self._offset) % self._slide + self._size

    def _set_timers(self, start: int, watermark: int) -> None:
        """A slice of the current key is new: see that its next window fires, and that it is dropped in the end."""
        key = self.backend.current_key
        end = self._first_end(start)
        if end - 1 <= watermark:
            end = self._first_end(watermark + 1)
        if end <= self._last_end(start):
            self._queue.register(end - 1, key)
        if self.lateness > 0:
            dropped_at = self._last_end(start) - 1 + self.lateness
            if dropped_at < MAX_WATERMARK:
                self._queue.register(dropped_at, key, start)

    def _fire_again(self, start: int, watermark: int) -> None:
        """The windows of the slice that have ended, and are kept for late records, the latest first."""
        end = min(self._last_end(start), self._first_end(watermark + 1) - self._slide)
        while end > start and end - 1 + self.lateness > watermark:
            self._evaluate(end, self._slices.items())
            end -= self._slide

    # ------------------------------------------------------------ time
    def fire_event_timers(self, limit: int) -> bool:
        return not self.event_time or self._fire(self.current_watermark, limit)

    def fire_processing_timers(self, now_ms: float, limit: int) -> bool:
        return self.event_time or self._fire(int(now_ms) - 1, limit)

    def next_processing_timer(self) -> int | None:
        due = None if self.event_time else self._queue.next_timestamp()
        return None if due is None else due + 1

    def last_processing_timer(self) -> int | None:
        last = super().last_processing_timer()
        return None if last is None else last + self._size  # firing a window sets the timer of the next one

    def _fire(self, up_to: int, limit: int) -> bool:
        try:
            done = self.timers.fire(self._queue, up_to, limit, self._on_timer)
        except Exception as error:
            self.fail(called_by_runtime(error), error)
        self.flush()
        return done

    def _on_timer(self, timestamp: int, key: Any, dropped: int | None) -> None:
        self.backend.current_key = key
        if dropped is not None:
            self._slices.remove(dropped)
            return
        end = timestamp + 1
        slices = list(self._slices.items())
        self._evaluate(end, slices)
        next_start = end + self._slide - self._size
        if any(next_start <= start < end for start, _ in slices):
            self._queue.register(end + self._slide - 1, key)
        if self.lateness == 0:
            for start, _ in slices:
                if start < next_start:
                    self._slices.remove(start)
            self.dropped(TimeWindow(end - self._size, end))

    def _evaluate(self, end: int, slices: Any) -> None:
        begin = end - self._size
        found = sorted((start, part) for start, part in slices if begin <= start < end and part is not None)
        self._combine(end, [part for _, part in found])

    def _combine(self, end: int, parts: list[Any]) -> None:
        """Emit the result of the current key's window that is made of these, if there are any."""
        if not parts:
            return
        merge, result = self._merge, self._result
        total = own_copy(parts[0])
        for part in parts[1:]:
            total = merge(total, own_copy(part))
        if result is not None:
            total = result(total)
        if self._call is None:
            self.values.append(total)
            self.stamps.append(end - 1)
        else:
            self.evaluate(self.backend.current_key, TimeWindow(end - self._size, end), [total])


def own_copy(part: Any) -> Any:
    """The part itself when it cannot change, a copy otherwise: `merge` and `reduce` may work in place, who gets the
    result may change it too, and the slice is needed again for the next window."""
    return part if stays(part) else loads("window", "slices", dumps(part))
