"""The old style of source: a function that pushes records, run on a thread of its own. Behind `env.add_source`.

It cannot be replayed: after a recovery `run` is called anew, so records that it had pushed since the last checkpoint
are lost unless it pushes them again. That is at most once; implement `datastream.connectors.base.Source` for more.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.connectors import Boundedness, Source, SourceContext, SourceSplit, SplitReader
from tidegate.contracts.functions import SourceFunction

_QUEUED = 1024  # records that wait to be read; then `collect` waits
_POLL_MS = 5.0
_JOIN_S = 1.0


class SourceFunctionSource(Source[Any]):
    """Runs a SourceFunction as a source. It has one split, whatever the parallelism."""

    def __init__(self, function: SourceFunction, type_info: Any = None) -> None:
        self._function = function
        self._type_info = type_info

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit("0")]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return _FunctionReader(self._function, context)

    def get_produced_type(self) -> Any:
        return self._type_info


class _StoppedError(BaseException):
    """Raised out of `collect` when the job is over: no `Exception`, so that user code does not catch it."""


class _Context(SourceFunction.SourceContext):
    def __init__(self) -> None:
        self.records: queue.Queue[tuple[Any, int | None]] = queue.Queue(_QUEUED)
        self.stopped = threading.Event()

    def collect(self, value: Any) -> None:
        self._put(value, None)

    def collect_with_timestamp(self, value: Any, timestamp: int) -> None:
        self._put(value, int(timestamp))

    def _put(self, value: Any, timestamp: int | None) -> None:
        while not self.stopped.is_set():
            try:
                self.records.put((value, timestamp), timeout=0.1)
                return
            except queue.Full:
                continue
        raise _StoppedError


class _FunctionReader(SplitReader[Any]):
    def __init__(self, function: SourceFunction, where: SourceContext) -> None:
        self._function = function
        self._clock = where.clock
        self._context = _Context()
        self._error: BaseException | None = None
        self._next: tuple[Any, int | None] | None = None  # taken from the queue, for the next batch
        function.open(where.runtime_context)
        self._thread = threading.Thread(target=self._run, name=f"tidegate-source-{where.operator_name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._function.run(self._context)
        except _StoppedError:
            pass
        except BaseException as error:  # also sys.exit(): reported by the next poll
            self._error = error

    def poll(self, max_records: int) -> RecordBatch | None:
        alive = self._thread.is_alive()  # before the queue is read: what is pushed last is still seen
        batch = self._take(max_records)
        if len(batch) or alive:
            return batch
        if self._error is not None:
            raise self._error
        return None

    def _take(self, max_records: int) -> RecordBatch:
        """Records with and without timestamps do not mix in a batch."""
        values: list[Any] = []
        stamps: list[int] = []
        while len(values) < max_records:
            if self._next is None:
                try:
                    self._next = self._context.records.get_nowait()
                except queue.Empty:
                    break
            value, timestamp = self._next
            if values and (timestamp is not None) != bool(stamps):
                break
            values.append(value)
            if timestamp is not None:
                stamps.append(timestamp)
            self._next = None
        return RecordBatch(values, stamps or None)

    def offset(self) -> None:
        return None

    def wake_at_ms(self) -> float:
        return float(self._clock.now_ms() + _POLL_MS)

    def close(self) -> None:
        self._context.stopped.set()
        try:
            if self._thread.is_alive():
                self._function.cancel()
                self._thread.join(_JOIN_S)
        finally:
            self._function.close()
