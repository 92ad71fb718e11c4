"""State of an operator subtask that belongs to no key: lists that are dealt out anew when a job is rescaled, and
broadcast maps. The runtime keeps source offsets, writer states and committables here too.

Small compared with keyed state, so a snapshot is always complete and is pickled in the synchronous part, item by item:
items can then be dealt out without unpickling them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tidegate.common.errors import ConfigurationError, SnapshotDamagedError
from tidegate.contracts.state import (
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateStore,
    StateDescriptor,
)
from tidegate.state.dataclass_evolution import DataclassUpgrade, StateSchemaError
from tidegate.state.savepoint.reader import is_table, read_items
from tidegate.state.serialization import PROTOCOL, dumps_item, loads
from tidegate.storage.handles import OperatorListState, OperatorRestore, StateHandle
from tidegate.storage.reader import StateSource
from tidegate.storage.writers import StateSink

S = TypeVar("S")

SPLIT = "split"
UNION = "union"
BROADCAST = "broadcast"


class HeapOperatorListState(ListState[Any]):
    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def get(self) -> list[Any]:
        """A copy: adding while one iterates is fine."""
        return self._items[:]

    def add(self, value: Any) -> None:
        self._items.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        self._items.extend(values)

    def update(self, values: Iterable[Any]) -> None:
        self._items = list(values or ())

    def clear(self) -> None:
        self._items = []

    def snapshot_items(self) -> Iterator[tuple[str, Any]]:
        for position, item in enumerate(self._items):
            yield f"item {position}", item


class HeapBroadcastState(BroadcastState[Any, Any]):
    def __init__(self, items: list[tuple[Any, Any]]) -> None:
        self._content = dict(items)

    def get(self, key: Any) -> Any:
        return self._content.get(key)

    def contains(self, key: Any) -> bool:
        return key in self._content

    def items(self) -> list[tuple[Any, Any]]:
        """A copy, like `keys` and `values`: changing the map while one iterates is fine."""
        return list(self._content.items())

    def keys(self) -> list[Any]:
        return list(self._content)

    def values(self) -> list[Any]:
        return list(self._content.values())

    def is_empty(self) -> bool:
        return not self._content

    def put(self, key: Any, value: Any) -> None:
        self._content[key] = value

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        self._content.update(dict_value)

    def remove(self, key: Any) -> None:
        self._content.pop(key, None)

    def clear(self) -> None:
        self._content.clear()

    def snapshot_items(self) -> Iterator[tuple[str, Any]]:
        for key, value in self._content.items():
            yield f"the entry of key {key!r}", (key, value)


class FrozenOperatorState:
    """The frozen view of one checkpoint: written once, on a helper thread."""

    def __init__(self, lists: list[tuple[str, str, list[bytes]]]) -> None:
        self.pickled = lists  # (name, mode, pickled items)

    def write(self, sink: StateSink) -> list[OperatorListState]:
        return [
            OperatorListState(name=name, mode=mode, count=len(items), handle=sink.write(pickle.dumps(items, PROTOCOL)))
            for name, mode, items in self.pickled
        ]


class OperatorStateBackend(OperatorStateStore):
    """Used from the mailbox thread only; `restore` before the first `get_*`.

    A restored state that nobody asks for is kept as it is and is part of every later snapshot."""

    def __init__(self, operator_name: str) -> None:
        self.operator_name = operator_name
        self._states: dict[str, tuple[str, HeapOperatorListState | HeapBroadcastState]] = {}  # name -> (mode, state)
        self._unclaimed: dict[str, tuple[str, list[bytes]]] = {}  # restored, not asked for yet: name -> (mode, items)

    # ------------------------------------------------------------ states

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> HeapOperatorListState:
        return self._list_state(state_descriptor, SPLIT)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> HeapOperatorListState:
        return self._list_state(state_descriptor, UNION)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> HeapBroadcastState:
        name = self._checked_name(state_descriptor, MapStateDescriptor)
        if name not in self._states:
            self._states[name] = BROADCAST, HeapBroadcastState(self._claim(name, BROADCAST))
        return self._existing(name, BROADCAST, HeapBroadcastState)

    def _list_state(self, descriptor: ListStateDescriptor, mode: str) -> HeapOperatorListState:
        name = self._checked_name(descriptor, ListStateDescriptor)
        if name not in self._states:
            self._states[name] = mode, HeapOperatorListState(self._claim(name, mode))
        return self._existing(name, mode, HeapOperatorListState)

    def _checked_name(self, descriptor: StateDescriptor, expected: type[StateDescriptor]) -> str:
        if not isinstance(descriptor, expected):
            raise ConfigurationError(
                f"operator '{self.operator_name}': this operator state takes a {expected.__name__}, got {descriptor!r}"
            )
        if descriptor.ttl_config is not None:
            raise ConfigurationError(
                f"operator '{self.operator_name}': operator state '{descriptor.get_name()}' cannot have a time to "
                "live; remove enable_time_to_live()"
            )
        return descriptor.get_name()

    def _existing(self, name: str, mode: str, cls: type[S]) -> S:
        known_mode, state = self._states[name]
        if known_mode != mode or not isinstance(state, cls):
            raise ConfigurationError(
                f"operator '{self.operator_name}': operator state '{name}' is declared twice, as {known_mode} state "
                f"and as {mode} state; give each state a name of its own"
            )
        return state

    def _claim(self, name: str, mode: str) -> list[Any]:
        restored = self._unclaimed.get(name)
        if restored is None:
            return []
        restored_mode, items = restored
        if restored_mode != mode:
            raise StateSchemaError(
                f"operator '{self.operator_name}': operator state '{name}' is {restored_mode} state in the snapshot, "
                f"but the job declares it as {mode} state; give the new state another name"
            )
        upgrade = DataclassUpgrade(self.operator_name, name)
        values = [upgrade(loads(self.operator_name, name, item)) for item in items]
        del self._unclaimed[name]
        return values

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self) -> FrozenOperatorState:
        """The synchronous part: raises SerializationError for an item that cannot be pickled."""
        lists = [(name, mode, items) for name, (mode, items) in self._unclaimed.items()]
        for name, (mode, state) in self._states.items():
            items = [dumps_item(self.operator_name, name, item, where) for where, item in state.snapshot_items()]
            lists.append((name, mode, items))
        return FrozenOperatorState(lists)

    def restore(self, restore: OperatorRestore, source: StateSource) -> None:
        """Union lists of several old subtasks are joined; of several broadcast states the first one is taken."""
        for name, parts in restore.split_items.items():
            _, items = self._unclaimed.setdefault(name, (SPLIT, []))
            for handle, first, end in parts:
                stored = self._read(name, handle, source)
                if end > len(stored):
                    raise self._wrong_count(name, len(stored), end)
                items += stored[first:end]
        for state in restore.lists:
            if state.mode == BROADCAST and state.name in self._unclaimed:
                continue
            mode, items = self._unclaimed.setdefault(state.name, (state.mode, []))
            if mode != state.mode:
                raise SnapshotDamagedError(
                    f"operator '{self.operator_name}': operator state '{state.name}' is both {mode} and {state.mode} "
                    "state in the snapshot"
                )
            items += self._read(state.name, state.handle, source, state.count)

    def _read(self, name: str, handle: StateHandle, source: StateSource, count: int | None = None) -> list[bytes]:
        items: list[bytes] = (
            read_items(handle, source) if is_table(handle) else loads(self.operator_name, name, source.read(handle))
        )
        if count is not None and len(items) != count:
            raise self._wrong_count(name, len(items), count)
        return items

    def _wrong_count(self, name: str, found: int, expected: int) -> SnapshotDamagedError:
        return SnapshotDamagedError(
            f"operator '{self.operator_name}': operator state '{name}' has {found} items where the snapshot "
            f"says {expected}"
        )

    def dispose(self) -> None:
        self._states.clear()
        self._unclaimed.clear()
