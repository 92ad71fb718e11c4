"""The values of records as bytes: pickles, and a short form of numbers, which can be read and written many at once.

What a record begins with says what it is: `0x80` a pickle, `i` an integer of 64 bits, `f` a double, `K` the pickled
original of the record's key (which the key's bytes cannot give back, see `keys.is_exact`) and then one of the others.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from tidegate.state import serialization
from tidegate.state.rocksdb.keys import LENGTH
from tidegate.state.serialization import PROTOCOL, dumps

INT = struct.Struct(">cq")
FLOAT = struct.Struct(">cd")
_NUMBER_SIZE = 9
_PICKLE_START, _INT_START, _FLOAT_START, _FRAMED_START = 0x80, ord("i"), ord("f"), ord("K")
_MANY = 20
"""So many records are worth NumPy's cost per call."""


def encode_record(value: Any) -> bytes:
    """The bytes of one record. Raises what pickle raises."""
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return INT.pack(b"i", value)
    if type(value) is float:
        return FLOAT.pack(b"f", value)
    return pickle.dumps(value, PROTOCOL)


def encode_numbers(values: list[Any]) -> list[bytes] | None:
    """What `encode_record` gives for each, when all are ints of 64 bits or all are floats; None otherwise."""
    if len(values) < _MANY:
        return None
    kinds = set(map(type, values))
    if kinds != {int} and kinds != {float}:
        return None
    import numpy as np

    letter, kind = (b"i", ">i8") if kinds == {int} else (b"f", ">f8")
    records = np.empty(len(values), dtype=[("tag", "S1"), ("number", kind)])
    try:
        records["number"] = values
    except OverflowError:
        return None
    records["tag"] = letter
    encoded: list[bytes] = records.view(f"V{_NUMBER_SIZE}").tolist()
    return encoded


def decode_records(records: list[bytes]) -> list[Any]:
    """The `record_value` of each record."""
    if len(records) >= _MANY and set(map(len, records)) == {_NUMBER_SIZE}:
        import numpy as np

        data = b"".join(records)
        tags = np.frombuffer(data, dtype="u1")[::_NUMBER_SIZE]
        for start, kind in ((_INT_START, ">i8"), (_FLOAT_START, ">f8")):
            if (tags == start).all():
                numbers = np.frombuffer(data, dtype=[("tag", "S1"), ("number", kind)])["number"]
                return numbers.tolist()  # type: ignore[no-any-return]
    return [record_value(record) for record in records]


def record_value(record: bytes) -> Any:
    start = record[0]
    if start == _PICKLE_START:
        return serialization.unpickle(record)
    if start == _INT_START:
        return INT.unpack(record)[1]
    if start == _FLOAT_START:
        return FLOAT.unpack(record)[1]
    return record_value(record[5 + LENGTH.unpack_from(record, 1)[0] :])


def frame(original: Any, data: bytes) -> bytes:
    """A record with the pickled `original` before its value."""
    key = dumps(original)
    return b"K" + LENGTH.pack(len(key)) + key + data


def framed_original(record: bytes) -> Any:
    """What `frame` was given; None for a record without it. (The original is never None.)"""
    if record[0] != _FRAMED_START:
        return None
    return serialization.unpickle(record[5 : 5 + LENGTH.unpack_from(record, 1)[0]])
