from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import os
import subprocess
import sys
from collections import namedtuple
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.state.make_key_group_vectors import vectors
from tidegate.common.errors import ConfigurationError
from tidegate.common.types import Row
from tidegate.state.key_groups import (
    KeyRouter,
    declare_stable_pickle,
    key_group,
    key_group_range,
    selector_without_lists,
    stable_hash,
    unhashable_key,
)

HERE = Path(__file__).parent
PUBLISHED = json.loads((HERE / "key_group_vectors.json").read_text())

Pair = namedtuple("Pair", "a b")


def test_the_published_vectors_hold() -> None:
    assert vectors() == PUBLISHED


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_hashes_do_not_depend_on_the_process(seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(HERE.parents[2])}
    script = HERE / "make_key_group_vectors.py"
    printed = subprocess.run([sys.executable, script], env=environment, capture_output=True, check=True).stdout
    assert json.loads(printed) == PUBLISHED


class Weight(enum.IntEnum):
    LIGHT = 1


class Name(str, enum.Enum):  # noqa: UP042 (many programs still write it so)
    A = "a"


EQUAL = [
    (1, 1.0, True, decimal.Decimal(1), fractions.Fraction(1), Weight.LIGHT, np.int64(1), np.float64(1.0)),
    (0, -0.0, False, decimal.Decimal("-0.00")),
    (0.5, decimal.Decimal("0.5"), fractions.Fraction(1, 2)),
    ("a", Name.A, np.str_("a")),
    ((1, "a"), (1.0, "a"), Pair(1, "a"), (True, Name.A)),
    (
        datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC),
        datetime.datetime(2024, 1, 1, 14, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    ),
    (Row(1, "a"), Row(1.0, "a")),
    (Row(a=1, b="x"), Row(b="x", a=1.0)),
    (enum.Flag("Rights", "READ WRITE")(0),) * 2,  # has no name
]


@pytest.mark.parametrize("group", EQUAL)
def test_equal_keys_have_equal_hashes(group: tuple[object, ...]) -> None:
    assert all(key == group[0] for key in group)
    assert len({stable_hash(key) for key in group}) == 1


scalar_keys = st.one_of(
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.text(),
    st.binary(),
    st.none(),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
)
keys = st.recursive(scalar_keys, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


@given(keys, keys)
def test_hashes_follow_equality(a: object, b: object) -> None:
    hash_a, hash_b = stable_hash(a), stable_hash(b)
    assert 0 <= hash_a < 2**64
    if a == b:
        assert hash_a == hash_b


@given(st.fractions())
def test_numbers_of_all_types_agree(number: fractions.Fraction) -> None:
    if number == float(number):
        assert stable_hash(number) == stable_hash(float(number))
    if number.denominator == 1:
        assert stable_hash(number) == stable_hash(int(number)) == stable_hash(decimal.Decimal(int(number)))


def test_types_that_are_not_equal_are_kept_apart() -> None:
    apart = ["1", b"1", 1, (1,), frozenset({1}), None, (), "", b"", datetime.date(1, 1, 1), datetime.datetime(1, 1, 1)]
    assert len({stable_hash(key) for key in apart}) == len(apart)


@pytest.mark.parametrize("nan", [float("nan"), decimal.Decimal("NaN"), (1, float("nan")), np.float32("nan")])
def test_nan_is_refused(nan: object) -> None:
    with pytest.raises(ConfigurationError, match="NaN"):
        stable_hash(nan)


@dataclasses.dataclass(frozen=True)
class Position:
    x: int
    y: int
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass
class Mutable:
    x: int


@dataclasses.dataclass(frozen=True, eq=False)
class ByIdentity:
    x: int


@dataclasses.dataclass(frozen=True)
class OwnEquality:
    x: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class Plain:
    pass


class Caseless(str):
    def __eq__(self, other: object) -> bool:
        return self.lower() == other

    def __hash__(self) -> int:
        return hash(self.lower())


def test_dataclasses_hash_by_class_and_compared_fields() -> None:
    assert stable_hash(Position(1, 2, "a")) == stable_hash(Position(1.0, 2, "b"))  # type: ignore[arg-type]
    assert stable_hash(Position(1, 2)) != stable_hash(Position(2, 1))


@pytest.mark.parametrize("key", [Plain(), Mutable(1), ByIdentity(1), OwnEquality(1), Caseless("A"), [1], {}, object])
def test_other_types_are_refused_with_their_name_and_advice(key: object) -> None:
    with pytest.raises(ConfigurationError) as raised:
        stable_hash(key)
    assert type(key).__name__ in str(raised.value)
    assert "key selector" in str(raised.value)
    assert "declare_stable_pickle" in str(raised.value)


def test_a_list_inside_a_tuple_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="list"):
        stable_hash((1, [2]))


