"""Keys to key groups to subtasks.

A key's group depends on `stable_hash`: the same in every process, on every machine, with every Python version, because
snapshots are divided by it. And equal keys have equal hashes, as in Python itself: 1, 1.0, True and Decimal(1) are one
key. Only types whose value can be hashed that way are keys; for others `declare_stable_pickle` exists.

The published vectors in tests/unit/state/key_group_vectors.json pin the function: changing it orphans all keyed state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import io
import numbers
import pickle
import struct
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from xxhash import xxh3_64_intdigest

from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import KeyGroup, SubtaskIndex

_MASK = (1 << 64) - 1
_MIX_1 = 0xFF51AFD7ED558CCD
_MIX_2 = 0xC4CEB9FE1A85EC53
_ADVICE = (
    "return a str, an int or a tuple of such values from the key selector, or, if equal objects of the class always "
    "have equal pickles, declare it with tidegate.state.key_groups.declare_stable_pickle(cls)"
)

C = TypeVar("C", bound=type)
Hasher = Callable[[Any], int]


def stable_hash(key: Any) -> int:
    """64 bits that depend on the key's value only. Raises ConfigurationError for a type that cannot be a key."""
    if type(key) is int:
        # Written out, since this is most keys: 0.3 us. The finaliser of MurmurHash3; with one multiplication less,
        # consecutive integers spread visibly less evenly.
        x = hash(key) & _MASK
        x = (x ^ (x >> 33)) * _MIX_1 & _MASK
        x = (x ^ (x >> 33)) * _MIX_2 & _MASK
        return x ^ (x >> 33)
    return (_HASHERS.get(type(key)) or _hasher_of(type(key)))(key)


def key_group(key: Any, max_parallelism: int) -> KeyGroup:
    return KeyGroup(stable_hash(key) % max_parallelism)


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> tuple[KeyGroup, KeyGroup]:
    """The key groups [start, end) of a subtask: contiguous ranges, cut where Flink cuts them."""
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism + 1
    return KeyGroup(start), KeyGroup(end)


class KeyRouter(dict[Any, SubtaskIndex]):
    """`router[key]` is the downstream subtask of a key; a dict lookup once the key has been seen.

    Bounded: forgets everything when it holds `LIMIT` keys. An unhashable key raises Python's own TypeError (the lookup
    must stay a plain dict lookup): turn it into a clear error with `unhashable_key`."""

    LIMIT = 1 << 20

    def __init__(self, max_parallelism: int, parallelism: int) -> None:
        super().__init__()
        self._max_parallelism = max_parallelism
        self._parallelism = parallelism

    def __missing__(self, key: Any) -> SubtaskIndex:
        max_parallelism = self._max_parallelism
        subtask = SubtaskIndex(stable_hash(key) % max_parallelism * self._parallelism // max_parallelism)
        if len(self) >= self.LIMIT:
            self.clear()
        self[key] = subtask
        return subtask


def is_unhashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return True
    return False


def unhashable_key(key: Any) -> ConfigurationError:
    """The error for a key that cannot be looked up. The caller adds the operator's name."""
    shown = repr(key)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    mixed = "" if is_unhashable(without_lists(key)) else "; lists are taken for tuples only where all keys are lists"
    return ConfigurationError(
        f"the key selector returned {shown} of type {_type_name(type(key))}, which is not hashable (it is, or holds, "
        "something that can be changed, such as a list or a dict); return a str, an int or a tuple of such values "
        f"instead{mixed}"
    )


def without_lists(key: Any) -> Any:
    """The key with a tuple in the place of each list, also of those inside of lists and tuples."""
    return tuple(map(without_lists, key)) if type(key) in (list, tuple) else key


def selector_without_lists(select: Callable[[Any], Any], first: Any) -> Callable[[Any], Any] | None:
    """What to use instead of a selector whose first record has a key that is no key only because of its lists; None
    for other selectors. To be asked when a look at the first key has failed: others pay nothing for it."""
    try:
        key = select(first)
    except Exception:  # said where the key is wanted
        return None
    if not is_unhashable(key) or is_unhashable(without_lists(key)):
        return None
    return lambda record: without_lists(select(record))


def declare_stable_pickle(cls: C) -> C:
    """Allow instances of a class as keys: promises that equal instances have equal pickles on every worker.

    Usable as a decorator. Declare it where the class is defined, so that the workers know it too."""
    with contextlib.suppress(TypeError):  # a class written in C takes no attributes: known in this process only
        cls.__tidegate_stable_pickle__ = True  # type: ignore[attr-defined]
    _HASHERS[cls] = _PickleHasher(_type_name(cls))
    return cls


# ---------------------------------------------------------------- hashing by type


def _type_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _unusable(cls: type, why: str) -> ConfigurationError:
    return ConfigurationError(f"a key of type {_type_name(cls)} cannot be used: {why}; {_ADVICE}")


def _number(key: Any) -> int:
    # Python documents the hash of numbers and makes it equal for equal numbers of different types.
    if key != key:
        raise ConfigurationError("NaN cannot be a key: it is not equal to itself; replace it in the key selector")
    x = hash(key) & _MASK
    x = (x ^ (x >> 33)) * _MIX_1 & _MASK
    x = (x ^ (x >> 33)) * _MIX_2 & _MASK
    return x ^ (x >> 33)


def _none(key: None) -> int:
    return 0x5BD1E9955BD1E995


def _str(key: str) -> int:
    return xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))


