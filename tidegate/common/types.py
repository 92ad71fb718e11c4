"""Row, the record with named fields, and RowKind, the kind of change that a row stands for."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from datetime import datetime, time
from functools import lru_cache
from typing import Any


class RowKind(enum.Enum):
    """The kind of change a row stands for in a changelog. `str()` gives the short form."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self) -> str:
        return _SHORT_KIND[self]


_SHORT_KIND = {
    RowKind.INSERT: "+I",
    RowKind.UPDATE_BEFORE: "-U",
    RowKind.UPDATE_AFTER: "+U",
    RowKind.DELETE: "-D",
}
_KIND_BY_VALUE = tuple(RowKind)


class Row:
    """A record of fields by position and, when they have names, by name.

    ::

        Row(1, "a")[0]                  # by position
        Row(name="x", age=3).name       # by name; also row["name"]
        Person = Row("name", "age")     # a row of strings is also a schema:
        Person("x", 3)                  # Row(name='x', age=3)

    Rows are equal when kind, names and values are. A row is hashable when its values are; do not change one that is in
    use as a key. Fields are set with `row[0] = ...` or `row["name"] = ...`.
    """

    __slots__ = ("_fields", "_row_kind", "_values")

    _fields: tuple[str, ...] | None  # one name per value, None for a row without names
    _values: list[Any]
    _row_kind: RowKind

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError("A Row takes either values or name=value pairs, not both.")
        if kwargs:
            self._fields = tuple(kwargs)
            self._values = list(kwargs.values())
        else:
            self._fields = None
            self._values = list(args)
        self._row_kind = RowKind.INSERT

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> Row:
        row = Row(*args, **kwargs)
        row.set_row_kind(row_kind)
        return row

    def get_row_kind(self) -> RowKind:
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        if not isinstance(row_kind, RowKind):
            raise TypeError(f"set_row_kind takes a RowKind, got {row_kind!r}.")
        self._row_kind = row_kind

    def set_field_names(self, field_names: Iterable[str]) -> None:
        names = tuple(field_names)
        if len(names) != len(self._values):
            raise ValueError(f"{len(names)} field names {list(names)} for a row of {len(self._values)} values.")
        if len(set(names)) != len(names):
            raise ValueError(f"Field names of a row must differ: {list(names)}.")
        self._fields = names

    def get_fields_by_names(self, names: Iterable[str]) -> list[Any]:
        """The values of these fields, in the order of `names`. A row without names gives all its values."""
        wanted = tuple(names)
        if self._fields is None or wanted == self._fields:
            return list(self._values)
        missing = [name for name in wanted if name not in self._fields]
        if missing:
            raise ValueError(f"The row has no fields {missing}; it has {list(self._fields)}.")
        return [self._values[self._fields.index(name)] for name in wanted]

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Names to values; with `recursive` also for rows inside of lists, tuples, dicts and rows."""
        if self._fields is None:
            raise TypeError("Cannot turn a Row without field names into a dict.")
        values = [_plain(v) for v in self._values] if recursive else self._values
        return dict(zip(self._fields, values, strict=True))

    def __call__(self, *args: Any) -> Row:
        """Use this row of names as a schema for new rows."""
        if len(args) != len(self._values):
            raise TypeError(f"The row schema {self._values} takes {len(self._values)} values, got {len(args)}.")
        row = Row(*args)
        row.set_field_names(self._values)
        return row

    def _position(self, name: str) -> int:
        if self._fields is None:
            raise ValueError(f"The row has no field names, so no field {name!r}.")
        return self._fields.index(name)

    def __getitem__(self, item: int | slice | str) -> Any:
        if isinstance(item, str):
            try:
                return self._values[self._position(item)]
            except ValueError:
                raise KeyError(f"no field {item!r} in {self!r}") from None
        return self._values[item]

    def __setitem__(self, item: int | slice | str, value: Any) -> None:
        if isinstance(item, str):
            try:
                self._values[self._position(item)] = value
            except ValueError:
                raise KeyError(f"no field {item!r} in {self!r}") from None
        else:
            self._values[item] = value

    def __getattr__(self, name: str) -> Any:
        # Dunder names are asked for by copy and pickle, also on a row that is not filled yet.
        if name.startswith("__") or name in Row.__slots__:
            raise AttributeError(name)
        try:
            return self._values[self._position(name)]
        except ValueError:
            raise AttributeError(f"no field {name!r} in {self!r}") from None

    def __contains__(self, item: object) -> bool:
        return item in self._values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row):
            return NotImplemented
        if self._row_kind is not other._row_kind:
            return False
        if self._fields == other._fields:
            return self._values == other._values
        if self._fields is None or other._fields is None:
            return False
        same_names = in_name_order(self._fields) == in_name_order(other._fields)
        return same_names and self.values_by_name() == other.values_by_name()

    def __hash__(self) -> int:
        return hash((self._row_kind.value, tuple(self.values_by_name())))

    def values_by_name(self) -> list[Any]:
        """The values in the order of the fields' names, which equal rows have in common; without names, as they are."""
        return self.get_fields_by_names(() if self._fields is None else in_name_order(self._fields))

    def values_in_order(self, names: tuple[str, ...]) -> list[Any]:
        """The values, found by name when the row has exactly these names, in any order; by position otherwise."""
        own = self._fields
        same_names = own is not None and own != names and in_name_order(own) == in_name_order(names)
        return self.get_fields_by_names(names) if same_names else list(self._values)

    def __repr__(self) -> str:
        if self._fields is None:
            return f"Row({', '.join(map(repr, self._values))})"
        return f"Row({', '.join(f'{n}={v!r}' for n, v in zip(self._fields, self._values, strict=True))})"

    def __str__(self) -> str:
        """The row as Flink prints it: kind and values, e.g. `+I[a, 1, null]`."""
        return f"{self._row_kind}[{', '.join(map(flink_text, self._values))}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_row, (self._fields, self._values, self._row_kind.value)

    def __copy__(self) -> Row:
        return make_row(self._fields, list(self._values), self._row_kind)


