"""What a slot needs from the outside. Two hosts give it: the worker on Spark, and the simulator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tidegate.network.transport import DataTransport
from tidegate.protocol.messages import Message
from tidegate.taskmanager.clock import Clock
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.services import Done


class SlotHost(Protocol):
    @property
    def clock(self) -> Clock: ...

    @property
    def transport(self) -> DataTransport: ...

    def send_to_master(self, message: Message) -> None: ...

    def run_async(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work` on a helper thread; then call `done(result, error)` on the slot's thread."""

    def run_coroutine(self, call: Callable[[], Awaitable[Any]], done: Done) -> Callable[[], None]:
        """Await `call()` elsewhere, with as many others as there are; then call `done(result, error)` on the slot's
        thread. Returns what cancels it: `done` may still be called then, or not."""

    def post(self, mail: Callable[[], None]) -> None:
        """Call it on the slot's thread, soon. From any thread."""

    def operator_made(self, operator: Operator) -> None:
        """An operator was made and is about to be wired to the others: faults may be put in front of it."""

    def trace(self, text: str) -> None:
        """Print a line of the trace."""
