"""Prints the vectors of key_group_vectors.json as this process computes them: for other seeds and Python versions."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import uuid

from tidegate.common.types import Row
from tidegate.state.key_groups import key_group, stable_hash


class Colour(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    SMALL = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    name: str


UTC = datetime.UTC
PLUS_TWO = datetime.timezone(datetime.timedelta(hours=2))

KEYS = {
    "none": None,
    "int 0": 0,
    "int 1": 1,
    "int -1": -1,
    "int 123456789": 123456789,
    "int 2**61": 2**61,
    "int 2**200": 2**200,
    "int -(2**63)": -(2**63),
    "true": True,
    "float 1.0": 1.0,
    "float 0.5": 0.5,
    "float -2.75": -2.75,
    "float infinity": float("inf"),
    "decimal 0.1": decimal.Decimal("0.1"),
    "fraction 1/3": fractions.Fraction(1, 3),
    "str empty": "",
    "str abc": "abc",
    "str umlaut": "Grüße",
    "str surrogate": "\ud800",
    "bytes empty": b"",
    "bytes abc": b"abc",
    "tuple empty": (),
    "tuple 1 a": (1, "a"),
    "tuple nested": (1, ("a", None), 2.5),
    "frozenset": frozenset({"a", "b", 3}),
    "enum": Colour.RED,
    "int enum": Size.SMALL,
    "dataclass": Point(1, "p"),
    "row": Row(1, "a"),
    "datetime naive": datetime.datetime(2024, 2, 29, 12, 30, 15, 123456),
    "datetime utc": datetime.datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    "datetime +02:00": datetime.datetime(2024, 2, 29, 14, 30, tzinfo=PLUS_TWO),
    "date": datetime.date(2024, 2, 29),
    "time naive": datetime.time(12, 30),
    "time +02:00": datetime.time(12, 30, tzinfo=PLUS_TWO),
    "timedelta": datetime.timedelta(days=-1, microseconds=5),
    "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
}


def vectors() -> dict[str, dict[str, object]]:
    # Class names are part of the hash: pin the module, which is __main__ or a test module.
    for cls in (Colour, Point):
        cls.__module__ = "vectors"
    return {
        name: {"hash": f"{stable_hash(key):016x}", "group_of_128": key_group(key, 128)} for name, key in KEYS.items()
    }


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=2))
