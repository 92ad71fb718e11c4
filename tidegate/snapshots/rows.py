"""The rows that a state is shown as, and the table they make.

| kind | a row per | columns |
|---|---|---|
| value, reducing, aggregating | key | key_group, key, value |
| list | element | key_group, key, position, value |
| map | map entry | key_group, key, map_key, map_value |
| timers | timer | key_group, key, timestamp |
| operator list, union list | item | subtask, position, value |
| broadcast | map entry | subtask, map_key, map_value |

and `namespace` for state that is kept per window, `last_access` with a time to live, and the pickled bytes of each key
and value that its column does not show completely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress
from typing import TYPE_CHECKING, Any

from tidegate.common.type_schema import LIST, MAP, TypeSchema
from tidegate.snapshots.columns import Column, declared_column, encode, inferred_column, text_column
from tidegate.snapshots.hashing import groups_of
from tidegate.state.savepoint.values import text_of

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 16_384


@dataclass
class Rows:
    """Some rows of one state, column by column, all equally long; None for columns that the kind does not have."""

    values: Any  # list, or an array of NumPy or Arrow
    keys: Any = None
    groups: Any = None  # None: not known yet
    namespaces: list[Any] | None = None
    positions: Any = None
    map_keys: list[Any] | None = None
    times: list[int] | None = None  # of the last access, ms
    subtasks: list[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def only(self, wanted: Sequence[bool]) -> Rows:
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        return Rows(**{n: None if c is None else list(compress(c, wanted)) for n, c in kept.items()})


def flatten(
    kind: str, ttl: bool, keys: Any, namespaces: list[Any] | None, values: list[Any], groups: Any = None
) -> Iterator[Rows]:
    """Entries as the backends store them (see `state.entries`), as rows, in bounded numbers."""
    if kind == "timers":
        assert namespaces is not None
        stamps = [n[1] for n in namespaces]
        yield Rows(values=stamps, keys=keys, namespaces=[n[0] for n in namespaces], groups=groups)
    elif kind in ("list", "map"):
        yield from _flatten_parts(kind, ttl, keys, namespaces, values)
    elif ttl:
        shown, times = [v[0] for v in values], [v[1] for v in values]
        yield Rows(values=shown, keys=keys, namespaces=namespaces, times=times, groups=groups)
    else:
        yield Rows(values=values, keys=keys, namespaces=namespaces, groups=groups)


def _flatten_parts(kind: str, ttl: bool, keys: Any, namespaces: Any, values: list[Any]) -> Iterator[Rows]:
    collected = PartCollector(kind, ttl, namespaces is not None)
    for number, (key, content) in enumerate(zip(keys, values, strict=True)):
        namespace = None if namespaces is None else namespaces[number]
        yield from collected.add_all(key, namespace, content)
    yield from collected.rest()


class PartCollector:
    """Elements of lists, entries of maps: gathered until there are enough for a batch."""

    def __init__(self, kind: str, ttl: bool, namespaced: bool) -> None:
        self._kind = kind
        self._ttl = ttl
        self._namespaced = namespaced
        self._clear()

    def _clear(self) -> None:
        self._keys: list[Any] = []
        self._namespaces: list[Any] = []
        self._seconds: list[Any] = []  # positions, or map keys
        self._values: list[Any] = []

    def add_all(self, key: Any, namespace: Any, content: Any, first: int = 0) -> Iterator[Rows]:
        """A whole list (its elements counted from `first`) or a whole map."""
        pairs: Iterable[tuple[Any, Any]]
        if self._kind == "map":
            pairs = content.items() if isinstance(content, dict) else [(None, content)]
        else:
            pairs = enumerate(content if isinstance(content, list | tuple) else [content], first)
        for second, value in pairs:
            self.add(key, namespace, second, value)
            if len(self._values) >= ROWS_PER_BATCH:
                yield from self.rest()

    def add(self, key: Any, namespace: Any, second: Any, value: Any) -> None:
        self._keys.append(key)
        self._namespaces.append(namespace)
        self._seconds.append(second)
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    def rest(self) -> Iterator[Rows]:
        if not self._values:
            return
        values, times = self._values, None
        if self._ttl:
            pairs = [v if isinstance(v, tuple) and len(v) == 2 else (v, 0) for v in values]
            values, times = [p[0] for p in pairs], [p[1] for p in pairs]
        rows = Rows(values=values, keys=self._keys, times=times)
        rows.namespaces = self._namespaces if self._namespaced else None
        if self._kind == "map":
            rows.map_keys = self._seconds
        else:
            rows.positions = self._seconds
        self._clear()
        yield rows


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class Layout:
    """The columns of one state's table."""

    kind: str
    namespaced: bool
    ttl: bool
    max_parallelism: int
    value: Column
    key: Column | None = None  # None for operator state
    map_key: Column | None = None
    selected: tuple[str, ...] | None = None  # these columns only, in this order

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([(name, kind) for name, (kind, _) in self._columns().items() if self._wanted(name)])

    def _wanted(self, name: str) -> bool:
        return self.selected is None or name in self.selected

    def names(self) -> list[str]:
        """All that there are, whatever is selected."""
        return list(self._columns())

    def with_types(self, wanted: pa.Schema) -> Layout:
        """Only these columns, and their types for keys and values. Unknown names are the caller's error."""
        import pyarrow as pa

        changed: dict[str, Column] = {}
        for attribute, name in (("key", "key"), ("map_key", "map_key"), ("value", self._value_name())):
            before: Column | None = getattr(self, attribute)
            if before is not None and name in wanted.names:
                kind = wanted.field(name).type
                changed[attribute] = Column(kind, before.partial or pa.types.is_nested(kind))
        return replace(self, selected=tuple(wanted.names), **changed)  # type: ignore[arg-type]

    def _value_name(self) -> str:
        if self.kind == "timers":
            return "timestamp"
        return "map_value" if self.kind in ("map", "broadcast") else "value"

    def _columns(self) -> dict[str, tuple[pa.DataType, Callable[[_Encoded], Any]]]:
        """Name -> (type, how to get it)."""
        import pyarrow as pa

        found: dict[str, tuple[pa.DataType, Callable[[_Encoded], Any]]] = {}
        if self.key is not None:
            found["key_group"] = pa.int32(), lambda e: e.groups()
            found["key"] = self.key.type, lambda e: e.key[0]
        else:
            found["subtask"] = pa.int32(), lambda e: pa.array(e.rows.subtasks, pa.int32())
        if self.namespaced:
            found["namespace"] = pa.string(), lambda e: pa.array(map(text_of, e.rows.namespaces or ()), pa.string())
        if self.kind in ("list", "operator list", "union list"):
            found["position"] = pa.int32(), lambda e: pa.array(e.rows.positions, pa.int32())
        if self.map_key is not None:
            found["map_key"] = self.map_key.type, lambda e: e.map_key[0]
        found[self._value_name()] = self.value.type, lambda e: e.value[0]
        if self.ttl:
            found["last_access"] = pa.timestamp("us", "UTC"), lambda e: e.times()
        if self.key is not None:
            found["key_pickled"] = pa.binary(), lambda e: e.key[1]
        if self.map_key is not None:
            found["map_key_pickled"] = pa.binary(), lambda e: e.map_key[1]
        if self.kind != "timers":
            found[f"{self._value_name()}_pickled"] = pa.binary(), lambda e: e.value[1]
        return found

    def batch(self, rows: Rows) -> pa.RecordBatch:
        import pyarrow as pa

        encoded = _Encoded(self, rows)
        columns = [get(encoded) for name, (_, get) in self._columns().items() if self._wanted(name)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema())


