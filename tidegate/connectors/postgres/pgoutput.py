"""PostgreSQL's own format of logical replication (`pgoutput`, version 1): bytes of a message to what it says.

A transaction comes whole, when it was committed: Begin, its changes, Commit. A Relation message describes a table
before its first change, and again when it was altered.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any


class Unchanged:
    """The value of a column that was too large to be sent again, and has not changed."""


UNCHANGED = Unchanged()


@dataclass(frozen=True)
class Begin:
    xid: int  # 32 bits


@dataclass(frozen=True)
class Commit:
    end_lsn: int  # behind the transaction


@dataclass(frozen=True)
class Relation:
    """A table as it was at the time of the changes that follow, under the name that it had then."""

    number: int
    schema: str
    name: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    keys: tuple[bool, ...]


@dataclass(frozen=True)
class Change:
    """`old` is the row before: whole, only its key (the other values are None), or None when it was not sent or there
    was none. `new` is None for a delete."""

    relation: int
    old: tuple[Any, ...] | None
    new: tuple[Any, ...] | None
    is_insert: bool


@dataclass(frozen=True)
class Truncate:
    relations: tuple[int, ...]


Message = Begin | Commit | Relation | Change | Truncate


def parse(data: bytes) -> Message | None:
    """None: a kind of message that says nothing about rows."""
    match data[0:1]:
        case b"B":
            return Begin(struct.unpack_from("!I", data, 17)[0])
        case b"C":
            return Commit(struct.unpack_from("!q", data, 10)[0])
        case b"R":
            return _relation(data)
        case b"I":
            new, _ = _tuple(data, 6)
            return Change(struct.unpack_from("!I", data, 1)[0], None, new, True)
        case b"U":
            return _update(data)
        case b"D":
            old, _ = _tuple(data, 6)
            return Change(struct.unpack_from("!I", data, 1)[0], old, None, False)
        case b"T":
            (count,) = struct.unpack_from("!i", data, 1)
            return Truncate(struct.unpack_from(f"!{count}I", data, 6))
        case _:
            return None


def _update(data: bytes) -> Change:
    (relation,) = struct.unpack_from("!I", data, 1)
    kind, at = data[5:6], 6
    old = None
    if kind in (b"K", b"O"):
        old, at = _tuple(data, at)
        at += 1  # the 'N' before the new row
    new, _ = _tuple(data, at)
    if kind == b"O" and old is not None:
        new = tuple([before if now is UNCHANGED else now for before, now in zip(old, new, strict=True)])
    return Change(relation, old, new, False)


def _tuple(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    (count,) = struct.unpack_from("!h", data, at)
    at += 2
    values: list[Any] = []
    for _ in range(count):
        kind = data[at : at + 1]
        at += 1
        if kind == b"t":
            (length,) = struct.unpack_from("!i", data, at)
            values.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        else:
            values.append(None if kind == b"n" else UNCHANGED)
    return tuple(values), at


def _relation(data: bytes) -> Relation:
    (number,) = struct.unpack_from("!I", data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    (count,) = struct.unpack_from("!h", data, at + 1)
    at += 3
    columns, types, keys = [], [], []
    for _ in range(count):
        keys.append(bool(data[at] & 1))
        column, at = _text(data, at + 1)
        columns.append(column)
        types.append(struct.unpack_from("!I", data, at)[0])
        at += 8
    return Relation(number, schema, name, tuple(columns), tuple(types), tuple(keys))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
