"""How frames get from slot to slot. The runtime is handed one; the simulator has its own."""

from __future__ import annotations

from typing import Protocol

from tidegate.common.errors import TidegateError
from tidegate.common.ids import SlotIndex
from tidegate.network.wire import Frame


class ConnectionLostError(TidegateError):
    """The connection to a peer broke or lost messages. Follows from another failure more often than not."""


class DataTransport(Protocol):
    """Delivers frames between slots, in order per pair of slots, or raises ConnectionLostError. Never blocks."""

    def send(self, to: SlotIndex, frame: Frame) -> None: ...

    def receive(self) -> list[Frame]:
        """All frames that have arrived, [] when there are none (bounded: at most a few hundred per call)."""
