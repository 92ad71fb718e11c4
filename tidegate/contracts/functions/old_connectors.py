"""The old style of sources and sinks, which are functions. `contracts.connectors` has the new style."""

from __future__ import annotations

import abc
from typing import Any

from tidegate.contracts.functions.base import Function


class SourceFunction(Function):
    """The old style of source, which pushes records. New code implements the replayable
    `datastream.connectors.base.Source`."""

    class SourceContext(abc.ABC):
        @abc.abstractmethod
        def collect(self, value: Any) -> None: ...

        @abc.abstractmethod
        def collect_with_timestamp(self, value: Any, timestamp: int) -> None: ...

    @abc.abstractmethod
    def run(self, ctx: SourceFunction.SourceContext) -> None: ...

    @abc.abstractmethod
    def cancel(self) -> None: ...


class SinkFunction(Function):
    """The old style of sink: one call per record, no commit. After a recovery a record may be written again."""

    class Context(abc.ABC):
        @abc.abstractmethod
        def current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def current_watermark(self) -> int: ...

        @abc.abstractmethod
        def timestamp(self) -> int | None:
            """Event time of the record, None when it has none."""

    @abc.abstractmethod
    def invoke(self, value: Any, context: SinkFunction.Context) -> None: ...
