"""`assign_timestamps_and_watermarks`: gives records event timestamps and makes the watermarks of a stream anew."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import CheckpointId
from tidegate.common.value_conversion import shorten
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.state import ListStateDescriptor
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import Operator, last_taken
from tidegate.taskmanager.operators.batch_mode import RemembersBatches
from tidegate.taskmanager.watermark_generation import Quiet, WatermarkProducer, combined


def whole_timestamps(operator: Operator, stamps: list[Any], values: list[Any]) -> list[int]:
    """What a timestamp assigner returned for the records, as ints."""
    rest = iter(values)
    try:
        return [int(stamp) for stamp, _ in zip(stamps, rest, strict=True)]
    except (TypeError, ValueError, OverflowError):
        stamp = stamps[last_taken(values, rest)]
        what = ConfigurationError(
            f"the timestamp assigner returned {shorten(stamp)}; it has to return the record's event time as a number "
            "of milliseconds since the epoch"
        )
        operator.fail_at("extract_timestamp()", what, values, rest)


class AssignTimestampsOperator(Operator, RemembersBatches):
    """Watermarks of the input are dropped, except the one that ends all time."""

    STATE_NAME = "tidegate.timestamps"

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        strategy = context.node.spec.user_function
        self._strategy = strategy
        self._producer = WatermarkProducer(strategy, context.clock.now_ms())
        self._extract = strategy.timestamp_function
        self._idle = False

    def resume(self, memo: tuple[Quiet, bool] | None) -> None:
        if memo is not None:
            quiet, self._idle = memo
            self._producer.resume_quiet(quiet)

    def end_of_batch(self) -> None:
        self._producer.looked()

    def memo(self) -> tuple[Quiet, bool]:
        return self._producer.quiet(self.context.clock.now_ms()), self._idle

    def open(self) -> None:
        c = self.context
        self._state = c.operator_state.get_union_list_state(ListStateDescriptor(self.STATE_NAME))
        restored = {subtask: progress for subtask, *progress in self._state.get()}
        if len(restored) == c.parallelism and c.subtask in restored:
            self._restore(restored[c.subtask])
        elif restored:  # rescaled: the slowest of all counts
            self._restore(min(restored.values(), key=lambda progress: progress[0][0]))

    def _restore(self, progress: list[Any]) -> None:
        self._producer.restore(progress[0])
        self.current_watermark = progress[1] if len(progress) > 1 else MIN_WATERMARK

    def process(self, batch: RecordBatch) -> None:
        now = self.context.clock.now_ms()
        stamps = batch.timestamps
        if self._extract is not None:
            extract = self._extract
            taken, rest = self.limit.take(batch.values)
            old = stamps if stamps is not None else repeat(MIN_WATERMARK, len(batch.values))
            try:
                stamps = [extract(v, t) for v, t in zip(rest, old, strict=False)]
            except Exception as error:
                self.fail_at("extract_timestamp()", error, taken, rest)
            batch = self.taken(batch, taken)
            if set(map(type, stamps)) != {int}:
                stamps = whole_timestamps(self, stamps, batch.values)
        stamped = RecordBatch(batch.values, stamps)
        self._producer.on_batch(stamps, now)
        self._say_active()
        if not self._producer.asks_about_records or stamps is None:
            self.output(stamped)
            return
        start = 0
        rest = iter(batch.values)
        try:
            for i, value in enumerate(rest):
                if self._producer.on_record(value, stamps[i]):
                    self.output(stamped.slice(start, i + 1))
                    start = i + 1
                    self._emit_watermark(now)
        except Exception as error:
            self.fail_at("on_event() of the watermark generator", error, batch.values, rest)
        if start < len(stamped):
            self.output(stamped.slice(start, len(stamped)))

    def _say_active(self) -> None:
        if self._idle:
            self._idle = False
            self.output_status(False)

    @property
    def periodic(self) -> bool:
        return self._producer.produces

    def on_periodic(self, now_ms: float) -> None:
        self._producer.on_periodic()
        if self.current_watermark < MAX_WATERMARK:
            self._emit_watermark(now_ms)

    def announce_time(self) -> None:
        if self.context.restored_checkpoint is not None:
            self.output_status(self._idle)
            if self.current_watermark > MIN_WATERMARK:
                self.output_watermark(self.current_watermark)

    def _emit_watermark(self, now_ms: float) -> None:
        watermark, idle = combined([self._producer], now_ms)
        if watermark is not None and watermark > self.current_watermark:
            self.current_watermark = watermark
            self.output_watermark(watermark)
        if idle != self._idle:
            self._idle = idle
            self.output_status(idle)

    def process_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_WATERMARK:
            self._say_active()  # nobody listens to the watermarks of an idle channel
            self.current_watermark = timestamp
            self.output_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Idleness is decided here, not upstream."""

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        if not self.context.settings.exactly_once:  # it may be ahead of the cut, as the time of a task: `task_time`
            self._state.clear()
            return
        # The end of time is the source's to tell again, or, after a drain, not to tell.
        said = self.current_watermark if self.current_watermark < MAX_WATERMARK else MIN_WATERMARK
        self._state.update([(self.context.subtask, self._producer.state(), said)])
