"""The head of a source chain: reads its splits in turn, a batch at a time, and remembers where it is."""

from __future__ import annotations

import pickle
from itertools import repeat
from typing import Any, NamedTuple

from tidegate.common.errors import InternalError, check_internal
from tidegate.common.ids import CheckpointId
from tidegate.common.watermark_strategy import AlignmentGroup
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.connectors import Boundedness, SourceContext, SourceSplit, SplitReader
from tidegate.contracts.state import ListStateDescriptor
from tidegate.graph.operator_specs import SourceSpec
from tidegate.network.elements import MAX_WATERMARK
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import Operator, bind
from tidegate.taskmanager.operators.batch_mode import ReadsInOrder, RemembersBatches
from tidegate.taskmanager.operators.timestamps import whole_timestamps
from tidegate.taskmanager.runtime_context import OperatorRuntimeContext
from tidegate.taskmanager.watermark_generation import Quiet, WatermarkProducer, combined

_IDLE_POLL_MS = 10.0  # when a reader does not say when to ask again
_HELD_POLL_MS = 1000.0  # when a split waits for other sources


class _OpenSplit:
    """A split being read. `reader` is None once it is finished."""

    def __init__(
        self, split: SourceSplit, offset: Any, reader: SplitReader[Any] | None, time: WatermarkProducer
    ) -> None:
        self.split = split
        self.offset = offset  # final offset when finished
        self.reader = reader
        self.time = time
        self.asked = False  # it was connected, and had nothing


class SourceFigures(NamedTuple):
    progress: float | None  # from 0 to 1; None: unbounded, or there is no telling
    pending: int | None  # records that wait outside; None: there is no telling


class SourceMemo(NamedTuple):
    """What a source that is made anew for every micro-batch has to know of the one before. No part of snapshots."""

    turn: int = 0  # the split to poll next, by its place in the list
    readers: dict[str, Any] = {}  # split id -> `SplitReader.memo`
    quiet: dict[str, Quiet] = {}  # split id -> of its watermarks
    idle: bool = False  # what was sent on last


def _asked(reader: SplitReader[Any]) -> tuple[float | None, int | None]:
    try:
        share, pending = reader.progress(), reader.pending_records()
    except Exception:  # only figures to look at: a reader that has none now may have them later
        return None, None
    return None if share is None else min(1.0, max(0.0, share)), pending


