"""Functions that are called with the contents of a window."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Generic, TypeVar

from tidegate.contracts.functions.base import Function
from tidegate.contracts.functions.contexts import KeyedStateStore

IN = TypeVar("IN")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W")
CW = TypeVar("CW")  # the window of a nested Context class


class WindowFunction(Function, Generic[IN, OUT, KEY, W]):
    @abc.abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]: ...


class AllWindowFunction(Function, Generic[IN, OUT, W]):
    @abc.abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT]: ...


class _WindowContext(abc.ABC, Generic[W]):
    @abc.abstractmethod
    def window(self) -> W: ...

    @abc.abstractmethod
    def window_state(self) -> KeyedStateStore:
        """State of this key and this window; clear it in `clear`."""

    @abc.abstractmethod
    def global_state(self) -> KeyedStateStore:
        """State of this key over all windows."""


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY, W]):
    class Context(_WindowContext[CW]):
        @abc.abstractmethod
        def current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def current_watermark(self) -> int: ...

    @abc.abstractmethod
    def process(self, key: KEY, context: ProcessWindowFunction.Context[W], elements: Iterable[IN]) -> Iterable[OUT]: ...

    def clear(self, context: ProcessWindowFunction.Context[W]) -> None:
        """Called when the window is dropped: delete what is in `context.window_state()`."""


class ProcessAllWindowFunction(Function, Generic[IN, OUT, W]):
    class Context(_WindowContext[CW]):
        """Valid during the call only."""

    @abc.abstractmethod
    def process(self, context: ProcessAllWindowFunction.Context[W], elements: Iterable[IN]) -> Iterable[OUT]: ...

    def clear(self, context: ProcessAllWindowFunction.Context[W]) -> None:
        """Called when the window is dropped: delete what is in `context.window_state()`."""
