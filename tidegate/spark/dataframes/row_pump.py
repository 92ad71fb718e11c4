"""Rows of a user's iterator, pumped by a thread into a bounded queue, with the position behind each chunk of them."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.common.types import Row
from tidegate.contracts.connectors import SplitReader
from tidegate.formats.arrow_rows import ColumnsOfRecords, RowsOfColumns

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_ROWS = 1000
_CHUNKS = 8  # that wait to be read
_PAUSE_S = 0.02  # of the thread when the iterator has nothing right now
_POLL_MS = 5.0
_JOIN_S = 2.0


class Chunk(NamedTuple):
    rows: list[Row]  # [] when there is nothing right now
    position: Any  # behind the last row


def in_chunks(rows: Any, schema: pa.Schema, skip: int) -> Iterator[list[Row]]:
    """Rows of what a data source yields: tuples (also Rows of PySpark), lists, dicts or record batches. The first
    `skip` rows are left out. Values are checked against the schema."""
    import pyarrow as pa

    to_columns, to_rows = ColumnsOfRecords(schema), RowsOfColumns(schema)
    several = iter(rows)
    first = next(several, None)
    if first is None:
        return
    several = itertools.chain([first], several)
    if isinstance(first, pa.RecordBatch):
        batches = (batch.select(schema.names).cast(schema) for batch in several)
    else:
        records = itertools.islice(several, skip, None)
        skip = 0
        batches = (to_columns.batch(some) for some in iter(lambda: list(itertools.islice(records, _CHUNK_ROWS)), []))
    for batch in batches:
        left_out = min(skip, batch.num_rows)
        skip -= left_out
        for start in range(left_out, batch.num_rows, _CHUNK_ROWS):
            yield to_rows.rows(batch.slice(start, _CHUNK_ROWS))


class PumpedReader(SplitReader[Row]):
    """`chunks` is run on its own thread until it ends, raises, or the reader is closed; `commit` too, between two
    chunks, with the offsets of completed checkpoints."""

    def __init__(
        self, name: str, offset: Any, chunks: Iterator[Chunk], commit: Callable[[Any], None] | None, clock: Any
    ) -> None:
        self._offset = offset
        self._chunks = chunks
        self._commit = commit
        self._clock = clock
        self._queue: queue.Queue[Chunk] = queue.Queue(_CHUNKS)
        self._commits: deque[Any] = deque(maxlen=1)  # a later commit covers the earlier ones
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tidegate-read-{name}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ mailbox thread

    def poll(self, max_records: int) -> list[Row] | None:
        ended = self._ended.is_set()  # before the queue is read: what is pushed last is still seen
        try:
            chunk = self._queue.get_nowait()
        except queue.Empty:
            if not ended:
                return []
            if self._error is not None:
                raise self._error from None
            return None
        self._offset = chunk.position
        return chunk.rows

    def offset(self) -> Any:
        return self._offset

    def wake_at_ms(self) -> float:
        return float(self._clock.now_ms() + _POLL_MS)

    def notify_checkpoint_complete(self, checkpoint_id: int, offset: Any) -> None:
        if self._commit is not None:
            self._commits.append(offset)

    def close(self) -> None:
        self._closed.set()
        self._thread.join(_JOIN_S)

    # ------------------------------------------------------------ its own thread

    def _run(self) -> None:
        try:
            for chunk in self._chunks:
                self._put(chunk)
                self._do_commit()
                if self._closed.is_set():
                    break
                if not chunk.rows:
                    self._closed.wait(_PAUSE_S)
        except BaseException as error:  # also sys.exit(): reported by the next poll
            self._error = error
        finally:
            close = getattr(self._chunks, "close", None)
            if close is not None:
                close()
            self._ended.set()

    def _put(self, chunk: Chunk) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(chunk, timeout=0.05)
                return
            except queue.Full:
                self._do_commit()

    def _do_commit(self) -> None:
        if self._commit is not None and self._commits:
            self._commit(self._commits.popleft())
