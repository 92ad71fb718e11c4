"""What every keyed state backend has in common: states by name, checked declarations, time to live, the cursor.

A backend adds the tables: where entries are kept (`_new_table`) and the state objects that read and write them
(`_plain_state`). The key of an entry is the record's key, or (key, namespace) for states that are kept per namespace.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from tidegate.common.errors import ConfigurationError, of_type
from tidegate.common.type_schema import LIST, MAP, UNDECLARED, TypeSchema, schema_of
from tidegate.contracts.state import AggregatingStateDescriptor, MapStateDescriptor, StateDescriptor
from tidegate.state import serialization
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.evolution import StateSchemaError, migration
from tidegate.state.figures import StateFigures
from tidegate.state.key_groups import stable_hash
from tidegate.state.keyed_states import Cursor, HeapAggregatingState, NamespaceCursor
from tidegate.state.reading import ReadableTable, ReadRules
from tidegate.state.ttl import TtlAggregatingState, TtlState, make_ttl_state
from tidegate.state.ttl_cleanup import Sweep, make_sweep
from tidegate.storage.handles import KeyedStateInfo

Clock = Callable[[], float]
"""Milliseconds since the epoch."""


def wall_clock() -> float:
    return time.time() * 1000.0


class Table(Protocol):
    """The entries of one state. `get`, `put` and `remove` are for states that keep one value per entry."""

    info: KeyedStateInfo

    def get(self, key: Any) -> Any: ...

    def put(self, key: Any, value: Any) -> None: ...

    def remove(self, key: Any) -> None: ...

    def live_keys(self) -> Iterator[Any]: ...

    def live_items(self) -> Iterator[tuple[Any, Any]]: ...

    def drop_expired(self, budget: int, expired: Callable[[Any], bool]) -> None:
        """Look at the next entries, about `budget` of them, and remove what has expired. `expired(stored)` takes what
        a state with time to live stores: (value, time of the last access)."""


class NamedStates(KeyedStateBackend):
    """See `KeyedStateBackend`. `clock` is asked only by states with a time to live."""

    def __init__(
        self, operator_name: str, key_group_range: tuple[int, int], max_parallelism: int, clock: Clock | None = None
    ) -> None:
        self.operator_name = operator_name
        self.key_group_range = key_group_range  # [start, end)
        self.max_parallelism = max_parallelism
        self.current_namespace = None
        self._clock = clock or wall_clock
        self._tables: dict[str, Any] = {}  # name -> Table; never shrinks
        self._states: dict[str, Any] = {}  # name -> state object; its table is in _tables
        self._sweeps: list[Sweep] = []

    def __getattr__(self, name: str) -> Any:
        # `current_key` does not exist before the first record, so that a state access in open() cannot go unnoticed.
        if name == "current_key":
            raise ConfigurationError(
                f"operator '{self.operator_name}': keyed state was used outside of the processing of a record, where "
                "there is no current key; get the state object in open(), read and write it in the method that "
                "gets the record"
            )
        raise AttributeError(name)

    @abc.abstractmethod
    def _new_table(self, info: KeyedStateInfo) -> Any: ...

    @abc.abstractmethod
    def _plain_state(self, kind: str, descriptor: StateDescriptor, table: Any, cursor: Cursor) -> Any:
        """The state object of a kind (which need not be the descriptor's), bound to the table."""

    # ------------------------------------------------------------ states

    def get_state(self, descriptor: StateDescriptor, namespaced: bool = False) -> Any:
        name = descriptor.get_name()
        ttl = descriptor.ttl_config
        info = KeyedStateInfo(
            name=name,
            kind=descriptor.kind,
            type_description=_type_description(descriptor),
            schema=entry_schema(descriptor),
            namespaced=namespaced,
            ttl=ttl is not None,
            ttl_ms=None if ttl is None else ttl.ttl_ms,
            hidden=descriptor.hidden,
        )
        known = self._states.get(name)
        if known is not None:
            self._check_same_declaration(info)
            return known
        stored = self._tables.get(name)
        before = None if stored is None else stored.info
        table = self.table(info)
        if before is not None:
            self._evolve(table, before, info)
        cursor: Cursor = NamespaceCursor(self) if namespaced else self
        if ttl is None:
            state = self._plain_state(descriptor.kind, descriptor, table, cursor)
        else:
            stored_as = descriptor.kind if descriptor.kind in ("list", "map") else "value"
            inner = self._plain_state(stored_as, descriptor, table, cursor)
            state = make_ttl_state(descriptor, inner, ttl, self._clock)
            self._add_sweep(table, state, ttl)
        self._states[name] = state
        return state

    def _evolve(self, table: Any, before: KeyedStateInfo, info: KeyedStateInfo) -> None:
        """Restored entries as the job declares them now. StateSchemaError when that cannot be."""
        values = (value for _, value in table.live_items())
        example = next(values, None)
        convert = migration(
            self.operator_name, info.name, info.kind, info.ttl, before.schema, info.schema, example, values
        )
        if convert is not None:
            self._convert(table, convert)

    @abc.abstractmethod
    def _convert(self, table: Any, convert: Callable[[Any], Any]) -> None:
        """Replace every entry by what `convert` makes of it; the next snapshot builds on nothing older."""

    def _add_sweep(self, table: Table, state: TtlState, ttl: Any) -> None:
        sweep = make_sweep(table, state, ttl, self._clock, self.cleans_by_compaction)
        if sweep is not None:
            self._sweeps.append(sweep)

    reads_from_disk = False
    """Whether a read may have to wait for a disk."""

    cleans_by_compaction = False
    """Which of the clean-up strategies the backend goes by: that of RocksDB, or the incremental one."""

    def table(self, info: KeyedStateInfo) -> Any:
        """The table of a state, restored or new: for states of other kinds than those of the descriptors (timers)."""
        table = self._tables.get(info.name)
        if table is None:
            table = self._tables[info.name] = self._new_table(info)
            return table
        known: KeyedStateInfo = table.info
        if (known.kind, known.namespaced) != (info.kind, info.namespaced):
            raise StateSchemaError(
                f"operator '{self.operator_name}': state '{info.name}' is a {_kind(known)} state in the snapshot, "
                f"but the job declares it as a {_kind(info)} state; give the new state another name"
            )
        if known.ttl != info.ttl:
            before, now = ("with", "without") if known.ttl else ("without", "with")
            raise StateSchemaError(
                f"operator '{self.operator_name}': state '{info.name}' was stored {before} a time to live, but the job "
                f"declares it {now} one. A time to live cannot be switched on or off for state that exists (its length "
                "may change): declare it as before, or give the new state another name"
            )
        table.info = info
        return table

    def keys(self, state_name: str) -> Iterator[Any]:
        table = self._tables.get(state_name)
        if table is None:
            return iter(())
        if table.info.namespaced:
            return iter({key: None for key, _ in table.live_keys()})
        live: Iterator[Any] = table.live_keys()
        return live

    # ------------------------------------------------------------ seen from outside (`state.reading`)

    def readable(self, name: str) -> ReadableTable | None:
        """The table of a state, to look at between two batches; None: there is none of that name."""
        found: ReadableTable | None = self._tables.get(name)
        return found

    def names(self) -> list[str]:
        return list(self._tables)

    def read_rules(self, name: str) -> ReadRules:
        """What has to be known of a state to show what its operator would see. What an aggregating state shows is made
        of a copy of its accumulator."""
        state = self._states.get(name)
        ttl_ms = state.ttl_ms if isinstance(state, TtlState) else None
        function = state.function if isinstance(state, HeapAggregatingState | TtlAggregatingState) else None
        result = None if function is None else lambda accumulator: function.get_result(_copied(accumulator))
        return ReadRules(ttl_ms, self._clock(), result)

    @abc.abstractmethod
    def figures(self) -> dict[str, StateFigures]:
        """How large each state is, by its name."""

    def end_of_batch(self) -> None:
        for sweep in self._sweeps:
            sweep.run()

    def drop_all(self) -> None:
        for table in self._tables.values():
            for key in list(table.live_keys()):
                table.remove(key)

    def _check_same_declaration(self, info: KeyedStateInfo) -> None:
        known = self._tables[info.name].info
        if (known.kind, known.namespaced) != (info.kind, info.namespaced):
            raise ConfigurationError(
                f"operator '{self.operator_name}': state '{info.name}' is declared twice, as a {_kind(known)} state "
                f"and as a {_kind(info)} state; give each state a name of its own"
            )
        if known.ttl != info.ttl:
            raise ConfigurationError(
                f"operator '{self.operator_name}': state '{info.name}' is declared twice, with and without a time to "
                "live; use one descriptor for it"
            )
        if info.hidden:  # one of its descriptors says so
            self._tables[info.name].info = msgspec.structs.replace(known, hidden=True)

    def _owns(self, key: Any) -> bool:
        return self.key_group_range[0] <= stable_hash(key) % self.max_parallelism < self.key_group_range[1]


def aggregate_function(descriptor: StateDescriptor) -> Any:
    return of_type(AggregatingStateDescriptor, descriptor).get_agg_function()


def unknown_kind(descriptor: StateDescriptor) -> ConfigurationError:
    return ConfigurationError(f"state '{descriptor.get_name()}': there is no keyed state of kind '{descriptor.kind}'")


def _type_description(descriptor: StateDescriptor) -> str:
    parts = [getattr(descriptor, "key_type_info", None), descriptor.type_info]
    return ", ".join(str(part) for part in parts if part is not None)


def entry_schema(descriptor: StateDescriptor) -> TypeSchema:
    """The schema of what is kept per entry: the whole list, the whole map."""
    declared = schema_of(descriptor.type_info)
    if isinstance(descriptor, MapStateDescriptor):
        parts = (schema_of(descriptor.key_type_info), declared)
        return UNDECLARED if parts == (UNDECLARED, UNDECLARED) else TypeSchema(kind=MAP, parts=parts)
    if descriptor.kind == "list" and declared != UNDECLARED:
        return TypeSchema(kind=LIST, parts=(declared,))
    return declared


def _copied(value: Any) -> Any:
    return serialization.unpickle(serialization.dumps(value))


def _kind(info: KeyedStateInfo) -> str:
    return f"{info.kind} (per window)" if info.namespaced else info.kind
