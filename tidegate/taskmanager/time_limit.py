"""How long one piece of work may take, whatever user code does.

A slice of records is a tight loop over a list, sized by what records have cost so far. When they become slow in the
middle (a service that begins to answer in 50 ms), the loop has to end after the record that is being processed: the
rest would keep barriers, watermarks and messages waiting for as many calls as are left.

To ask the clock before each record would cost more than many functions do. So somebody else looks at the clock: a
thread of the slot's host, or a test. It *cuts the list short* that the loop runs over, just behind the record that is
being processed. The loop finds the end of its list; what it has not taken is still in the batch and waits. That costs
the loop nothing per record, and one copy of the list (pointers only) per slice.

`_cut` has to read the position of the loop and to cut the list in one go, since the loop runs on another thread. It is
one expression whose parts are all written in C: the interpreter changes threads between instructions of Python code
only, and there is none in between, not even a finalizer, since nothing is collected meanwhile. (An interpreter without
a global lock would need something else.)
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from operator import length_hint, sub
from typing import Any

LIMIT_MS = 8.0


class TimeLimit:
    """One per slot. The slot calls `begin` before each piece of work and `end` after the last, operators call `take`;
    `look` may be called from any thread, any time.

    A piece of work that is cut has still processed at least one record: whoever is cut again and again comes to an
    end."""

    def __init__(self) -> None:
        self.watched = False
        """Whether somebody looks. While False, nothing is ever cut, and `take` copies nothing."""
        self.expired = False
        """The piece of work that is being done has taken too long: begin nothing new in it."""
        self.began_ms: float | None = None  # the piece of work that is being done; None: there is none
        self._loop: tuple[list[Any], Iterator[Any]] | None = None  # that runs; an exhausted one does no harm

    def begin(self, now_ms: float) -> None:
        self.began_ms = now_ms
        self.expired = False

    def end(self) -> None:
        self.began_ms = None
        self.expired = False
        self._loop = None  # large records are not to be kept

    def take(self, values: list[Any]) -> tuple[list[Any], Iterator[Any]]:
        """A list to loop over, and the iterator to do it with. When the loop has come to its end, the list has the
        records that were taken: all, or those up to the cut."""
        if not self.watched:
            return values, iter(values)
        own = values.copy()
        rest = iter(own)
        self._loop = own, rest
        return own, rest

    def look(self, now_ms: float) -> None:
        """Ends the piece of work that is being done if its time is up."""
        began = self.began_ms
        if began is not None and now_ms - began >= LIMIT_MS and self.watched:
            self.expire()

    def expire(self) -> None:
        self.expired = True
        loop = self._loop
        if loop is not None:
            _cut(*loop)


def _cut(values: list[Any], rest: Iterator[Any]) -> None:
    """Delete what `rest = iter(values)` has not taken, but never the first. Nothing, when it is exhausted."""
    collects = gc.isenabled()
    gc.disable()
    try:
        taken = map(sub, map(len, (values,)), map(length_hint, (rest,)))
        deque(map(values.__delitem__, map(slice, map(max, (1,), taken), (None,))), maxlen=0)
    finally:
        if collects:
            gc.enable()
