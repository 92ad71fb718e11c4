"""Marks the stream whose records `execute_and_collect` sends back to the program."""

from __future__ import annotations

from typing import Any, NoReturn

from tidegate.common.errors import InternalError
from tidegate.contracts.connectors import Sink, SinkContext


class CollectSink(Sink[Any, None]):
    """Holds only a name: the runtime knows this class and runs an operator of its own in its place."""

    def __init__(self, name: str = "Collect") -> None:
        self.name = name

    def create_writer(self, context: SinkContext) -> NoReturn:
        raise InternalError("CollectSink is run by the collect operator of the task manager, not by a writer")

    def __repr__(self) -> str:
        return f"CollectSink({self.name!r})"
