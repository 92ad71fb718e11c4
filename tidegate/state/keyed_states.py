"""The five keyed state objects on top of a `HeapTable`.

The hot path of every stateful job: a read or write is one Python call and two or three dict operations, so each method
spells out the lookup instead of sharing it. A state finds its entry by `cursor.current_key`; the cursor is the backend
itself, or a `NamespaceCursor` for states that are kept per key and namespace (windows).

An entry is changed in place only after it has been put into the table's delta. That is safe next to a snapshot that is
still being written, because a snapshot holds bytes, or values that cannot change (see `heap_snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from tidegate.contracts.functions import AggregateFunction
from tidegate.contracts.state import AggregatingState, ListState, MapState, ReducingState, ValueState

_MISSING: Any = object()


class Cursor(Protocol):
    """Says which entry is meant: the key of the record in hand."""

    @property
    def current_key(self) -> Any: ...


class Namespaces(Protocol):
    current_key: Any
    current_namespace: Any


class NamespaceCursor:
    """The cursor of a state with namespaces, whose entries are found by (key, namespace)."""

    __slots__ = ("_backend",)

    def __init__(self, backend: Namespaces) -> None:
        self._backend = backend

    @property
    def current_key(self) -> Any:
        return self._backend.current_key, self._backend.current_namespace


class HeapValueState(ValueState[Any]):
    __slots__ = ("_base", "_cursor", "_delta")

    _delta: dict[Any, Any]
    _base: dict[Any, Any]

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def rebind(self, delta: dict[Any, Any], base: dict[Any, Any]) -> None:
        self._delta, self._base = delta, base

    def value(self) -> Any:
        key = self._cursor.current_key
        value = self._delta.get(key, _MISSING)
        return self._base.get(key) if value is _MISSING else value

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._delta[self._cursor.current_key] = value

    def clear(self) -> None:
        key = self._cursor.current_key
        if key in self._base:
            self._delta[key] = None
        else:
            self._delta.pop(key, None)

    def contents(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """For operators of the runtime with hot loops: the entries that were changed since the last snapshot, which may
        be changed in place, and those below, which may not. Holds until the next snapshot; no entry may become None."""
        return self._delta, self._base


class HeapListState(ListState[Any]):
    __slots__ = ("_base", "_cursor", "_delta")

    _delta: dict[Any, list[Any] | None]
    _base: dict[Any, list[Any]]

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def rebind(self, delta: dict[Any, Any], base: dict[Any, Any]) -> None:
        self._delta, self._base = delta, base

    def get(self) -> list[Any]:
        """A copy: adding while one iterates is fine."""
        key = self._cursor.current_key
        elements = self._delta.get(key, _MISSING)
        if elements is _MISSING:
            elements = self._base.get(key)
        return [] if elements is None else elements[:]

    def add(self, value: Any) -> None:
        key = self._cursor.current_key
        elements = self._delta.get(key)
        if elements is None:
            elements = self._take_over(key)
        elements.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        values = list(values)
        if values:
            key = self._cursor.current_key
            elements = self._delta.get(key)
            if elements is None:
                elements = self._take_over(key)
            elements.extend(values)

    def update(self, values: Iterable[Any]) -> None:
        elements = list(values or ())
        if elements:
            self._delta[self._cursor.current_key] = elements
        else:
            self.clear()

    def clear(self) -> None:
        key = self._cursor.current_key
        if key in self._base:
            self._delta[key] = None
        else:
            self._delta.pop(key, None)

    def _take_over(self, key: Any) -> list[Any]:
        """The entry's list, which is not in delta yet or deleted there, as one that may be changed."""
        elements = None if key in self._delta else self._base.get(key)
        if elements is None:
            elements = []
        self._delta[key] = elements
        return elements


