"""Which calls of a storage have begun in this process and not returned: what hangs raises no error, so somebody else
has to see it and tell. `files.storage_errors` notes every call; whoever has a thread to spare asks `overdue` now and
then."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

WARN_AFTER_S = 5.0


@dataclass(eq=False)
class _Call:
    what: str
    thread: int
    since: float
    warn_at: float


class _ThisThread(threading.local):
    owner = ""


_calls: dict[int, _Call] = {}  # by the identity of the call; each is put and taken by the thread that makes it
_this_thread = _ThisThread()


@contextlib.contextmanager
def on_behalf_of(owner: str) -> Iterator[None]:
    """What this thread asks of a storage meanwhile is for `owner`, as people know it."""
    before, _this_thread.owner = _this_thread.owner, owner
    try:
        yield
    finally:
        _this_thread.owner = before


@contextlib.contextmanager
def noted(what: str) -> Iterator[None]:
    """`what`: "read s3://bucket/file"."""
    owner = _this_thread.owner
    now = time.monotonic()
    call = _Call(f"{owner}: {what}" if owner else what, threading.get_ident(), now, now + WARN_AFTER_S)
    _calls[id(call)] = call
    try:
        yield
    finally:
        del _calls[id(call)]


def overdue(thread: int | None = None) -> list[str]:
    """A sentence for each call that has not returned for WARN_AFTER_S, and again at doubling intervals. A sentence is
    given out once, so one should ask for each call. `thread`: only calls of the thread with this identity."""
    now = time.monotonic()
    found = []
    for call in list(_calls.values()):
        if now >= call.warn_at and thread in (None, call.thread):
            call.warn_at = now + max(WARN_AFTER_S, now - call.since)
            found.append(f"{call.what}: the storage has not answered for {now - call.since:.0f} s")
    return found


@contextlib.contextmanager
def told_of_hanging(log: logging.Logger, about: str) -> Iterator[None]:
    """Meanwhile `log` is warned of what this thread waits for. `about`: who waits, for people."""
    waiting = threading.get_ident()
    over = threading.Event()

    def look() -> None:
        while not over.wait(WARN_AFTER_S / 5):
            for text in overdue(waiting):
                log.warning("%s waits: %s", about, text)

    threading.Thread(target=look, name="tidegate-storage-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()
