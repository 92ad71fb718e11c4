"""`AsyncDataStream`: calls to the outside that overlap, one coroutine per record.

The coroutines run on the host's event loop, off the mailbox thread. Everything else is here, on the mailbox thread and
on the task's clock: how many are under way, the order of the results, timeouts, retries. A result comes back as mail
and only marks its call as finished; what can be emitted is emitted in `advance`, by the task.

Records whose results were not emitted yet are part of every snapshot, and are called for again after a recovery: the
outside may see a call twice, the output has its results once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from tidegate.common.ids import CheckpointId
from tidegate.common.value_conversion import shorten
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.functions import AsyncFunction
from tidegate.contracts.state import ListStateDescriptor
from tidegate.graph.operator_specs import AsyncSpec
from tidegate.taskmanager.async_results import Call, Mark, OrderedResults, Results, UnorderedResults
from tidegate.taskmanager.log_place import starting_for
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import FunctionOperator
from tidegate.taskmanager.operators.results import emit_results


class AsyncWaitOperator(FunctionOperator):
    RECORDS = "tidegate.async.records"  # split: (value, timestamp)
    MARKS = (
        "tidegate.async.marks"  # union: (subtask, parallelism, [(how many records come before it, watermark, idle)])
    )

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        spec = context.node.spec
        if not isinstance(spec, AsyncSpec):
            raise TypeError("AsyncWaitOperator needs an AsyncSpec")
        self._spec = spec
        self._async_function: AsyncFunction[Any, Any] = spec.function
        self._results: Results = OrderedResults() if spec.ordered else UnorderedResults()
        self._unissued: deque[Call] = deque()  # came while `capacity` calls were under way
        self._under_way: dict[int, tuple[Call, Callable[[], None]]] = {}  # id of the call -> call, how to cancel it
        self._holding: set[int] = set()  # ids of calls that count against the capacity: under way, or before a retry
        self._deadlines: list[tuple[float, int, Call, int, bool]] = []  # heap: (when, tie, call, generation, a retry)
        self._tie = 0
        predicate = spec.retry.get_retry_predicate()
        self._retry_result = predicate.result_predicate()
        self._retry_exception = predicate.exception_predicate()

    # ------------------------------------------------------------ records and marks
    def open(self) -> None:
        c = self.context
        self._record_state = c.operator_state.get_list_state(ListStateDescriptor(self.RECORDS))
        self._mark_state = c.operator_state.get_union_list_state(ListStateDescriptor(self.MARKS))
        # After rescaling the records were dealt out anew: marks keep their place only where the records did, and the
        # task repeats its latest watermark anyway.
        here = (c.subtask, c.parallelism)
        marks = [m for subtask, width, kept in self._mark_state.get() if (subtask, width) == here for m in kept]
        for position, (value, timestamp) in enumerate(self._record_state.get()):
            while marks and marks[0][0] <= position:
                self._results.add_mark(Mark(*marks.pop(0)[1:]))
            self._add(value, timestamp)
        for mark in marks:
            self._results.add_mark(Mark(*mark[1:]))
        super().open()

    def process(self, batch: RecordBatch) -> None:
        stamps = batch.timestamps
        for i, value in enumerate(batch.values):
            self._add(value, None if stamps is None else stamps[i])
        self._issue()

    def process_watermark(self, timestamp: int) -> None:
        if self._results.empty:
            super().process_watermark(timestamp)
        else:
            self._results.add_mark(Mark(watermark=timestamp))

    @property
    def watermark_given(self) -> int:
        marks = (item.watermark for item in self._results.pending() if isinstance(item, Mark))
        return max((mark for mark in marks if mark is not None), default=self.current_watermark)

    def process_status(self, idle: bool) -> None:
        if self._results.empty:
            super().process_status(idle)
        else:
            self._results.add_mark(Mark(idle=idle))

    @property
    def available(self) -> bool:
        return self._results.calls < self._spec.capacity

    # ------------------------------------------------------------ calls
    def _add(self, value: Any, timestamp: int | None) -> None:
        call = Call(value, timestamp)
        self._results.add(call)
        self._unissued.append(call)

    def _issue(self) -> None:
        while self._unissued and len(self._holding) < self._spec.capacity:
            call = self._unissued.popleft()
            self._holding.add(id(call))
            if self._spec.timeout_ms > 0:
                self._at(self.context.clock.now_ms() + self._spec.timeout_ms, call, -1, retry=False)
            self._try(call)

    def _try(self, call: Call) -> None:
        call.tries += 1
        call.generation += 1
        generation, value, function = call.generation, call.value, self._async_function
        with starting_for(self.context):
            cancel = self.context.run_coroutine(
                lambda: function.async_invoke(value),
                lambda result, error: self._came_back(call, generation, result, error),
            )
        self._under_way[id(call)] = call, cancel

    def _came_back(self, call: Call, generation: int, result: Any, error: BaseException | None) -> None:
        """Mail."""
        if call.results is not None or call.generation != generation:
            return  # it timed out meanwhile
        self._under_way.pop(id(call), None)
        try:
            if error is None:
                self._check_results(result)
            if self._wants_retry(call, result, error):
                pause = self._spec.retry.get_backoff_time_millis(call.tries)
                self._at(self.context.clock.now_ms() + pause, call, call.generation, retry=True)
            elif error is not None:
                raise error
            else:
                self._finish_call(call, list(result))
        except BaseException as failure:
            if not isinstance(failure, Exception) and failure is not error:
                raise
            self.fail("async_invoke()", failure, call.value)

    def _wants_retry(self, call: Call, result: Any, error: BaseException | None) -> bool:
        if error is None:
            wanted = self._retry_result is not None and self._retry_result(result)
        else:
            wanted = isinstance(error, Exception) and (
                self._retry_exception is not None and self._retry_exception(error)
            )
        return bool(wanted) and self._spec.retry.can_retry(call.tries)

    def _check_results(self, result: Any) -> None:
        if not isinstance(result, (list, tuple)):
            raise TypeError(
                f"async_invoke has to return a list of results ([] for none), got {type(result).__name__}: "
                f"{shorten(result)}"
            )

    def _finish_call(self, call: Call, results: list[Any]) -> None:
        call.generation += 1
        call.results = results
        self._holding.discard(id(call))
        self._results.finished(call)
        self._issue()

    def _time_out(self, call: Call) -> None:
        found = self._under_way.pop(id(call), None)
        call.generation += 1
        if found is not None:
            found[1]()
        try:
            results = self._async_function.timeout(call.value)
            self._check_timeout_results(results)
        except Exception as error:
            self.fail("timeout()", error, call.value)
        self._finish_call(call, list(results))

    def _check_timeout_results(self, results: Any) -> None:
        if not isinstance(results, (list, tuple)):
            raise TypeError(f"timeout has to return a list of results ([] for none), got {type(results).__name__}")

    # ------------------------------------------------------------ driven by the task
    @property
    def asynchronous(self) -> bool:
        return True

    @property
    def settled(self) -> bool:
        return self._results.empty

    def next_deadline(self, can_emit: bool) -> float | None:
        while self._deadlines and self._over(*self._deadlines[0][2:4]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def advance(self, now_ms: float, can_emit: bool) -> bool:
        self._issue()
        worked = False
        while (due := self.next_deadline(can_emit)) is not None and due <= now_ms:
            _, _, call, _, retry = heapq.heappop(self._deadlines)
            worked = True
            if retry:
                self._try(call)
            else:
                self._time_out(call)
        if can_emit and self._results.ready:
            self._emit()
            worked = True
        return worked

    def _at(self, when: float, call: Call, generation: int, retry: bool) -> None:
        self._tie += 1
        heapq.heappush(self._deadlines, (when, self._tie, call, generation, retry))

    @staticmethod
    def _over(call: Call, generation: int) -> bool:
        """Nobody waits for this deadline any more. A timeout (-1) is for all tries of a call."""
        return call.results is not None or generation not in (-1, call.generation)

    def _emit(self) -> None:
        values: list[Any] = []
        stamps: list[int] = []
        stamped = False
        for item in self._results.take():
            if isinstance(item, Mark):
                emit_results(self, values, stamps if stamped else None)
                values, stamps = [], []
                if item.watermark is not None:
                    super().process_watermark(item.watermark)
                if item.idle is not None:
                    super().process_status(item.idle)
                continue
            if values and (item.timestamp is not None) != stamped:
                emit_results(self, values, stamps if stamped else None)
                values, stamps = [], []
            stamped = item.timestamp is not None
            values += item.results or ()
            if item.timestamp is not None:
                stamps += [item.timestamp] * len(item.results or ())
        emit_results(self, values, stamps if stamped else None)

    # ------------------------------------------------------------ snapshots, end
    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        records: list[tuple[Any, int | None]] = []
        marks: list[tuple[int, int | None, bool | None]] = []
        for item in self._results.pending():
            if isinstance(item, Mark):
                marks.append((len(records), item.watermark, item.idle))
            else:
                records.append((item.value, item.timestamp))
        self._record_state.update(records)
        self._mark_state.update([(self.context.subtask, self.context.parallelism, marks)] if marks else [])
        super().update_state(checkpoint_id, timestamp)

    def finish(self) -> None:
        """The end is there when all calls are back; see `Function.finish`."""

    def close(self) -> None:
        under_way, self._under_way = self._under_way, {}
        for call, cancel in under_way.values():
            call.generation += 1
            cancel()
        super().close()
