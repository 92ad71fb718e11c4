"""Keyed state in the debug mode `tidegate.debug.check-mutations` (see `mutation_checks`): what user code has got hold
of is remembered as it was, and looked at again. Values are compared by their pickles, so what cannot be pickled is not
watched."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tidegate.common.errors import MutationError
from tidegate.common.value_conversion import shorten
from tidegate.contracts.state import ListState, MapState, ReducingState, ValueState
from tidegate.taskmanager.copying import cannot_change

_MAX_HELD = 10_000  # objects that are looked at again when a snapshot is taken
_WHOLE = object()  # the part of an entry that is all of it


def fingerprint(value: Any) -> bytes | None:
    """Different when the value is. None: it cannot change, or cannot be looked at."""
    if cannot_change((value,)):
        return None
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return None


def _list_fingerprint(values: list[Any]) -> bytes | None:
    """Of a list that was handed out as a copy: to sort it is no change of what it holds."""
    try:
        return b"".join(sorted(pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for value in values))
    except Exception:
        return None


class Seen(NamedTuple):
    value: Any
    taken: Callable[[Any], bytes | None]
    print: bytes

    @property
    def changed(self) -> bool:
        now = self.taken(self.value)
        return now != self.print and now == self.taken(self.value)  # the pickles of some are never the same


class MutationWatch:
    """What user code has got hold of, of the keyed state of one operator, and how it looked then."""

    def __init__(self, operator_name: str) -> None:
        self._operator_name = operator_name
        self._held: dict[tuple[str, Any, Any], Seen] = {}  # (state, key, part of the entry) -> as it was
        self._touched: set[tuple[str, Any, Any]] = set()  # since the last look

    def watched(self, state: Any, name: str, current_key: Callable[[], Any]) -> Any:
        """The same state, watched. Results of aggregating state are made for the reader, and are not."""
        for kind, wrapper in _WRAPPERS.items():
            if isinstance(state, kind):
                return wrapper(state, self, name, current_key)
        return state

    def saw(
        self,
        state: str,
        key: Any,
        part: Any,
        value: Any,
        taken: Callable[[Any], bytes | None] = fingerprint,
        written: bool = False,
    ) -> None:
        """User code has this object now. What it looked like when it was first seen counts, until it is `written`."""
        place = (state, key, part)
        if not written and place in self._held:
            if self._held[place].value is value:
                self._touched.add(place)
                return
            self._check(place)
        found = taken(value)
        if found is None:
            self._held.pop(place, None)
            return
        if len(self._held) >= _MAX_HELD:
            self._held.pop(next(iter(self._held)))
        self._held[place] = Seen(value, taken, found)
        self._touched.add(place)

    def wrote(self, state: str, key: Any) -> None:
        """The entry is what the function wants it to be."""
        for place in [place for place in self._held if place[0] == state and place[1] == key]:
            del self._held[place]

    def verify(self, all_held: bool = False) -> None:
        """Raises MutationError for an object that has changed. Looks at what was touched since the last time, or at
        everything that it remembers."""
        places = list(self._held) if all_held else list(self._touched)
        self._touched.clear()
        for place in places:
            self._check(place)

    def _check(self, place: tuple[str, Any, Any]) -> None:
        seen = self._held.get(place)
        if seen is not None and seen.changed:
            del self._held[place]
            raise MutationError(self._describe(place, seen.value))

    def _describe(self, place: tuple[str, Any, Any], value: Any) -> str:
        state, key, part = place
        where = f"state '{state}' of operator '{self._operator_name}', key {shorten(key)}"
        if part is not _WHOLE:
            where += f", map key {shorten(part)}"
        return (
            f"{where}: {shorten(value)} was changed in place and not written back, so the change may be lost after a "
            "recovery. Give it to update() (put() for a map), or change a copy. If it was not this function that "
            "changed it, it was one that got the object as a record."
        )


class _Watched:
    def __init__(self, inner: Any, watch: MutationWatch, name: str, current_key: Callable[[], Any]) -> None:
        self._inner = inner
        self._watch = watch
        self._name = name
        self._current_key = current_key

    def clear(self) -> None:
        self._inner.clear()
        self._watch.wrote(self._name, self._current_key())

    def _saw(self, value: Any, part: Any = _WHOLE, written: bool = False) -> Any:
        self._watch.saw(self._name, self._current_key(), part, value, written=written)
        return value


class _WatchedValue(_Watched, ValueState[Any]):
    def value(self) -> Any:
        return self._saw(self._inner.value())

    def update(self, value: Any) -> None:
        self._inner.update(value)
        self._saw(value, written=True)


class _WatchedReducing(_Watched, ReducingState[Any]):
    def get(self) -> Any:
        return self._saw(self._inner.get())

    def add(self, value: Any) -> None:
        self._inner.add(value)
        self._watch.wrote(self._name, self._current_key())


class _WatchedList(_Watched, ListState[Any]):
    def get(self) -> Any:
        values = list(self._inner.get())
        self._watch.saw(self._name, self._current_key(), _WHOLE, values, _list_fingerprint)
        return values

    def add(self, value: Any) -> None:
        self._inner.add(value)
        self._watch.wrote(self._name, self._current_key())

    def add_all(self, values: Iterable[Any]) -> None:
        self._inner.add_all(values)
        self._watch.wrote(self._name, self._current_key())

    def update(self, values: Iterable[Any]) -> None:
        self._inner.update(values)
        self._watch.wrote(self._name, self._current_key())


class _WatchedMap(_Watched, MapState[Any, Any]):
    def get(self, key: Any) -> Any:
        return self._saw(self._inner.get(key), key)

    def put(self, key: Any, value: Any) -> None:
        self._inner.put(key, value)
        self._saw(value, key, written=True)

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        self._inner.put_all(dict_value)
        for key, value in dict_value.items():
            self._saw(value, key, written=True)

    def remove(self, key: Any) -> None:
        self._inner.remove(key)
        self._saw(None, key, written=True)

    def items(self) -> list[tuple[Any, Any]]:
        return [(key, self._saw(value, key)) for key, value in self._inner.items()]

    def values(self) -> list[Any]:
        return [value for _, value in self.items()]

    def keys(self) -> Any:
        return self._inner.keys()

    def contains(self, key: Any) -> bool:
        return bool(self._inner.contains(key))

    def is_empty(self) -> bool:
        return bool(self._inner.is_empty())


_WRAPPERS: dict[type, type[_Watched]] = {
    ValueState: _WatchedValue,
    ReducingState: _WatchedReducing,
    ListState: _WatchedList,
    MapState: _WatchedMap,
}
