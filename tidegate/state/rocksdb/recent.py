"""What was lately read from or written to RocksDB, as Python objects."""

from __future__ import annotations

from typing import Any

from tidegate.state.rocksdb.resources import SlotResources

ENTRY_COST = 200  # bytes that dict slot, key and object headers take
MISSING: Any = object()
_FREED_AT_ONCE = 4096


class RecentEntries(dict[Any, Any]):
    """Two generations: when the younger one has its share of bytes it becomes the older, and what was not asked for
    since is forgotten. Each may have a third of the table's memory; the last third is for changes (`delta`)."""

    def __init__(self, resources: SlotResources) -> None:
        super().__init__()
        self._resources = resources
        self._older: dict[Any, Any] = {}
        self._older_cost = ENTRY_COST  # of one entry, on average
        self._doomed: dict[Any, Any] = {}  # no longer known; waits for `free_some`
        self._cost = 0

    def find(self, key: Any) -> Any:
        """The value of an entry; MISSING when it is not known here."""
        value = self.get(key, MISSING)
        if value is MISSING and self._older:
            value = self._older.pop(key, MISSING)
            if value is not MISSING:
                self.remember(key, value, self._older_cost)
        return value

    def look(self, key: Any) -> Any:
        """As `find`, and leaves everything where it is."""
        value = self.get(key, MISSING)
        return self._older.get(key, MISSING) if value is MISSING else value

    def unknown(self, keys: list[Any], delta: dict[Any, Any], frozen: dict[Any, Any]) -> list[Any]:
        """The entries that are neither known here nor in one of the dicts."""
        older = self._older
        if not frozen:
            return [k for k in keys if k not in delta and k not in self and k not in older]
        return [k for k in keys if k not in delta and k not in self and k not in older and k not in frozen]

    def remember(self, key: Any, value: Any, cost: int) -> None:
        self[key] = value
        self.charge(cost)

    def charge(self, cost: int) -> None:
        """Counts the cost of what was put into the dict; when there is too much, what is known becomes the older
        half."""
        self._cost += cost
        if self._cost * 3 > self._resources.table_bytes and self:
            self._older = dict(self)
            self._older_cost = self._cost // len(self)
            self.clear()
            self._cost = 0

    def make_room(self, cost: int) -> None:
        """Makes room for changes that are frozen beside both generations: the older one goes when there is no space for
        all. It is not freed here, which would take most of the synchronous part of a snapshot (20 ms for 200,000
        entries)."""
        if (self._cost + len(self._older) * self._older_cost + cost) * 3 > self._resources.table_bytes * 2:
            self._doomed, self._older = self._older, {}

    def free_some(self) -> None:
        """Called after each batch: what is to go goes faster than new changes come."""
        doomed = self._doomed
        if len(doomed) <= _FREED_AT_ONCE:
            self._doomed = {}
        else:
            for _ in range(_FREED_AT_ONCE):
                doomed.popitem()

    def forget(self, key: Any) -> None:
        self.pop(key, None)
        self._older.pop(key, None)