def make_row(fields: tuple[str, ...] | None, values: list[Any], kind: RowKind = RowKind.INSERT) -> Row:
    """A row around exactly these objects, without the checks and copies of the constructor (for the hot path)."""
    row = Row.__new__(Row)
    row._fields = fields
    row._values = values
    row._row_kind = kind
    return row


def _restore_row(fields: tuple[str, ...] | None, values: list[Any], kind: int) -> Row:
    return make_row(fields, values, _KIND_BY_VALUE[kind])


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(True)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if type(value) is tuple:
        return tuple(_plain(v) for v in value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


@lru_cache(maxsize=1024)
def in_name_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a row, sorted. Rows are keys: sorting for every hash would show."""
    return tuple(sorted(names))


def values_of_fields(record: Any, names: tuple[str, ...]) -> list[Any]:
    """The values of the fields: of a dict by name, None for what it lacks; of a row as `values_in_order` gives them; of
    anything else by position."""
    if isinstance(record, dict):
        return [record.get(name) for name in names]
    return record.values_in_order(names) if isinstance(record, Row) else list(record)


def flink_text(value: Any) -> str:
    """The text that Flink prints for a value of a declared type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"({','.join(map(flink_text, value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(flink_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flink_text(k)}={flink_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bytes | bytearray):  # signed, as Java's
        return f"[{', '.join(str(byte - 256 if byte > 127 else byte) for byte in value)}]"
    if isinstance(value, time) and value.microsecond:
        return str(value).rstrip("0") if value.tzinfo is None else str(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        fraction = f"{value.microsecond:06}".rstrip("0") or "0"
        return f"{value:%Y-%m-%d %H:%M:%S}.{fraction}"
    return str(value)
