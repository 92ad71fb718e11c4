"""Which keys are one key, and that they come back as they were."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid
from typing import NamedTuple

from tests.unit.state.backend_contract.states import (
    LIST,
    MAP,
    REDUCING,
    VALUE,
    Color,
    at,
)
from tidegate.common.types import Row


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass(frozen=True)
class Sensor:
    site: str
    number: int


KEYS = [
    0,
    -5,
    2**70,
    1.5,
    "",
    "k",
    "k\0",
    "kk",
    "\udcff",
    b"",
    b"k",
    None,
    (),
    (1, "a"),
    (1, ("a", None)),
    decimal.Decimal("0.1"),
    Color.RED,
    Sensor("a", 1),
    Row(a=1, b="x"),
    datetime.datetime(2024, 1, 2, 3, 4, 5),
    datetime.date(2024, 1, 2),
    datetime.timedelta(seconds=1),
    uuid.UUID(int=7),
    Point(3, 4),
    True,
    frozenset({1, 2}),
]


def test_keys_of_all_types_are_told_apart_and_come_back_as_they_were(backends, settled, sink):
    backend = backends.make()
    state, elements, content = backend.get_state(VALUE), backend.get_state(LIST), backend.get_state(MAP)
    for number, key in enumerate(KEYS):
        at(backend, key)
        state.update(number)
        elements.add(number)
        content.put(key, number)
    settled(backend)
    for number, key in enumerate(KEYS):
        at(backend, key)
        assert state.value() == number
        assert list(elements.get()) == [number]
        assert content.items() == [(key, number)]
    for name in "vlm":
        found = list(backend.keys(name))
        assert len(found) == len(KEYS)
        assert sorted(map(repr, found)) == sorted(map(repr, KEYS))
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    assert sorted(map(repr, again.keys("v"))) == sorted(map(repr, KEYS))


def test_equal_keys_are_one_key(backends, settled):
    backend = backends.make()
    state = backend.get_state(REDUCING)
    utc, cet = datetime.UTC, datetime.timezone(datetime.timedelta(hours=1))
    noon = datetime.datetime(2024, 1, 1, 12, tzinfo=utc)
    for same in ([1, 1.0, True, decimal.Decimal(1)], [0.5, decimal.Decimal("0.5")], [noon, noon.astimezone(cet)]):
        for key in same:
            at(backend, key)
            state.add(1)
            settled(backend)
        assert state.get() == len(same)
