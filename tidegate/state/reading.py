"""Keyed state read from outside of its operator: by somebody who looks at a running job, or at a checkpoint of it.

Reading changes nothing: no time of access, no cache, no clean-up of what has expired. What is read is bounded, so that
a look at a list of a million elements is an error for whoever looks and not a pause of the job.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from tidegate.state.figures import StateFigures
from tidegate.state.read_budget import ReadBudget
from tidegate.storage.handles import KeyedStateInfo

WINDOW_CONTENTS = "window-contents"
"""The name under which the contents of windows are asked for, whichever way their operator keeps them."""

WINDOW_LAYOUTS = ("_window/contents", "_window/panes", "_window/slices")
MERGING = "_window/merging"
TIMERS = "timers"
_SAMPLED_KEYS = 16

NamespacesOf = Callable[[Any], list[Any]]
"""In which namespaces a key may have something. Raises TooLargeToReadError."""


class ReadableTable(Protocol):
    """The entries of one state. An entry is known by its key, or by (key, namespace) when the state has namespaces."""

    @property
    def info(self) -> KeyedStateInfo: ...

    def peek(self, entry: Any, budget: ReadBudget) -> Any:
        """What is stored, not to be changed; None, or something empty, when there is nothing. Takes what it reads from
        the budget. Raises TooLargeToReadError, also for more than MAX_PARTS elements or map entries."""

    def peek_namespaces(self, keys: Collection[Any], budget: ReadBudget) -> NamespacesOf:
        """For these keys. A table that has to look at all entries does so once, here. Raises TooLargeToReadError."""

    def peek_entries(self) -> Iterator[Any]:
        """Entries that may have something, in no certain order, each once. Each step takes a bounded time, also among
        many that were deleted. Not across a change."""


class CountedTable(ReadableTable, Protocol):
    """A table that an operator keeps itself."""

    def figures(self) -> StateFigures: ...


class StateTables(Protocol):
    """The states of one operator, in one subtask or one part of a snapshot."""

    def readable(self, name: str) -> ReadableTable | None:
        """None: there is no state of that name."""

    def names(self) -> list[str]: ...


@dataclass(frozen=True)
class ReadRules:
    """What the snapshot does not know of a state, and its operator does."""

    ttl_ms: int | None = None  # None: what has expired is shown as well
    now_ms: float = 0.0
    result: Callable[[Any], Any] | None = None  # what an aggregating state shows of its accumulator


AS_STORED = ReadRules()


@dataclass(frozen=True)
class Found:
    """What a key has. `values`: by window for a state that is kept per window, otherwise [(None, value)]; empty when
    there is nothing."""

    key: Any
    values: list[tuple[Any, Any]]


def resolve(tables: StateTables, name: str) -> ReadableTable | None:
    """The state that a user means by a name. Timers and the book-keeping of session windows are not shown."""
    if name == WINDOW_CONTENTS:
        for layout in WINDOW_LAYOUTS:
            table = tables.readable(layout)
            if table is not None:
                return table
    table = tables.readable(name)
    return None if table is None or not is_shown(table.info) else table


def is_shown(info: KeyedStateInfo) -> bool:
    return info.kind != TIMERS and info.name != MERGING


def shown_names(tables: StateTables) -> list[str]:
    """Without those that are hidden."""
    found = [tables.readable(name) for name in tables.names()]
    return [t.info.name for t in found if t is not None and is_shown(t.info) and not t.info.hidden]


class KeyReader:
    """Reads keys of one state, at one moment. What takes a look at the whole state is looked at once for all `keys`."""

    def __init__(
        self,
        tables: StateTables,
        table: ReadableTable,
        keys: Collection[Any],
        budget: ReadBudget,
        rules: ReadRules = AS_STORED,
    ) -> None:
        """`keys`: all that will be asked for."""
        self._table = table
        self._keys = keys
        self._budget = budget
        self._rules = rules
        self._merging = tables.readable(MERGING) if table.info.name in WINDOW_LAYOUTS else None
        self._namespaces: NamespacesOf | None = None  # None: not asked for so far

    def read(self, keys: Sequence[Any], window: tuple[Any, ...] | None) -> list[Found]:
        """In the order of the keys; one that comes twice is read once. Of a state without windows, of one window, or of
        all windows of a key when `window` is None. A window is equal to the tuple of its parts (start and end of a time
        window), so that tuple will do. Raises TooLargeToReadError."""
        values = {key: self._values(key, window) for key in dict.fromkeys(keys)}
        return [Found(key, values[key]) for key in keys]

    def _values(self, key: Any, window: tuple[Any, ...] | None) -> list[tuple[Any, Any]]:
        info, rules = self._table.info, self._rules
        if not info.namespaced:
            value = _visible(info, self._table.peek(key, self._budget), rules)
            return [] if value is None else [(None, value)]
        found = []
        for shown, namespace in self._windows(key, window):
            value = _visible(info, self._table.peek((key, namespace), self._budget), rules)
            if value is not None:
                found.append((shown, value))
        return found

    def _windows(self, key: Any, window: tuple[Any, ...] | None) -> list[tuple[Any, Any]]:
        """(window, namespace of its contents). Session windows keep their contents under one of those they grew
        from."""
        if self._merging is not None:
            pairs = self._merging.peek(key, self._budget) or ()
            return [pair for pair in pairs if window is None or pair[0] == window]
        if window is not None:
            return [(window, window)]
        if self._namespaces is None:
            self._namespaces = self._table.peek_namespaces(self._keys, self._budget)
        return [(namespace, namespace) for namespace in self._namespaces(key)]


def scan(table: ReadableTable, limit: int, budget: ReadBudget, rules: ReadRules = AS_STORED) -> list[Found]:
    """Some entries, at most `limit`, in no certain order. A key of a state that is kept per window may come several
    times. Raises TooLargeToReadError."""
    found: list[Found] = []
    namespaced = table.info.namespaced
    for entry in islice(table.peek_entries(), limit * 4 + 1_000):
        if len(found) >= limit:
            break
        value = _visible(table.info, table.peek(entry, budget), rules)
        if value is not None:
            key, window = entry if namespaced else (entry, None)
            found.append(Found(key, [(window, value)]))
    return found


def _sampled_keys(table: ReadableTable) -> list[Any]:
    entries = islice(table.peek_entries(), _SAMPLED_KEYS)
    return [entry[0] for entry in entries] if table.info.namespaced else list(entries)


def key_types_of(table: ReadableTable) -> tuple[str, ...]:
    """What some of the keys are, as classes of Python."""
    return tuple(sorted({type(key).__name__ for key in _sampled_keys(table)}))


def strange_key(table: ReadableTable, found: Sequence[Found]) -> Any:
    """The first key without a value whose type none of some keys that there are is of; None: there is no such one.
    (Equal numbers are one key, of any type.)"""
    missing = [one.key for one in found if not one.values]
    there = _sampled_keys(table) if missing else []
    if not there:
        return None
    types = set(map(type, there))
    numeric = any(isinstance(key, numbers.Number) for key in there)
    return next((k for k in missing if type(k) not in types and not (numeric and isinstance(k, numbers.Number))), None)


def _visible(info: KeyedStateInfo, stored: Any, rules: ReadRules) -> Any:
    """What the operator would see of a stored entry; None when that is nothing."""
    if stored is None:
        return None
    if info.ttl:
        stored = _unexpired(info.kind, stored, rules)
    if stored is None or (info.kind in ("list", "map") and not stored):
        return None
    if info.kind == "aggregating" and rules.result is not None:
        return rules.result(stored)
    return stored


def _unexpired(kind: str, stored: Any, rules: ReadRules) -> Any:
    limit = None if rules.ttl_ms is None else rules.now_ms - rules.ttl_ms
    if kind == "list":
        return [value for value, at in stored if limit is None or at > limit]
    if kind == "map":
        return {key: value for key, (value, at) in stored.items() if limit is None or at > limit}
    value, at = stored
    return value if limit is None or at > limit else None
