"""State whose declared type, or whose dataclass, has changed since it was stored: converted, or refused with both
schemas. Decided when the state is asked for, which is before the job processes anything.

Allowed: a named row gains fields (None in what is stored), loses fields, has them in another order; a dataclass the
same, new fields getting their defaults; an integer becomes a wider one, a float or a decimal; a FLOAT a DOUBLE, a CHAR
a STRING; and all this inside of lists, maps, tuples and rows. A type that is declared for the first time, or no longer,
changes nothing.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from tidegate.common.type_schema import ANY, BYTES, CLASS, LIST, MAP, ROW, TUPLE, UNDECLARED, TypeSchema, class_schema
from tidegate.common.types import Row, make_row
from tidegate.state.dataclass_evolution import StateSchemaError as StateSchemaError
from tidegate.state.dataclass_evolution import dataclass_upgrade

Convert = Callable[[Any], Any]

_BYTES = {TypeSchema(kind=BYTES), TypeSchema(kind=LIST, parts=(TypeSchema(kind="BYTE"),))}
"""Format version 1 did not tell an array of bytes from a list of them."""
_INTEGERS = ("BYTE", "SHORT", "INT", "LONG", "BIG_INT")


class _Incompatible(Exception):
    """Why a value of the old type cannot become one of the new type."""


def migration(
    operator_name: str,
    state: str,
    kind: str,
    ttl: bool,
    old: TypeSchema | None,
    new: TypeSchema | None,
    example: Any,
    others: Iterable[Any] = (),
) -> Convert | None:
    """What turns a stored entry into one of the new type; None: nothing needs doing. `example`: any stored entry, None
    when there is none; `others`: more of them, of which only some are looked at."""
    try:
        convert = _conversion(old or UNDECLARED, new or UNDECLARED)
    except _Incompatible as reason:
        raise StateSchemaError(
            f"operator '{operator_name}': state '{state}' was stored as {old}, but the job declares it as {new}, and "
            f"{reason}; declare it as before, give the new state another name, or change it in a way that is allowed "
            "(docs/concepts/savepoints.md)"
        ) from None
    converted = convert if convert is None or not ttl else _with_times(kind, convert)
    part = _part_of(kind, ttl, example)
    upgrade = dataclass_upgrade(operator_name, state, _class_part(old), part, chain((example,), others))
    if upgrade is None or converted is None:
        return upgrade or converted
    return lambda value: converted(upgrade(value))


# ---------------------------------------------------------------- declared types


def _conversion(old: TypeSchema, new: TypeSchema) -> Convert | None:
    if old == new or ANY in (old.kind, new.kind) or CLASS in (old.kind, new.kind):
        return None
    if old.kind in _INTEGERS:
        return _widened_integer(old, new)
    if (old.kind, new.kind) in (("FLOAT", "DOUBLE"), ("CHAR", "STRING")) or {old, new} == _BYTES:
        return None
    if old.kind != new.kind:
        raise _Incompatible(f"{old} cannot become {new}")
    if old.kind == ROW:
        return _row(old, new)
    if old.kind == TUPLE and len(old.parts) != len(new.parts):
        raise _Incompatible(f"a tuple of {len(old.parts)} fields cannot become one of {len(new.parts)}")
    parts = [_conversion(o, n) for o, n in zip(old.parts, new.parts, strict=True)]
    if not any(parts):
        return None
    if old.kind == TUPLE:
        return lambda value: tuple(_apply(c, v) for c, v in zip(parts, value, strict=True))
    if old.kind == LIST:
        return lambda value: [_apply(parts[0], v) for v in value]
    if old.kind == MAP:
        return lambda value: {_apply(parts[0], k): _apply(parts[1], v) for k, v in value.items()}
    raise _Incompatible(f"{old} cannot become {new}")


def _widened_integer(old: TypeSchema, new: TypeSchema) -> Convert | None:
    if new.kind in _INTEGERS:
        if _INTEGERS.index(new.kind) < _INTEGERS.index(old.kind):
            raise _Incompatible(f"{new} is narrower than {old}")
        return None
    if new.kind in ("FLOAT", "DOUBLE"):
        return float
    if new.kind == "BIG_DEC":
        return decimal.Decimal
    raise _Incompatible(f"{old} cannot become {new}")


def _row(old: TypeSchema, new: TypeSchema) -> Convert | None:
    if not old.names or not new.names:
        if len(old.parts) != len(new.parts):
            raise _Incompatible(
                f"a row of {len(old.parts)} fields without names cannot become one of {len(new.parts)}: only fields "
                "with names can be told apart"
            )
        sources: list[int | None] = list(range(len(old.parts)))
    else:
        sources = [old.names.index(name) if name in old.names else None for name in new.names]
    parts = [None if s is None else _conversion(old.parts[s], n) for s, n in zip(sources, new.parts, strict=True)]
    if sources == list(range(len(old.parts))) and not any(parts):
        return None
    names = new.names or None

    def convert(row: Any) -> Any:
        if not isinstance(row, Row):
            return row  # whatever it is, it was not of its declared type before
        values = [row[s] if s is not None else None for s in sources]
        converted = [_apply(c, v) for c, v in zip(parts, values, strict=True)]
        return make_row(names, converted, row.get_row_kind())

    return convert


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


# ---------------------------------------------------------------- dataclasses


def observed_schema(kind: str, ttl: bool, entry: Any) -> TypeSchema | None:
    """The schema of an entry whose type nobody declared: the dataclass in it, if there is one."""
    part = _part_of(kind, ttl, entry)
    return None if part is None else class_schema(type(part))


def _part_of(kind: str, ttl: bool, entry: Any) -> Any:
    """The value, or the first element of a list or map."""
    if kind == "list":
        entry = entry[0] if entry else None
    elif kind == "map":
        entry = next(iter(entry.values()), None) if entry else None
    return entry[0] if ttl and entry is not None else entry


def _class_part(schema: TypeSchema | None) -> TypeSchema | None:
    return schema if schema is not None and schema.kind == CLASS else None


def _with_times(kind: str, convert: Convert) -> Convert:
    """The migration for entries with a time to live, which keep (value, time) in place of a value."""
    if kind == "list":
        return lambda pairs: [(v, t) for v, (_, t) in zip(convert([v for v, _ in pairs]), pairs, strict=True)]
    if kind == "map":

        def map_entry(pairs: Any) -> Any:
            times = [t for _, t in pairs.values()]
            converted = convert({k: v for k, (v, _) in pairs.items()})
            return {k: (v, t) for (k, v), t in zip(converted.items(), times, strict=True)}

        return map_entry
    return lambda pair: (convert(pair[0]), pair[1])
