"""The results of `execute_and_collect` that wait on the driver for whoever reads them."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MOST_HELD = 64 << 20
"""Bytes of pickled results from which on no batch is begun until some have been read. So at most that much waits, and
the results of one batch more."""


class HeldResults:
    """`put` and `end` from the job's thread, `taken` from one that reads; `room` from any. `wake` tells the job that
    there is room again."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._held = 0

    @property
    def room(self) -> bool:
        return self._held < MOST_HELD

    def put(self, payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            with self._lock:
                self._held += len(payload)
            self._chunks.put(payload)

    def end(self) -> None:
        """Nothing comes any more."""
        self._chunks.put(None)

    def taken(self) -> Iterator[Any]:
        """All of them, to the end. What waits is counted until its records have been read."""
        while (chunk := self._chunks.get()) is not None:
            yield from pickle.loads(chunk)
            with self._lock:
                before, self._held = self._held, self._held - len(chunk)
            if before >= MOST_HELD > self._held:
                self._wake()
