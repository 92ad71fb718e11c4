"""The head of a source chain: reads its splits in turn, a batch at a time, and remembers where it is."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from tidegate.common.errors import check_internal
from tidegate.common.ids import CheckpointId
from tidegate.common.record_batch import RecordBatch
from tidegate.datastream.connectors.base import SourceContext, SourceSplit, SplitReader
from tidegate.datastream.state import ListStateDescriptor
from tidegate.graph.operator_specs import SourceSpec
from tidegate.taskmanager.operators.base import Operator, OperatorContext, bind

_IDLE_POLL_MS = 10.0  # when a reader does not say when to ask again


class _OpenSplit:
    """A split being read. `reader` is None once it is finished."""

    def __init__(self, split: SourceSplit, offset: Any, reader: SplitReader[Any] | None) -> None:
        self.split = split
        self.offset = offset  # final offset when finished
        self.reader = reader


class SourceOperator(Operator):
    STATE_NAME = "tidegate.source.splits"

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        spec = context.node.spec
        if not isinstance(spec, SourceSpec):
            raise TypeError("SourceOperator needs a SourceSpec")
        self._source = spec.source
        self._all_splits = spec.splits
        self._splits: list[_OpenSplit] = []
        self._turn = 0  # index of the split to poll next
        self._completed_offsets: dict[CheckpointId, list[tuple[SplitReader[Any], Any]]] = {}
        assigner = getattr(spec.watermark_strategy, "timestamp_assigner", None)
        self._extract = None if assigner is None else bind(assigner, "extract_timestamp")
        self.finished = False  # every split was read to its end
        self.wake_at_ms: float | None = None  # after an empty poll: when to poll again

    def open(self) -> None:
        c = self.context
        self._state = c.operator_state.get_list_state(ListStateDescriptor(self.STATE_NAME))
        if c.restored_checkpoint is None:
            check_internal(self._all_splits is not None, f"source '{self.name}' was deployed without its splits")
            mine = [(s, None, False) for s in (self._all_splits or ())[c.subtask :: c.parallelism]]
        else:
            mine = list(self._state.get())
        where = SourceContext(self.name, c.subtask, c.parallelism, c.clock)
        for split, offset, done in mine:
            try:
                reader = None if done else self._source.create_reader(split, offset, where)
            except Exception as error:
                self.fail(f"create_reader() of split '{split.split_id}'", error)
            self._splits.append(_OpenSplit(split, offset, reader))
        self.finished = all(s.reader is None for s in self._splits)

    def poll(self, max_records: int, now_ms: float) -> int:
        """Read and emit one batch from the next split that has records. 0: nothing right now (see `wake_at_ms`), or
        `finished`."""
        self.wake_at_ms = None
        count = len(self._splits)
        for _ in range(count):
            current = self._splits[self._turn]
            self._turn = (self._turn + 1) % count
            reader = current.reader
            if reader is None:
                continue
            try:
                polled = reader.poll(max_records)
                if polled is None:
                    current.offset = reader.offset()
                    current.reader = None
                    reader.close()
                    continue
                wake = None if len(polled) else reader.wake_at_ms()
            except Exception as error:
                self.fail(f"reading split '{current.split.split_id}'", error)
            if len(polled):
                self.output(self._stamped(polled))
                return len(polled)
            wake = now_ms + _IDLE_POLL_MS if wake is None else wake
            self.wake_at_ms = wake if self.wake_at_ms is None else min(wake, self.wake_at_ms)
        self.finished = self.wake_at_ms is None
        return 0

    def _stamped(self, polled: RecordBatch | list[Any]) -> RecordBatch:
        batch = polled if isinstance(polled, RecordBatch) else RecordBatch(polled)
        if self._extract is None:
            return batch
        extract = self._extract
        rest = iter(batch.values)
        old = batch.timestamps if batch.timestamps is not None else repeat(-(2**63), len(batch.values))
        try:
            stamps = [int(extract(v, t)) for v, t in zip(rest, old, strict=True)]
        except Exception as error:
            self.fail_at("extract_timestamp()", error, batch.values, rest)
        return RecordBatch(batch.values, stamps)

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        entries, offsets = [], []
        for s in self._splits:
            try:
                offset = s.offset if s.reader is None else s.reader.offset()
            except Exception as error:
                self.fail(f"offset() of split '{s.split.split_id}'", error)
            entries.append((s.split, offset, s.reader is None))
            if s.reader is not None:
                offsets.append((s.reader, offset))
        self._state.update(entries)
        self._completed_offsets[checkpoint_id] = offsets

    def notify_complete(self, checkpoint_id: CheckpointId) -> None:
        for reader, offset in self._completed_offsets.pop(checkpoint_id, []):
            try:
                reader.notify_checkpoint_complete(checkpoint_id, offset)
            except Exception as error:
                self.fail("notify_checkpoint_complete() of the source", error)
        self._completed_offsets = {n: o for n, o in self._completed_offsets.items() if n > checkpoint_id}

    def notify_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._completed_offsets.pop(checkpoint_id, None)

    def close(self) -> None:
        for s in self._splits:
            if s.reader is not None:
                reader, s.reader = s.reader, None
                try:
                    reader.close()
                except Exception as error:
                    self.fail(f"close() of split '{s.split.split_id}'", error)