class HeapMapState(MapState[Any, Any]):
    __slots__ = ("_base", "_cursor", "_delta")

    _delta: dict[Any, dict[Any, Any] | None]
    _base: dict[Any, dict[Any, Any]]

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def rebind(self, delta: dict[Any, Any], base: dict[Any, Any]) -> None:
        self._delta, self._base = delta, base

    def get(self, key: Any) -> Any:
        entry = self._cursor.current_key
        content = self._delta.get(entry, _MISSING)
        if content is _MISSING:
            content = self._base.get(entry)
        return None if content is None else content.get(key)

    def contains(self, key: Any) -> bool:
        return key in self._content()

    def put(self, key: Any, value: Any) -> None:
        entry = self._cursor.current_key
        content = self._delta.get(entry)
        if content is None:
            content = self._take_over(entry)
        content[key] = value

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        if dict_value:
            entry = self._cursor.current_key
            content = self._delta.get(entry)
            if content is None:
                content = self._take_over(entry)
            content.update(dict_value)

    def remove(self, key: Any) -> None:
        entry = self._cursor.current_key
        if key in self._content():
            content = self._delta.get(entry)
            if content is None:
                content = self._take_over(entry)
            del content[key]
            if not content:
                self.clear()

    def items(self) -> list[tuple[Any, Any]]:
        """A copy, like `keys` and `values`: changing the map while one iterates is fine."""
        return list(self._content().items())

    def keys(self) -> list[Any]:
        return list(self._content())

    def values(self) -> list[Any]:
        return list(self._content().values())

    def is_empty(self) -> bool:
        return not self._content()

    def clear(self) -> None:
        entry = self._cursor.current_key
        if entry in self._base:
            self._delta[entry] = None
        else:
            self._delta.pop(entry, None)

    def changed_maps(self) -> dict[Any, dict[Any, Any] | None]:
        """For operators of the runtime with hot loops: the maps by key that may be changed in place. Holds until the
        next snapshot; a key that is not in it, or has None, has to go the usual way once."""
        return self._delta

    def _content(self) -> dict[Any, Any]:
        """The map of the current key, for reading only."""
        entry = self._cursor.current_key
        content = self._delta.get(entry, _MISSING)
        if content is _MISSING:
            content = self._base.get(entry)
        return {} if content is None else content

    def _take_over(self, entry: Any) -> dict[Any, Any]:
        """The entry's map, which is not in delta yet or deleted there, as one that may be changed."""
        content = None if entry in self._delta else self._base.get(entry)
        if content is None:
            content = {}
        self._delta[entry] = content
        return content


class HeapReducingState(ReducingState[Any]):
    __slots__ = ("_base", "_cursor", "_delta", "_reduce")

    _delta: dict[Any, Any]
    _base: dict[Any, Any]

    def __init__(self, cursor: Cursor, reduce: Callable[[Any, Any], Any]) -> None:
        self._cursor = cursor
        self._reduce = reduce

    def rebind(self, delta: dict[Any, Any], base: dict[Any, Any]) -> None:
        self._delta, self._base = delta, base

    def get(self) -> Any:
        key = self._cursor.current_key
        value = self._delta.get(key, _MISSING)
        return self._base.get(key) if value is _MISSING else value

    def add(self, value: Any) -> None:
        key = self._cursor.current_key
        current = self._delta.get(key, _MISSING)
        if current is _MISSING:
            current = self._base.get(key)
        reduced = value if current is None else self._reduce(current, value)
        if reduced is None:
            self.clear()
        else:
            self._delta[key] = reduced

    def clear(self) -> None:
        key = self._cursor.current_key
        if key in self._base:
            self._delta[key] = None
        else:
            self._delta.pop(key, None)


class HeapAggregatingState(AggregatingState[Any, Any]):
    """Keeps the accumulator of the AggregateFunction."""

    __slots__ = ("_base", "_cursor", "_delta", "function")

    _delta: dict[Any, Any]
    _base: dict[Any, Any]

    def __init__(self, cursor: Cursor, function: AggregateFunction) -> None:
        self._cursor = cursor
        self.function = function

    def rebind(self, delta: dict[Any, Any], base: dict[Any, Any]) -> None:
        self._delta, self._base = delta, base

    def get(self) -> Any:
        key = self._cursor.current_key
        accumulator = self._delta.get(key, _MISSING)
        if accumulator is _MISSING:
            accumulator = self._base.get(key)
        return None if accumulator is None else self.function.get_result(accumulator)

    def add(self, value: Any) -> None:
        key = self._cursor.current_key
        accumulator = self._delta.get(key, _MISSING)
        if accumulator is _MISSING:
            accumulator = self._base.get(key)
        if accumulator is None:
            accumulator = self.function.create_accumulator()
        accumulator = self.function.add(value, accumulator)
        if accumulator is None:
            self.clear()
        else:
            self._delta[key] = accumulator

    def clear(self) -> None:
        key = self._cursor.current_key
        if key in self._base:
            self._delta[key] = None
        else:
            self._delta.pop(key, None)
