"""The results of a running job, as `execute_and_collect` gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any


class CloseableIterator(Iterator[Any]):
    """Iterates over the results as they come. Ends when the job has finished and raises when it failed.

    Close it (or use it in a `with` block) when not all results are wanted: that cancels the job.
    """

    def __init__(self, results: Iterator[Any], cancel: Callable[[], None]) -> None:
        self._results = results
        self._cancel = cancel  # called at most once, and only when the results were not taken to the end
        self._open = True

    def __next__(self) -> Any:
        if not self._open:
            raise StopIteration
        try:
            return next(self._results)
        except Exception:  # also StopIteration
            self._open = False
            raise

    def next(self) -> Any:
        """The next result; StopIteration at the end."""
        return next(self)

    def close(self) -> None:
        """Cancel the job if it still runs. May be called twice."""
        if self._open:
            self._open = False
            self._cancel()

    def __enter__(self) -> CloseableIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
