"""The table behind one keyed state: two dicts, the changes since the last snapshot over everything before it.

What is kept per entry is up to the state kind (a value, a list, a dict, an accumulator, a set of timers): the table
only knows that None means "no entry". The dicts may be replaced by `merge`, so whoever caches them is told by `rebind`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol

from tidegate.common.errors import check_internal
from tidegate.common.value_sizes import estimated_size
from tidegate.state.read_budget import ReadBudget, check_parts
from tidegate.state.reading import NamespacesOf
from tidegate.state.ttl_cleanup import KeyRounds, without_expired
from tidegate.storage.handles import KeyedStateInfo


class TableView(Protocol):
    """Something that caches the table's dicts to save an attribute access per state access."""

    def rebind(self, delta: dict[Any, Any], base: dict[Any, Any]) -> None: ...


class HeapTable:
    """Invariant: a None in `delta` (a tombstone) hides an entry of `base`; `base` holds no None."""

    __slots__ = ("_rounds", "_views", "base", "delta", "info")

    def __init__(self, info: KeyedStateInfo) -> None:
        self.info = info
        self.delta: dict[Any, Any] = {}  # entry key -> value, or None when deleted, since the last `merge`
        self.base: dict[Any, Any] = {}  # entry key -> value as of the last `merge`
        self._views: list[TableView] = []
        self._rounds = KeyRounds(self.live_keys)

    def attach(self, view: TableView) -> None:
        """The view stays bound to the table for the table's life."""
        self._views.append(view)
        view.rebind(self.delta, self.base)

    def get(self, key: Any) -> Any:
        value = self.delta.get(key, _MISSING)
        return self.base.get(key) if value is _MISSING else value

    def put(self, key: Any, value: Any) -> None:
        self.delta[key] = value

    def remove(self, key: Any) -> None:
        if key in self.base:
            self.delta[key] = None
        else:
            self.delta.pop(key, None)

    def live_keys(self) -> Iterator[Any]:
        delta = self.delta
        for key, value in delta.items():
            if value is not None:
                yield key
        for key in self.base:
            if key not in delta:
                yield key

    def live_items(self) -> Iterator[tuple[Any, Any]]:
        for key in self.live_keys():
            yield key, self.get(key)

    # ------------------------------------------------------------ seen from outside (`state.reading`)

    def peek(self, entry: Any, budget: ReadBudget) -> Any:
        value = self.get(entry)
        parts = 0
        if value is not None and self.info.kind in ("list", "map"):
            parts = len(value)
            check_parts(self.info, parts)
        budget.take(self.info, 1 + parts, estimated_size(value))
        return value

    def peek_namespaces(self, keys: Collection[Any], budget: ReadBudget) -> NamespacesOf:
        """Entries are found by key and namespace together, so this looks at all of them."""
        budget.take(self.info, len(self.delta) + len(self.base))
        found: dict[Any, list[Any]] = {key: [] for key in keys}
        for key, namespace in self.live_keys():
            if key in found:
                found[key].append(namespace)
        return found.__getitem__

    def peek_entries(self) -> Iterator[Any]:
        yield from self.delta  # also what was deleted, which may be nearly all of it
        yield from (entry for entry in self.base if entry not in self.delta)

    def count(self) -> int:
        """How many entries there are. Looks at what has changed since the last snapshot."""
        delta, base = self.delta, self.base
        if not base or not delta:
            return len(base) or len(delta)
        gone = sum(value is None for value in delta.values())
        return len(base) - gone + sum(key not in base for key in delta)

    def drop_expired(self, budget: int, expired: Callable[[Any], bool]) -> None:
        """See `named_states.Table`."""
        kind = self.info.kind
        for key in self._rounds.take(budget):
            stored = self.get(key)
            kept = None if stored is None else without_expired(kind, stored, expired)
            if kept is None:
                self.remove(key)
            elif kept is not stored:
                self.put(key, kept)

    def begin_rounds(self, part: float) -> None:
        """Have `drop_expired` begin there: 0 is the first key, 0.5 the middle. For a table that lives too short a time
        to go round."""
        self._rounds.begin_at(int(len(self.base) * part))

    def merge(self) -> dict[Any, Any]:
        """Fold the changes into `base` and return them. The dict returned must not be changed: it may be the new
        base."""
        delta, base = self.delta, self.base
        if not delta:
            return {}
        if base:
            base.update(delta)
            if type(None) in set(map(type, delta.values())):  # a quick look first: most deltas have no tombstones
                for key in [key for key, value in delta.items() if value is None]:
                    del base[key]
        else:  # nothing to hide, so no tombstones; taking the dict over saves copying a million entries
            self.base = delta
        self.delta = {}
        self._rebind()
        return delta

    def load(self, base: dict[Any, Any]) -> None:
        """Replace everything by restored entries."""
        self.base, self.delta = base, {}
        self._rebind()

    def _rebind(self) -> None:
        for view in self._views:
            view.rebind(self.delta, self.base)

    def check_invariants(self) -> None:
        check_internal(all(value is not None for value in self.base.values()), "the base holds a tombstone")
        hidden = [key for key, value in self.delta.items() if value is None]
        check_internal(all(key in self.base for key in hidden), "a tombstone hides nothing")


_MISSING: Any = object()