class _Encoded:
    """The columns of some rows, made when they are asked for."""

    def __init__(self, layout: Layout, rows: Rows) -> None:
        self._layout = layout
        self.rows = rows
        self._made: dict[str, Any] = {}

    def _encode(self, name: str, values: Any, column: Column | None) -> tuple[Any, Any]:
        if name not in self._made:
            assert column is not None
            self._made[name] = values if isinstance(values, _Ready) else encode(values, column)
        found: tuple[Any, Any] = self._made[name]
        return found

    @property
    def key(self) -> tuple[Any, Any]:
        return self._encode("key", self.rows.keys, self._layout.key)

    @property
    def map_key(self) -> tuple[Any, Any]:
        return self._encode("map_key", self.rows.map_keys, self._layout.map_key)

    @property
    def value(self) -> tuple[Any, Any]:
        return self._encode("value", self.rows.values, self._layout.value)

    def groups(self) -> Any:
        import pyarrow as pa

        groups = self.rows.groups
        return pa.array(
            groups_of(self.rows.keys, self._layout.max_parallelism) if groups is None else groups, pa.int32()
        )

    def times(self) -> Any:
        import numpy as np
        import pyarrow as pa

        return pa.array(np.array(self.rows.times, dtype=np.int64) * 1000, pa.timestamp("us", "UTC"))


class _Ready(tuple[Any, Any]):
    """A column that is Arrow's already, with its pickled bytes."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(tuple.__getitem__(self, 0))


def ready(column: Any, pickled: Any) -> Any:
    """Goes into `Rows` in place of a list."""
    return _Ready((column, pickled))


# ---------------------------------------------------------------- types


def types_known(kind: str, schema: TypeSchema | None, key: TypeSchema | None) -> bool:
    """Whether the declarations say everything, so that nothing has to be read to know the columns."""
    return (kind == "timers" or declared_column(schema) is not None) and declared_column(key) is not None


def make_layout(
    kind: str,
    schema: TypeSchema | None,
    key: TypeSchema | None,
    *,
    namespaced: bool,
    ttl: bool,
    max_parallelism: int,
    sample: Rows | None,
) -> Layout:
    """`schema` and `key` as declared; what was not is inferred from `sample` (None: there are no rows)."""
    import pyarrow as pa

    def column(declared: TypeSchema | None, values: Any) -> Column:
        found = declared_column(declared)
        if found is not None:
            return found
        return text_column() if sample is None or values is None else inferred_column(values)

    keyed = kind not in ("operator list", "union list", "broadcast")
    map_key: Column | None = None
    part = schema
    if kind in ("map", "broadcast"):
        declared_map = schema if schema is not None and schema.kind == MAP else None
        map_key = column(declared_map.parts[0] if declared_map else None, sample.map_keys if sample else None)
        part = declared_map.parts[1] if declared_map else None
    elif kind == "list":
        part = schema.parts[0] if schema is not None and schema.kind == LIST else None
    value = Column(pa.int64()) if kind == "timers" else column(part, sample.values if sample else None)
    return Layout(
        kind=kind,
        namespaced=namespaced,
        ttl=ttl,
        max_parallelism=max_parallelism,
        value=value,
        key=column(key, sample.keys if sample else None) if keyed else None,
        map_key=map_key,
    )