def test_a_declared_class_hashes_by_its_pickle() -> None:
    @declare_stable_pickle
    class Version:
        def __init__(self, parts: list[str]) -> None:
            self.parts = parts

        def __reduce__(self) -> tuple[object, ...]:
            return (tuple, (self.parts,))

    shared = "".join(["1", "0"])
    assert stable_hash(Version([shared, shared])) == stable_hash(Version(["10", "".join(["1", "0"])]))
    assert stable_hash(Version(["1"])) != stable_hash(Version(["2"]))


@given(st.integers(1, 300).flatmap(lambda p: st.tuples(st.just(p), st.integers(p, 400))))
def test_ranges_are_contiguous_cover_everything_and_agree_with_the_routing(sizes: tuple[int, int]) -> None:
    parallelism, max_parallelism = sizes
    ranges = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == max_parallelism
    assert all(a[1] == b[0] and a[0] < a[1] for a, b in pairwise(ranges))
    for subtask, (start, end) in enumerate(ranges):
        assert all(group * parallelism // max_parallelism == subtask for group in range(start, end))


def test_flinks_ranges() -> None:
    assert [key_group_range(128, 3, i) for i in range(3)] == [(0, 43), (43, 86), (86, 128)]


def test_the_router_agrees_with_the_key_groups_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyRouter, "LIMIT", 100)
    router = KeyRouter(128, 3)
    for key in [*range(1000), *map(str, range(1000))]:
        start, end = key_group_range(128, 3, router[key])
        assert start <= key_group(key, 128) < end
        assert len(router) <= 100


def test_unhashable_keys_get_a_clear_error() -> None:
    router = KeyRouter(128, 2)
    with pytest.raises(TypeError):
        router[[1, 2]]
    assert "list" in str(unhashable_key([1, 2]))
    assert "not hashable" in str(unhashable_key([1, 2]))
    assert len(str(unhashable_key(["x" * 10_000]))) < 500
    assert "only where all keys are lists" in str(unhashable_key([1, 2]))
    assert "lists" not in str(unhashable_key({1, 2}))


def test_a_selector_whose_first_key_is_a_list_gives_tuples() -> None:
    select = selector_without_lists(lambda record: record, [1, (2, [3])])
    assert select is not None
    assert select([1, (2, [3])]) == (1, (2, (3,)))
    assert select(("a", 1)) == ("a", 1)
    assert select({1}) == {1}


@pytest.mark.parametrize("first", [1, "a", (1, 2), {1}, [{1}], ({"a": 1}, [2])])
def test_other_selectors_stay_as_they_are(first: object) -> None:
    assert selector_without_lists(lambda record: record, first) is None
    assert selector_without_lists(lambda record: record.missing, first) is None


PATTERNS = {
    "consecutive": range(50_000),
    "strided": range(0, 50_000 * 1024, 1024),
    "shifted": [i << 40 for i in range(50_000)],
    "negative": range(-50_000, 0),
    "halves": [i / 2 for i in range(50_000)],
    "strings": [f"user-{i}" for i in range(50_000)],
    "pairs": [(i % 100, i // 100) for i in range(50_000)],
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("groups", [128, 100])
def test_common_key_patterns_spread_evenly(pattern: str, groups: int) -> None:
    counts = [0] * groups
    for key in PATTERNS[pattern]:
        counts[key_group(key, groups)] += 1
    expected = 50_000 / groups
    assert sum((count - expected) ** 2 / expected for count in counts) / (groups - 1) < 1.6  # chi-squared
