"""The watermark of a task: the minimum over its input channels. Pure.

An idle channel is left out. A channel that becomes active again counts once it has caught up with what was sent on
already: the output never goes back. Only the end of time waits for idle channels too: one that wakes up again may set
timers, and no watermark would come any more to fire them. Until they are at their end, time stands one before its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK


@dataclass
class ChannelProgress:
    watermark: int = MIN_WATERMARK
    idle: bool = False
    caught_up: bool = True  # counts towards the minimum


@dataclass(frozen=True)
class Progress:
    """What changed for the task. None: unchanged."""

    watermark: int | None = None
    idle: bool | None = None


class WatermarkValve:
    """`on_watermark` and `on_status` are the mutators; each says what to send on."""

    def __init__(self, channels: int) -> None:
        self.channels = [ChannelProgress() for _ in range(channels)]
        self.watermark = MIN_WATERMARK  # the last one that was sent on
        self.idle = False  # all channels are idle

    def on_watermark(self, channel: int, timestamp: int) -> Progress:
        c = self.channels[channel]
        if c.idle or timestamp <= c.watermark:
            return Progress()  # an idle channel says "active" before it says anything else
        c.watermark = timestamp
        if timestamp >= self.watermark:
            c.caught_up = True
        return Progress(watermark=self._advance())

    def on_status(self, channel: int, idle: bool) -> Progress:
        c = self.channels[channel]
        if c.idle == idle:
            return Progress()
        c.idle = idle
        if not idle:
            c.caught_up = c.watermark >= self.watermark
            if self.idle:
                self.idle = False
                return Progress(idle=False)
            return Progress()
        if all(c.idle for c in self.channels):
            # Whoever comes last may still hold the maximum back: let it go before the silence.
            self.idle = True
            return Progress(watermark=self._advance_to(max(c.watermark for c in self.channels)), idle=True)
        return Progress(watermark=self._advance())

    def _advance(self) -> int | None:
        counted = [c.watermark for c in self.channels if not c.idle and c.caught_up]
        return self._advance_to(min(counted)) if counted else None

    def _advance_to(self, timestamp: int) -> int | None:
        if timestamp == MAX_WATERMARK and any(c.watermark < MAX_WATERMARK for c in self.channels):
            timestamp -= 1
        if timestamp <= self.watermark:
            return None
        self.watermark = timestamp
        return timestamp
