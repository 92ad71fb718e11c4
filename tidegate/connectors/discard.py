"""A sink that throws its records away, for measuring and for tests."""

from __future__ import annotations

from typing import Any

from tidegate.contracts.connectors import Sink, SinkContext, SinkWriter


class DiscardingSink(Sink[Any, None]):
    """Takes records and does nothing with them: for jobs that run for their side effects, and for measuring."""

    def create_writer(self, context: SinkContext) -> DiscardingWriter:
        return DiscardingWriter()

    def __repr__(self) -> str:
        return "DiscardingSink()"


class DiscardingWriter(SinkWriter[Any, None]):
    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        """Does nothing with the records."""
