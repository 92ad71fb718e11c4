"""CompletableFuture: a result that comes later."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CompletableFuture(Generic[T]):
    """A result that comes later, on top of `concurrent.futures.Future` (given, or new). Safe to use from any thread.

    Whoever makes one fulfils it with `complete` or `complete_exceptionally`; the first call counts, later ones and
    those after `cancel` are ignored.
    """

    def __init__(self, future: concurrent.futures.Future[T] | None = None) -> None:
        self._future: concurrent.futures.Future[T] = concurrent.futures.Future() if future is None else future

    @staticmethod
    def completed(value: T) -> CompletableFuture[T]:
        future: CompletableFuture[T] = CompletableFuture()
        future.complete(value)
        return future

    @staticmethod
    def failed(error: BaseException) -> CompletableFuture[Any]:
        future: CompletableFuture[Any] = CompletableFuture()
        future.complete_exceptionally(error)
        return future

    def cancel(self) -> bool:
        """Give up waiting; whether it was in time. Does not stop the work behind it."""
        return self._future.cancel()

    def cancelled(self) -> bool:
        return self._future.cancelled()

    def done(self) -> bool:
        """Whether there is a result, an error or a cancellation."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, at most `timeout` seconds (TimeoutError then); raises the error if there is one."""
        return self._future.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like `result`, and give the error, or None when there is a result."""
        return self._future.exception(timeout)

    def add_done_callback(self, callback: Callable[[CompletableFuture[T]], object]) -> None:
        """Call `callback(self)` when it is done, on the thread that completes it; at once when it is done already."""
        self._future.add_done_callback(lambda _: callback(self))

    def complete(self, value: T) -> bool:
        """Set the result; whether it was the first."""
        try:
            self._future.set_result(value)
        except concurrent.futures.InvalidStateError:
            return False
        return True

    def complete_exceptionally(self, error: BaseException) -> bool:
        """Set the error; whether it was the first."""
        try:
            self._future.set_exception(error)
        except concurrent.futures.InvalidStateError:
            return False
        return True

    def __repr__(self) -> str:
        if not self.done():
            return "CompletableFuture(pending)"
        if self.cancelled():
            return "CompletableFuture(cancelled)"
        error = self._future.exception(0)
        return f"CompletableFuture({'failed: ' + repr(error) if error else 'completed'})"
