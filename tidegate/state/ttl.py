"""Keyed states with a time to live, on top of the plain states of any backend.

What is stored is a pair (value, time of the last access in ms since the epoch): per entry for value, reducing and
aggregating state, per element for lists, per map entry for maps. The times are absolute, so a restored state expires
when it would have expired without the failure.

Expired is what was last accessed `ttl` or longer ago. Reading something expired removes it; with
ReturnExpiredIfNotCleanedUp it is returned all the same, that one time. A write (`add`) never builds on something
expired. OnReadAndWrite makes a read an access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegate.contracts.functions import AggregateFunction
from tidegate.contracts.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    MapState,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueState,
)

Pair = tuple[Any, int]
"""(value, time of the last access)."""


class TtlState:
    """The rules of one state's time to live."""

    def __init__(self, inner: Any, config: StateTtlConfig, clock: Callable[[], float]) -> None:
        self._inner = inner
        self.ttl_ms = config.ttl_ms
        self._clock = clock
        self._touches_on_read = config.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
        visibility = config.get_state_visibility()
        self._shows_expired = visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        self.accesses = 0  # since the sweep last looked

    def clear(self) -> None:
        self.accesses += 1
        self._inner.clear()

    def _expired(self, pair: Pair) -> bool:
        return pair[1] + self.ttl_ms <= self._clock()

    def _now(self) -> int:
        return int(self._clock())


class _TtlSingle(TtlState):
    """One pair per entry, in a plain value state."""

    def _read(self) -> Any:
        self.accesses += 1
        pair = self._inner.value()
        if pair is None:
            return None
        if self._expired(pair):
            self._inner.clear()
            return pair[0] if self._shows_expired else None
        if self._touches_on_read:
            self._inner.update((pair[0], self._now()))
        return pair[0]

    def _unexpired(self) -> Any:
        """The value that a write builds on: nothing that has expired."""
        self.accesses += 1
        pair = self._inner.value()
        return None if pair is None or self._expired(pair) else pair[0]

    def _write(self, value: Any) -> None:
        self._inner.update(None if value is None else (value, self._now()))


class TtlValueState(_TtlSingle, ValueState[Any]):
    def value(self) -> Any:
        return self._read()

    def update(self, value: Any) -> None:
        self.accesses += 1
        self._write(value)


class TtlReducingState(_TtlSingle, ReducingState[Any]):
    def __init__(
        self, inner: Any, config: StateTtlConfig, clock: Callable[[], float], reduce: Callable[[Any, Any], Any]
    ) -> None:
        super().__init__(inner, config, clock)
        self._reduce = reduce

    def get(self) -> Any:
        return self._read()

    def add(self, value: Any) -> None:
        current = self._unexpired()
        self._write(value if current is None else self._reduce(current, value))


class TtlAggregatingState(_TtlSingle, AggregatingState[Any, Any]):
    def __init__(
        self, inner: Any, config: StateTtlConfig, clock: Callable[[], float], function: AggregateFunction
    ) -> None:
        super().__init__(inner, config, clock)
        self.function = function

    def get(self) -> Any:
        accumulator = self._read()
        return None if accumulator is None else self.function.get_result(accumulator)

    def add(self, value: Any) -> None:
        accumulator = self._unexpired()
        if accumulator is None:
            accumulator = self.function.create_accumulator()
        self._write(self.function.add(value, accumulator))


class TtlListState(TtlState, ListState[Any]):
    def get(self) -> list[Any]:
        self.accesses += 1
        pairs = self._inner.get()
        if not pairs:
            return []
        live = [pair for pair in pairs if not self._expired(pair)]
        if self._touches_on_read and live:
            now = self._now()
            self._inner.update([(value, now) for value, _ in live])
        elif len(live) < len(pairs):
            self._inner.update(live)
        return [value for value, _ in (pairs if self._shows_expired else live)]

    def add(self, value: Any) -> None:
        self.accesses += 1
        self._inner.add((value, self._now()))

    def add_all(self, values: Iterable[Any]) -> None:
        self.accesses += 1
        now = self._now()
        self._inner.add_all([(value, now) for value in values])

    def update(self, values: Iterable[Any]) -> None:
        self.accesses += 1
        now = self._now()
        self._inner.update([(value, now) for value in values or ()])


class TtlMapState(TtlState, MapState[Any, Any]):
    def get(self, key: Any) -> Any:
        pair = self._visible(key)
        return None if pair is None else pair[0]

    def contains(self, key: Any) -> bool:
        return self._visible(key) is not None

    def put(self, key: Any, value: Any) -> None:
        self.accesses += 1
        self._inner.put(key, (value, self._now()))

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        self.accesses += 1
        now = self._now()
        self._inner.put_all({key: (value, now) for key, value in dict_value.items()})

    def remove(self, key: Any) -> None:
        self.accesses += 1
        self._inner.remove(key)

    def items(self) -> list[tuple[Any, Any]]:
        self.accesses += 1
        found = []
        now = self._now()
        for key, pair in self._inner.items():
            if self._expired(pair):
                self._inner.remove(key)
                if not self._shows_expired:
                    continue
            elif self._touches_on_read:
                self._inner.put(key, (pair[0], now))
            found.append((key, pair[0]))
        return found

    def keys(self) -> list[Any]:
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        self.accesses += 1
        if self._inner.is_empty():
            return True
        return not self._shows_expired and all(self._expired(pair) for pair in self._inner.values())

    def _visible(self, key: Any) -> Pair | None:
        self.accesses += 1
        pair: Pair | None = self._inner.get(key)
        if pair is None:
            return None
        if self._expired(pair):
            self._inner.remove(key)
            return pair if self._shows_expired else None
        if self._touches_on_read:
            self._inner.put(key, (pair[0], self._now()))
        return pair


def make_ttl_state(
    descriptor: StateDescriptor, inner: Any, config: StateTtlConfig, clock: Callable[[], float]
) -> TtlState:
    """`inner` is a plain list or map state for those kinds, and a plain value state for all others."""
    if isinstance(descriptor, ReducingStateDescriptor):
        return TtlReducingState(inner, config, clock, descriptor.get_reduce_function().reduce)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return TtlAggregatingState(inner, config, clock, descriptor.get_agg_function())
    plain: type[Any] = {"value": TtlValueState, "list": TtlListState, "map": TtlMapState}[descriptor.kind]
    state: TtlState = plain(inner, config, clock)
    return state
