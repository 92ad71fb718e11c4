"""Timers and the current time, as a process function sees them."""

from __future__ import annotations

import abc


class TimerService(abc.ABC):
    """Reads both clocks and, on a keyed stream, sets timers for the current key.

    A timer is identified by key, domain and timestamp: setting it twice fires it once. Timers are part of every
    checkpoint.
    """

    @abc.abstractmethod
    def current_processing_time(self) -> int:
        """Wall clock of the worker, ms since the epoch."""

    @abc.abstractmethod
    def current_watermark(self) -> int:
        """The current event-time watermark, ms since the epoch (the smallest 64-bit number before the first one)."""

    @abc.abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` for the current key once the wall clock has reached `timestamp`."""

    @abc.abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` for the current key once the watermark has reached `timestamp`."""

    @abc.abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Forget the timer; nothing happens when there is none."""

    @abc.abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Forget the timer; nothing happens when there is none."""
