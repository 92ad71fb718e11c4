"""Watermarks at their origin: per split of a source, or behind `assign_timestamps_and_watermarks`. No I/O.

For the usual strategies a batch costs one `max` over its timestamps; only a generator of the user's own is asked about
every record. What a generator has seen is part of the snapshot, so that a record that was late stays late after a
recovery.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tidegate.common.watermark_strategy import WatermarkKind, WatermarkStrategy
from tidegate.network.elements import MIN_WATERMARK


class Quiet(NamedTuple):
    """How quiet it is in a split, for its producer in the next micro-batch."""

    since: float | None  # when the time without records began; None: not in this batch
    idle: bool
    said: bool  # by the user's generator


class WatermarkProducer:
    """The watermark of one split or subtask."""

    def __init__(self, strategy: WatermarkStrategy | None, now_ms: float) -> None:
        kind = WatermarkKind.NONE if strategy is None else strategy.kind
        self._delay = None
        if strategy is not None and kind is WatermarkKind.BOUNDED_OUT_OF_ORDERNESS:
            self._delay = strategy.out_of_orderness_ms + 1
        self._generator = None
        if strategy is not None and kind is WatermarkKind.CUSTOM:
            self._generator = strategy.create_generator()
        self._idleness = None if strategy is None else strategy.idleness_ms
        self._active_at = now_ms  # when the last record came
        self._said_idle = False  # by the user's generator
        self._heard = False  # there was a record, or nobody may expect one
        self._looked = True  # time without records counts: somebody has looked for them
        self.max_timestamp: int | None = None
        self.watermark = MIN_WATERMARK

    @property
    def produces(self) -> bool:
        return self._delay is not None or self._generator is not None

    @property
    def asks_about_records(self) -> bool:
        return self._generator is not None

    def on_batch(self, timestamps: list[int] | None, now_ms: float) -> None:
        """Records passed. With a generator of the user's own, `on_record` is called for each of them as well."""
        self._active_at = now_ms
        self._heard = True
        self._said_idle = False
        if timestamps:
            highest = max(timestamps)
            if self.max_timestamp is None or highest > self.max_timestamp:
                self.max_timestamp = highest

    def on_record(self, value: Any, timestamp: int) -> bool:
        """True when the user's generator has emitted a (higher) watermark at this record."""
        before = self.watermark
        if self._generator is not None:
            self._generator.on_event(value, timestamp, self)
        return self.watermark > before

    def on_periodic(self) -> None:
        if self._generator is not None:
            self._generator.on_periodic_emit(self)
        elif self._delay is not None and self.max_timestamp is not None:
            self.watermark = max(self.watermark, self.max_timestamp - self._delay)

    def idle(self, now_ms: float) -> bool:
        if self._said_idle:
            return True
        return self._idleness is not None and self._looked and now_ms - self._active_at >= self._idleness

    @property
    def reached(self) -> int:
        """Where the watermark would be if it was made now; for a generator of the user's own, where it is."""
        if self._delay is None or self.max_timestamp is None:
            return self.watermark
        return max(self.watermark, self.max_timestamp - self._delay)

    def keep_active(self, now_ms: float) -> None:
        """Nothing comes only because it is not read: that is not idleness."""
        self._active_at = now_ms
        self._heard = True

    # ------------------------------------------------------------ micro-batches
    # The pause between two batches counts as time without records only if nothing had come in the whole batch before,
    # and nothing makes a split idle until the batch has looked whether something is there.
    def looked(self) -> None:
        """It was looked for records, and that there are none so far says something."""
        self._looked = True

    def quiet(self, now_ms: float) -> Quiet:
        """For `resume_quiet` of the producer in the next batch."""
        return Quiet(None if self._heard or not self._looked else self._active_at, self.idle(now_ms), self._said_idle)

    def resume_quiet(self, before: Quiet | None) -> None:
        """None: nothing is known of a batch before. Without this call time counts from the beginning on."""
        if before is not None:
            self._active_at = self._active_at if before.since is None else before.since
            self._looked, self._said_idle = before.idle, before.said

    # ------------------------------------------------------------ WatermarkOutput, for the user's generator
    def emit_watermark(self, timestamp: int) -> None:
        self.watermark = max(self.watermark, timestamp)

    def mark_idle(self) -> None:
        self._said_idle = True

    def mark_active(self) -> None:
        self._said_idle = False

    # ------------------------------------------------------------ snapshots
    def state(self) -> tuple[int, int | None]:
        return self.watermark, self.max_timestamp

    def restore(self, state: tuple[int, int | None]) -> None:
        self.watermark, self.max_timestamp = state


def combined(producers: list[WatermarkProducer], now_ms: float) -> tuple[int | None, bool]:
    """(the minimum over the active ones, whether all are idle). None when nothing is known yet."""
    if not producers:
        return None, True
    active = [p for p in producers if not p.idle(now_ms)]
    if not active:
        return None, True
    lowest = min(p.watermark for p in active)
    return (None if lowest == MIN_WATERMARK else lowest), False
