"""Keys as bytes: equal values have equal bytes, as they are one entry of a dict.

A record of the database has the key::

    key group (2) | state (2) | length (4) key | length (4) namespace, for states that have them | rest

so that the key groups are contiguous ranges, and what belongs to one entry stands together: `rest` is empty for a
single value, the position of a list's chunk, or the key of a map entry.

The bytes are made for comparing: 1, 1.0 and True are one key. Only values of a few exact types can be read back from
them (`is_exact`); for others the record's value carries the pickled key (see `records.frame`).
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import numbers
import pickle
import struct
import uuid
from collections.abc import Callable
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.state.key_groups import stable_hash
from tidegate.state.serialization import PROTOCOL

HEADER = struct.Struct(">HHI")
RANGE = struct.Struct(">HH")
GROUP = struct.Struct(">H")
LENGTH = struct.Struct(">I")
_INT = struct.Struct(">cq")
_FLOAT = struct.Struct(">cd")
_INT_KEY = struct.Struct(">HHIcq")

_MICROSECOND = datetime.timedelta(microseconds=1)


class EntryCodec:
    """Makes the record keys of one state's entries, and reads them back."""

    def __init__(self, state: int, max_parallelism: int, namespaced: bool) -> None:
        self.state = state
        self.namespaced = namespaced
        self.max_parallelism = max_parallelism

    def encode(self, entry: Any) -> bytes:
        """The record key of a single value, and what the record keys of a list or map begin with."""
        key = entry[0] if self.namespaced else entry
        group = stable_hash(key) % self.max_parallelism
        if type(key) is int and -(1 << 63) <= key < 1 << 63:  # written out: most keys
            encoded = _INT_KEY.pack(group, self.state, 9, b"i", key)
        else:
            data = encode_value(key)
            encoded = HEADER.pack(group, self.state, len(data)) + data
        if not self.namespaced:
            return encoded
        data = encode_value(entry[1])
        return encoded + LENGTH.pack(len(data)) + data

    def split(self, record_key: bytes) -> int:
        """The place in the record key at which `rest` begins."""
        end = HEADER.size + LENGTH.unpack_from(record_key, 4)[0]
        if self.namespaced:
            end += 4 + LENGTH.unpack_from(record_key, end)[0]
        return int(end)

    def decode(self, record_key: bytes) -> Any:
        """The entry of a record key, when the key holds it exactly."""
        end = HEADER.size + LENGTH.unpack_from(record_key, 4)[0]
        key = decode_value(record_key[HEADER.size : end])
        if not self.namespaced:
            return key
        size = LENGTH.unpack_from(record_key, end)[0]
        return key, decode_value(record_key[end + 4 : end + 4 + size])

    def range(self, group: int) -> tuple[bytes, bytes]:
        """All records of the state in a key group: [first, end)."""
        return RANGE.pack(group, self.state), RANGE.pack(group, self.state + 1)


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix` (which never consists of 0xff only)."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


# ---------------------------------------------------------------- encoding


def is_exact(value: Any) -> bool:
    """`decode_value(encode_value(value))` has the same value and the same type."""
    kind = type(value)
    if kind is int or kind is str or kind is bytes or value is None:
        return True
    if kind is float:
        return not value.is_integer()
    return kind is tuple and all(map(is_exact, value))


def encode_value(value: Any) -> bytes:
    if type(value) is int:
        return _INT.pack(b"i", value) if -(1 << 63) <= value < 1 << 63 else b"I%d" % value
    if type(value) is str:
        return b"s" + value.encode("utf-8", "surrogatepass")
    if type(value) is bytes:
        return b"b" + value
    if value is None:
        return b"n"
    if isinstance(value, tuple) and type(value).__eq__ is tuple.__eq__:
        return b"t" + _sequence(value)
    return _encode_other(value)


def decode_value(data: bytes) -> Any:
    tag, rest = data[:1], data[1:]
    if tag == b"i":
        return _INT.unpack(data)[1]
    if tag == b"I":
        return int(rest)
    if tag == b"s":
        return rest.decode("utf-8", "surrogatepass")
    if tag == b"b":
        return rest
    if tag == b"n":
        return None
    if tag == b"f":
        return _FLOAT.unpack(data)[1]
    if tag == b"t":
        items, offset = [], 4
        for _ in range(LENGTH.unpack_from(rest)[0]):
            size = LENGTH.unpack_from(rest, offset)[0]
            items.append(decode_value(rest[offset + 4 : offset + 4 + size]))
            offset += 4 + size
        return tuple(items)
    raise ValueError(f"a key that begins with {tag!r} cannot be read back from its bytes")


def _sequence(values: Any) -> bytes:
    parts = [LENGTH.pack(len(values))]
    for value in values:
        data = encode_value(value)
        parts += (LENGTH.pack(len(data)), data)
    return b"".join(parts)


def _encode_other(value: Any) -> bytes:
    """The same cases as in the hash of `state.key_groups`: what is equal and has one hash there has one encoding
    here."""
    from tidegate.common.types import Row, in_name_order

    cls: Any = type(value)
    name = f"{cls.__module__}.{cls.__qualname__}"
    if getattr(cls, "__tidegate_stable_pickle__", False):
        return b"p" + _sequence((name, _plain_pickle(value)))
    if isinstance(value, Row):
        fields, _, kind = value.__reduce__()[1]
        names = None if fields is None else in_name_order(fields)  # equal rows may have another order
        return b"r" + _sequence((kind, names, tuple(value.values_by_name())))
    if dataclasses.is_dataclass(value):
        compared = [f.name for f in dataclasses.fields(value) if f.compare]
        return b"c" + _sequence((name, *(getattr(value, n) for n in compared)))
    if isinstance(value, enum.Enum) and not isinstance(value, numbers.Real | str | bytes):
        return b"e" + _sequence((name, value.name))
    if isinstance(value, numbers.Real | decimal.Decimal):
        return _number(value)
    for base, encode in _BASES:
        if isinstance(value, base):
            return encode(value)
    if cls.__eq__ is object.__eq__ or cls.__hash__ is None:
        raise ConfigurationError(
            f"a value of type {name} cannot be a key of RocksDB state: it is equal to nothing but itself, so it could "
            "not be found again; use a str, an int or a tuple of such values"
        )
    return b"p" + _sequence((name, _plain_pickle(value)))


def _number(value: Any) -> bytes:
    """Equal numbers are equal across types, so what is an integer becomes one, and what is a double becomes that."""
    try:
        whole = int(value)
        if whole == value:
            return encode_value(whole)
    except (OverflowError, ValueError):  # infinite
        return _FLOAT.pack(b"f", float(value))
    try:
        if (double := float(value)) == value:
            return _FLOAT.pack(b"f", double)
    except OverflowError:
        pass
    ratio = fractions.Fraction(value)
    return b"q" + _sequence((ratio.numerator, ratio.denominator))


def _moment(value: datetime.datetime) -> bytes:
    offset = value.replace(fold=0).utcoffset()
    elapsed = (value.replace(tzinfo=None, fold=0) - datetime.datetime.min) // _MICROSECOND
    if offset is None:
        return b"d" + _sequence((0, elapsed))
    return b"d" + _sequence((1, elapsed - offset // _MICROSECOND))


def _time_of_day(value: datetime.time) -> bytes:
    offset = value.replace(fold=0).utcoffset()
    elapsed = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    if offset is None:
        return b"d" + _sequence((2, elapsed))
    return b"d" + _sequence((3, elapsed - offset // _MICROSECOND))


def _frozenset(value: frozenset[Any]) -> bytes:
    return b"z" + _sequence(tuple(sorted(map(encode_value, value))))


def _plain_pickle(value: Any) -> bytes:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, PROTOCOL)
    pickler.fast = True  # without a memo: equal parts need not be the same object
    pickler.dump(value)
    return buffer.getvalue()


_BASES: tuple[tuple[type, Callable[[Any], bytes]], ...] = (
    (str, lambda v: b"s" + str.encode(v, "utf-8", "surrogatepass")),
    (bytes, lambda v: b"b" + bytes(v)),
    (frozenset, _frozenset),
    (datetime.datetime, _moment),
    (datetime.date, lambda v: b"d" + _sequence((4, v.toordinal()))),
    (datetime.time, _time_of_day),
    (datetime.timedelta, lambda v: b"d" + _sequence((5, v // _MICROSECOND))),
    (uuid.UUID, lambda v: b"u" + v.bytes),
)
