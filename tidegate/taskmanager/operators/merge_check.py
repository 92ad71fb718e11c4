"""Does `merge` of an aggregate function combine? Tried on the first records, before a result depends on it.

PyFlink calls `merge` for sessions only, so programs come with placeholders. Those that raise, return nothing or look at
one of their arguments only are known when the graph is built (`windowed_stream`), and are not called. Others give
themselves away here: what they make of the accumulators of two records is that of one of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.common.errors import ConfigurationError

_MAX_TRIALS = 100  # pairs of records after which an aggregate that tells nothing is left alone


class MergeCheck:
    """`on_records` until `done`. Nothing is concluded from records that do not change the result of the other one."""

    def __init__(
        self,
        name: str,
        first: Callable[[Any], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
        merge: Callable[[Any, Any], Any],
    ) -> None:
        self._name = name
        self._first, self._add, self._result, self._merge = first, add, result, merge
        self._before: tuple[Any, ...] = ()  # the record before, if there is one
        self._trials = 0
        self.done = False

    def on_records(self, values: list[Any]) -> None:
        """Raises ConfigurationError."""
        for value in values:
            if self.done:
                return
            if self._before:
                self._try(self._before[0], value)
            self._before = (value,)

    def _try(self, a: Any, b: Any) -> None:
        first, result = self._first, self._result
        self._trials += 1
        self.done = self._trials == _MAX_TRIALS
        try:
            alone = result(first(a)), result(first(b))
            added = result(self._add(first(a), b))
            if added in alone:
                return
            self.done = True
            merged = result(self._merge(first(a), first(b)))
            wrong = merged in alone
        except Exception:  # the window will say so, with its record; or results that cannot be compared
            self.done = True
            return
        if wrong:
            raise ConfigurationError(
                f"merge() of {self._name} does not combine its two accumulators: for the records {a!r} and {b!r} it "
                f"gives {merged!r}, the result of one of them, where adding both gives {added!r}. Sliding windows "
                "merge the partial results of their slices: implement merge(), or let it raise NotImplementedError: "
                "then every window is aggregated on its own"
            )