def _bytes(key: bytes) -> int:
    return xxh3_64_intdigest(key, 1)


def _combine(seed: int, hashes: list[int]) -> int:
    return xxh3_64_intdigest(struct.pack(f"<{len(hashes)}Q", *hashes), seed)


def _tuple(key: tuple[Any, ...]) -> int:
    return _combine(2, [stable_hash(item) for item in key])


def _frozenset(key: frozenset[Any]) -> int:
    return _combine(3, sorted(stable_hash(item) for item in key))


_MICROSECOND = datetime.timedelta(microseconds=1)


def _datetime(key: datetime.datetime) -> int:
    if key != key:
        raise ConfigurationError("a missing time (NaT) cannot be a key; replace it in the key selector")
    offset = key.replace(fold=0).utcoffset()
    elapsed = (key.replace(tzinfo=None, fold=0) - datetime.datetime.min) // _MICROSECOND
    if offset is None:
        return _combine(4, [elapsed])
    return _combine(5, [(elapsed - offset // _MICROSECOND) & _MASK])


def _date(key: datetime.date) -> int:
    return _combine(6, [key.toordinal()])


def _time(key: datetime.time) -> int:
    offset = key.replace(fold=0).utcoffset()
    elapsed = ((key.hour * 60 + key.minute) * 60 + key.second) * 1_000_000 + key.microsecond
    if offset is None:
        return _combine(7, [elapsed])
    return _combine(8, [(elapsed - offset // _MICROSECOND) & _MASK])


def _timedelta(key: datetime.timedelta) -> int:
    return _combine(9, [(key // _MICROSECOND) & _MASK])


def _uuid(key: uuid.UUID) -> int:
    return xxh3_64_intdigest(key.bytes, 10)


class _EnumHasher:
    def __init__(self, cls: type) -> None:
        self._class_hash = _str(_type_name(cls))

    def __call__(self, key: enum.Enum) -> int:
        # A Flag without any of its members has no name.
        return _combine(11, [self._class_hash, stable_hash(key.name)])


class _FieldsHasher:
    """Class and compared fields, as the `__eq__` that @dataclass writes."""

    def __init__(self, cls: type) -> None:
        self._class_hash = _str(_type_name(cls))
        fields = dataclasses.fields(cls)
        self._names = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]

    def __call__(self, key: Any) -> int:
        return _combine(12, [self._class_hash, *[stable_hash(getattr(key, name)) for name in self._names]])


class _RowHasher:
    """Values only: whatever else two equal rows have in common."""

    def __call__(self, key: Any) -> int:
        return _combine(13, [stable_hash(value) for value in key.values_by_name()])


class _PickleHasher:
    def __init__(self, class_name: str) -> None:
        self._class_hash = _str(class_name)

    def __call__(self, key: Any) -> int:
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, 4)
        pickler.fast = True  # without a memo: equal parts need not be the same object
        pickler.dump(key)
        return _combine(14, [self._class_hash, _bytes(buffer.getvalue())])


_HASHERS: dict[type, Hasher] = {
    type(None): _none,
    bool: _number,
    float: _number,
    str: _str,
    bytes: _bytes,
    tuple: _tuple,
}
"""Exact type -> its hasher; grows by one entry per type that is met as a key."""

_BASES: list[tuple[type, Hasher]] = [
    (str, _str),
    (bytes, _bytes),
    (numbers.Real, _number),  # int, bool, float, Fraction, NumPy's integers and floats
    (decimal.Decimal, _number),
    (tuple, _tuple),
    (frozenset, _frozenset),
    (datetime.datetime, _datetime),  # before date, its base
    (datetime.date, _date),
    (datetime.time, _time),
    (datetime.timedelta, _timedelta),
    (uuid.UUID, _uuid),
]


def _hasher_of(cls: type) -> Hasher:
    hasher = _HASHERS[cls] = _make_hasher(cls)
    return hasher


def _make_hasher(cls: type) -> Hasher:
    from tidegate.common.types import Row

    if getattr(cls, "__tidegate_stable_pickle__", False):
        return _PickleHasher(_type_name(cls))
    if cls.__hash__ is None:
        raise _unusable(cls, "it is not hashable")
    if issubclass(cls, Row):
        return _RowHasher()
    if dataclasses.is_dataclass(cls):
        return _dataclass_hasher(cls)
    for base, hasher in _BASES:
        if issubclass(cls, base):
            trusted = base is numbers.Real or cls.__module__.partition(".")[0] in ("numpy", "pandas")
            if not trusted and not _same_equality(cls, base):
                raise _unusable(cls, f"it redefines the equality of {base.__name__}")
            return hasher
    if issubclass(cls, enum.Enum):
        return _EnumHasher(cls)
    raise _unusable(cls, "there is no hash of it that is the same on all workers")


def _same_equality(cls: Any, base: Any) -> bool:
    return cls.__eq__ is base.__eq__


def _dataclass_hasher(cls: type) -> Hasher:
    written_by_hand = getattr(cls.__eq__, "__code__", None) is None or cls.__eq__.__code__.co_filename != "<string>"
    if written_by_hand:  # also eq=False: equality is then object identity
        raise _unusable(cls, "its equality is not the one that @dataclass writes")
    return _FieldsHasher(cls)
