"""The results of a running job, as `execute_and_collect` gives them."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

from tidegate.common.completable_future import CompletableFuture


class CloseableIterator(Iterator[Any]):
    """Iterates over the results as they come. Ends when the job has finished and raises when it failed.

    Close it (or use it in a `with` block) when not all results are wanted: that cancels the job. So does an iterator
    that nobody holds any more, and Ctrl-C in the code that reads from it.
    """

    def __init__(self, results: Iterator[Any], cancel: Callable[[], CompletableFuture[None]]) -> None:
        """`cancel` asks the job to end, and gives back when it has; called only when the results were not taken to
        the end."""
        self._results = results
        self._cancel = cancel
        # The frame that took the latest result: its id, since the frame itself would be kept alive by this, and its
        # code, since ids are given again.
        self._reader: tuple[int, CodeType | None] = (0, None)
        self._dropped = weakref.finalize(self, _cancel_in_background, cancel)
        self._dropped.atexit = False  # jobs end with the program in any case
        _open.add(self)

    def __next__(self) -> Any:
        if not self._dropped.alive:
            raise StopIteration
        reader = sys._getframe(1)
        self._reader = id(reader), reader.f_code
        try:
            return next(self._results)
        except Exception:  # also StopIteration
            self._dropped.detach()
            raise
        except BaseException:  # Ctrl-C
            self.close()
            raise

    def next(self) -> Any:
        """The next result; StopIteration at the end."""
        return next(self)

    def close(self) -> None:
        """Cancel the job if it still runs, and wait until it has ended. May be called twice."""
        if self._dropped.detach() is not None:
            self._cancel().result()

    def _interrupted(self, frame: FrameType) -> None:
        if self._reader == (id(frame), frame.f_code) and self._dropped.detach() is not None:
            self._cancel()

    def __enter__(self) -> CloseableIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


_open: weakref.WeakSet[CloseableIterator] = weakref.WeakSet()


def cancel_interrupted(frame: FrameType | None) -> None:
    """Ctrl-C has interrupted this frame: whatever it or its callers were reading results from is cancelled, also when
    they are busy with a result right now rather than waiting for the next one."""
    while frame is not None:
        for iterator in list(_open):
            iterator._interrupted(frame)
        frame = frame.f_back


def _cancel_in_background(cancel: Callable[[], object]) -> None:
    """An iterator was dropped. That may be noticed on any thread, in the middle of anything: nothing may block here."""
    with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
        threading.Thread(target=cancel, name="tidegate-cancel", daemon=True).start()