class SourceOperator(Operator, ReadsInOrder, RemembersBatches):
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
        self._polled: _OpenSplit | None = None  # the one that had records last; they may be `left`
        self._completed_offsets: dict[CheckpointId, list[tuple[SplitReader[Any], Any]]] = {}
        self._strategy = spec.watermark_strategy
        self.alignment: AlignmentGroup | None = getattr(spec.watermark_strategy, "alignment", None)
        self._limit: int | None = None  # splits with a higher watermark wait for the other sources of the group
        self._idle = False  # what was sent on last
        assigner = getattr(spec.watermark_strategy, "timestamp_assigner", None)
        self._extract = None if assigner is None else bind(assigner, "extract_timestamp")
        self._in_order = bool(getattr(spec.source, "reads_in_turn", False))  # a split to its end before the next one
        self._grows = getattr(spec.source, "discovery_interval_ms", None) is not None  # splits come while the job runs
        self._complete = not self._grows  # no more will come
        self._messages = 0  # with splits, so far
        self.restored_names: list[str] | None = None  # of a source that grows: what its restored state has
        self.finished = False  # every split was read to its end, and no more will come
        self.wake_at_ms: float | None = None  # after an empty poll: when to poll again
        self.counts_bytes = False
        self.bytes_read = 0  # estimated, while `counts_bytes` is True: it costs a microsecond or two for each poll
        self._resumed = SourceMemo()  # what this subtask has left in the micro-batch before

    def open(self) -> None:
        c = self.context
        self._state = c.operator_state.get_list_state(ListStateDescriptor(self.STATE_NAME))
        if c.restored_checkpoint is None:
            check_internal(self._all_splits is not None, f"source '{self.name}' was deployed without its splits")
            mine: list[Any] = [(s, None, False, None) for s in (self._all_splits or ())[c.subtask :: c.parallelism]]
        else:
            mine = list(self._state.get())
        self._place = SourceContext(self.name, c.subtask, c.parallelism, c.clock)
        self._place.runtime_context = OperatorRuntimeContext(c)
        self._place.memos = self._resumed.readers
        self._place.take = self.limit.take
        self._turn = self._resumed.turn
        self._idle = self._resumed.idle
        post = c.post
        if post is not None:
            self._place.wake = lambda: post(self._look_again)
        if self._grows and c.restored_checkpoint is not None:
            mine = self._still_to_read(mine)
        for split, offset, done, progress in mine:
            self._add_split(split, offset, done, progress)
        self.finished = self._complete and all(s.reader is None for s in self._splits)

    def _still_to_read(self, restored: list[Any]) -> list[Any]:
        """Of a source that grows. What is known of the others is with the enumerator, which is told of all."""
        entries = [
            (split, offset, done, entry[3])
            for entry in restored
            for split, offset, done in self._source.restored_splits(*entry[:3])
        ]
        self.restored_names = [name for split, *_ in entries for name in split.names]
        return [entry for entry in entries if not entry[2]]

    def _add_split(self, split: SourceSplit, offset: Any, done: bool, progress: Any) -> None:
        time = WatermarkProducer(self._strategy, self.context.clock.now_ms())
        if progress is not None:
            time.restore(progress)
        time.resume_quiet(self._resumed.quiet.get(split.split_id))
        try:
            reader = None if done else self._source.create_reader(split, offset, self._place)
        except Exception as error:
            self.fail(f"create_reader() of split '{split.split_id}'", error)
        self._splits.append(_OpenSplit(split, offset, reader, time))

    def take_splits(self, number: int, payloads: list[bytes], complete: bool) -> None:
        """Message `number` with splits that were discovered."""
        if number <= self._messages:
            return  # a repetition
        check_internal(self._grows, f"source '{self.name}' was sent splits, although it discovers none")
        check_internal(number == self._messages + 1, f"source '{self.name}' has missed splits that were sent to it")
        self._messages = number
        for payload in payloads:
            try:
                split = pickle.loads(payload)
            except Exception as error:
                self.fail("unpickling a split that was sent to it", error)
            self._add_split(split, None, False, None)
        self._complete = complete
        self._look_again()

    def _look_again(self) -> None:
        self.wake_at_ms = None

    def poll(self, max_records: int, now_ms: float) -> int:
        """Read and emit one batch from the next split that has records. 0: nothing right now (see `wake_at_ms`), or
        `finished`. When the time is up the last of the records may be `left`: `process` goes on with them, before the
        next poll and before a snapshot, since the offset is behind them."""
        self.wake_at_ms = None
        for _ in range(len(self._splits)):
            count = len(self._splits)
            index = self._turn % count
            current = self._splits[index]
            reader = current.reader
            if reader is None or not self._in_order:
                self._turn = (index + 1) % count
            if reader is None:
                continue
            if self._limit is not None and current.time.reached > self._limit:
                current.time.keep_active(now_ms)
                later = now_ms + _HELD_POLL_MS  # a new limit wakes it up before
                self.wake_at_ms = later if self.wake_at_ms is None else min(later, self.wake_at_ms)
                continue
            try:
                polled = reader.poll(max_records)
                if polled is None:
                    current.offset = reader.offset()
                    current.reader = None
                    reader.close()
                    self._turn = index + 1
                    if self._grows:  # the enumerator knows of it
                        del self._splits[index]
                        self._turn = index
                    continue
                wake = None
                if not len(polled):
                    wake = reader.wake_at_ms()
                    current.asked = not reader.settling
            except Exception as error:
                self.fail(f"reading split '{current.split.split_id}'", error)
            if len(polled):
                self.wake_at_ms = None  # an empty split before it says nothing of this one, which may have more
                self._polled = current
                self._emit(self._stamped(polled), current, now_ms)
                return len(polled)
            wake = now_ms + _IDLE_POLL_MS if wake is None else wake
            self.wake_at_ms = wake if self.wake_at_ms is None else min(wake, self.wake_at_ms)
            if self._in_order:
                return 0
        self.finished = self._complete and self.wake_at_ms is None
        return 0

    def process(self, batch: RecordBatch) -> None:
        """What was left of the records that were polled last."""
        if self._polled is None:
            raise InternalError(f"source '{self.name}' is given records that it has not polled")
        self._emit(self._stamped(batch), self._polled, self.context.clock.now_ms())

    @property
    def settling(self) -> bool:
        """A reader is still about to connect."""
        return any(s.reader is not None and s.reader.settling for s in self._splits)

    def resume(self, memo: SourceMemo | None) -> None:
        self._resumed = memo or self._resumed

    def end_of_batch(self) -> None:
        for split in self._splits:
            if split.asked:
                split.time.looked()

    def memo(self) -> SourceMemo | None:
        """Without it each batch would begin with the same split, and none would ever be idle."""
        if self.finished:
            return None
        read = [s for s in self._splits if s.reader is not None]
        memos = {s.split.split_id: s.reader.memo() for s in read if s.reader is not None}
        now = self.context.clock.now_ms()
        return SourceMemo(
            self._turn,
            {name: memo for name, memo in memos.items() if memo is not None},
            {s.split.split_id: s.time.quiet(now) for s in read},
            self._idle,
        )

    def figures(self) -> SourceFigures:
        """How far it is, as its readers know."""
        shares, pending = [], None
        for split in self._splits:
            share, waiting = (1.0, None) if split.reader is None else _asked(split.reader)
            shares.append(share)
            if waiting is not None:
                pending = waiting + (pending or 0)
        bounded = getattr(self._source, "boundedness", None) is Boundedness.BOUNDED
        known = [share for share in shares if share is not None]
        if not bounded or len(known) < len(shares):
            return SourceFigures(1.0 if bounded and self.finished else None, pending)
        return SourceFigures(sum(known) / len(known) if known else 1.0, pending)

    def hold_above(self, limit: int) -> None:
        """Splits with a higher watermark than this are not read."""
        if limit != self._limit:
            self._limit = limit
            self.wake_at_ms = None

    @property
    def alignment_watermark(self) -> int:
        """How far this source is, for the others of its group: at the end and when idle it holds nobody back."""
        return MAX_WATERMARK if self.finished or self._idle else self.current_watermark

    def drain(self) -> None:
        """Read no further. The snapshot still says where each split stands."""
        self.finished = True
        self.wake_at_ms = None

    def _emit(self, batch: RecordBatch, split: _OpenSplit, now_ms: float) -> None:
        if self.counts_bytes:
            self.bytes_read += batch.estimated_bytes()
        split.time.on_batch(batch.timestamps, now_ms)
        if self._idle:
            self._idle = False
            self.output_status(False)
        if not split.time.asks_about_records or batch.timestamps is None:
            self.output(batch)
            return
        start = 0
        rest = iter(batch.values)
        try:
            for i, value in enumerate(rest):
                if split.time.on_record(value, batch.timestamps[i]):
                    self.output(batch.slice(start, i + 1))
                    start = i + 1
                    self._emit_watermark(now_ms)
        except Exception as error:
            self.fail_at("on_event() of the watermark generator", error, batch.values, rest)
        if start < len(batch):
            self.output(batch.slice(start, len(batch)))

    # ------------------------------------------------------------ time
    @property
    def periodic(self) -> bool:
        return self._strategy is not None and WatermarkProducer(self._strategy, 0.0).produces

    def on_periodic(self, now_ms: float) -> None:
        for split in self._splits:
            if split.reader is not None:
                split.time.on_periodic()
        if not self.finished:
            self._emit_watermark(now_ms)

    def _emit_watermark(self, now_ms: float) -> None:
        """The minimum over the splits that are read and not idle."""
        read = [s.time for s in self._splits if s.reader is not None and not s.reader.idle]
        watermark, idle = combined(read, now_ms)
        if watermark is not None and watermark > self.current_watermark:
            self.process_watermark(watermark)
        if idle != self._idle:
            self._idle = idle
            self.output_status(idle)

    def announce_time(self) -> None:
        if self.context.restored_checkpoint is not None:
            self.output_status(self._idle)

    def read_in_order(self) -> None:
        self._in_order = True
        self._complete = True

    def announce_reached(self) -> None:
        for split in self._splits:
            split.time.on_periodic()
        reached = max((split.time.reached for split in self._splits), default=self.current_watermark)
        if reached > self.current_watermark:
            self.process_watermark(reached)

    def finish(self) -> None:
        if self._idle:
            self._idle = False
            self.output_status(False)
        self.process_watermark(MAX_WATERMARK)

    def _stamped(self, polled: RecordBatch | list[Any]) -> RecordBatch:
        batch = polled if isinstance(polled, RecordBatch) else RecordBatch(polled)
        if self._extract is None:
            return batch
        extract = self._extract
        taken, rest = self.limit.take(batch.values)
        old = batch.timestamps if batch.timestamps is not None else repeat(-(2**63), len(batch.values))
        try:
            stamps = [extract(v, t) for v, t in zip(rest, old, strict=False)]
        except Exception as error:
            self.fail_at("extract_timestamp()", error, taken, rest)
        batch = self.taken(batch, taken)
        if set(map(type, stamps)) != {int}:
            stamps = whole_timestamps(self, stamps, batch.values)
        return RecordBatch(batch.values, stamps)

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        entries, offsets = [], []
        for s in self._splits:
            try:
                offset = s.offset if s.reader is None else s.reader.offset()
            except Exception as error:
                self.fail(f"offset() of split '{s.split.split_id}'", error)
            entries.append((s.split, offset, s.reader is None, s.time.state()))
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
