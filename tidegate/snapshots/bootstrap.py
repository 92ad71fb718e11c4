"""One part of a keyed state that is made from data: sorted rows in, tables of a savepoint out.

Rows come sorted by the hash of their key, so the rows of a key stand together and nothing but them is held in memory.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, NamedTuple

import msgspec

from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import CheckpointId
from tidegate.common.type_schema import TypeSchema, schema_of
from tidegate.common.typeinfo import value_converter
from tidegate.common.value_conversion import shorten
from tidegate.contracts.state import MapStateDescriptor, StateDescriptor
from tidegate.snapshots.given_entries import GivenEntries
from tidegate.state.key_groups import key_group_range
from tidegate.state.named_states import entry_schema
from tidegate.state.savepoint.writer import Entries, SavepointWriter, in_batches
from tidegate.storage.files import open_files
from tidegate.storage.handles import KeyedSnapshot, KeyedStateInfo
from tidegate.storage.location import StorageLocation


class Shape(enum.Enum):
    WHOLE = "whole"  # a row has all of a key's state: the value, the list, the dict, the accumulator
    ELEMENTS = "elements"  # a row has one element of a list
    ENTRIES = "entries"  # a row has one entry of a map, as a pair
    TIMERS = "timers"  # a row has the timestamp of a timer


class DataRow(NamedTuple):
    hash: int  # equal for equal keys
    key: Any
    content: Any  # see Shape
    last_access: int  # ms


class DataBatch(NamedTuple):
    """Some rows, column by column, sorted by hash."""

    hashes: Any  # an array of NumPy
    keys: list[Any]
    contents: list[Any]
    last_accesses: list[int]

    def rows(self) -> Iterator[DataRow]:
        return map(DataRow, self.hashes.tolist(), self.keys, self.contents, self.last_accesses)


@dataclass(frozen=True)
class StateSpec:
    """What is to be written. Plain data but for the type information, which can be pickled too."""

    operator: str  # its name, for errors
    info: KeyedStateInfo
    shape: Shape
    key_type: Any = None  # TypeInformation
    value_type: Any = None  # of a value, an element, a map value
    map_key_type: Any = None

    @property
    def key_schema(self) -> TypeSchema:
        return schema_of(self.key_type)


@dataclass(frozen=True)
class PartTarget:
    """Where the parts go."""

    location: StorageLocation  # the savepoint's folder
    folder: str  # of the operator, below it
    max_parallelism: int
    parts: int
    checkpoint_id: CheckpointId

    def parts_of(self, hashes: Any) -> Any:
        """Of an array of hashes of keys: the part that each key belongs to."""
        import numpy as np

        groups = (hashes % np.uint64(self.max_parallelism)).astype(np.int64)
        return groups * self.parts // self.max_parallelism


def spec_of(operator: str, descriptor: StateDescriptor, shape: Shape, key_type: Any) -> StateSpec:
    types = [getattr(descriptor, "key_type_info", None), descriptor.type_info]
    info = KeyedStateInfo(
        name=descriptor.get_name(),
        kind=descriptor.kind,
        type_description=", ".join(str(t) for t in types if t is not None),
        schema=entry_schema(descriptor),
        ttl=descriptor.ttl_config is not None,
    )
    map_key = descriptor.key_type_info if isinstance(descriptor, MapStateDescriptor) else None
    return StateSpec(operator, info, shape, key_type, descriptor.type_info, map_key)


def timers_spec(operator: str, state: str, key_type: Any) -> StateSpec:
    return StateSpec(operator, KeyedStateInfo(name=state, kind="timers", namespaced=True), Shape.TIMERS, key_type)


def checked_keys(spec: StateSpec, keys: list[Any]) -> list[Any]:
    """As their declared type, which may change their hash. ConfigurationError for one that does not fit."""
    convert = value_converter(spec.key_type)
    check = _Checked(spec)
    return keys if convert is None else [check.convert(convert, key, key, "the key") for key in keys]


def write_part(spec: StateSpec, target: PartTarget, part: int, batches: Iterable[DataBatch]) -> KeyedSnapshot:
    """`batches`: all rows of the part, sorted by hash across all batches. May run several times for one part, even at
    the same time: each run writes files of its own. Leaves nothing behind when it fails."""
    files = open_files(target.location)
    groups = key_group_range(target.max_parallelism, target.parts, part)
    unique = f"{part}-{secrets.token_hex(4)}"
    writer = SavepointWriter(files, part, target.max_parallelism, target.checkpoint_id, unique)
    try:
        frozen = GivenEntries([spec.info], groups, _entries(spec, batches))
        written = writer.keyed(spec.operator, target.folder, spec.key_schema, frozen)
    except BaseException:
        writer.abort()
        raise
    return msgspec.structs.replace(written, key=spec.key_schema if spec.key_type is not None else None)


def _entries(spec: StateSpec, batches: Iterable[DataBatch]) -> Iterator[Entries]:
    if spec.shape is Shape.WHOLE and spec.info.kind not in ("list", "map") and not spec.info.ttl:
        return _single_values(_Checked(spec), batches)
    name = spec.info.name
    rows = chain.from_iterable(batch.rows() for batch in batches)
    return in_batches((name, namespace, key, value) for key, namespace, value in _grouped(spec, rows))


def _single_values(check: _Checked, batches: Iterable[DataBatch]) -> Iterator[Entries]:
    """The hot path: a value per key, many at once. What is not as usual goes the long way, which names the key."""
    repeated = _RepeatedKeys()
    for batch in batches:
        twice = repeated.find(batch)
        if twice is not None:
            raise check.twice(twice)
        values = check.all_exact(batch.contents)
        if values is None:
            values = [value for row in batch.rows() for _, _, value in _whole(check, row.key, [row])]
        yield check.spec.info.name, batch.keys, [None] * len(batch.keys), values


class _RepeatedKeys:
    """Finds a key that comes twice. Equal keys have equal hashes, so only neighbours with one hash are compared."""

    def __init__(self) -> None:
        self._last: tuple[int, Any] | None = None  # hash and key of the last row of the batch before
        self._hash: int | None = None  # of the run of equal hashes that was looked at last
        self._keys: list[Any] = []  # of that run

    def find(self, batch: DataBatch) -> DataRow | None:
        """The second of them; None when there is none. Call it with one batch after the other."""
        import numpy as np

        hashes, keys = batch.hashes, batch.keys
        if not len(hashes):
            return None
        same = (np.flatnonzero(hashes[1:] == hashes[:-1]) + 1).tolist()
        if self._last is not None and self._last[0] == hashes[0]:
            same.insert(0, 0)
        for i in same:
            code = int(hashes[i])
            if code != self._hash:
                before = keys[i - 1] if i or self._last is None else self._last[1]
                self._hash, self._keys = code, [before]
            if keys[i] in self._keys:
                return DataRow(code, keys[i], batch.contents[i], 0)
            self._keys.append(keys[i])
        self._last = int(hashes[-1]), keys[-1]
        return None


def _grouped(spec: StateSpec, rows: Iterable[DataRow]) -> Iterator[tuple[Any, Any, Any]]:
    """(key, namespace, value) as the backends store them."""
    gather = {
        Shape.WHOLE: _whole,
        Shape.ELEMENTS: _elements,
        Shape.ENTRIES: _map_entries,
        Shape.TIMERS: _timers,
    }[spec.shape]
    check = _Checked(spec)
    for _, run in groupby(rows, lambda row: row.hash):
        by_key: dict[Any, list[DataRow]] = {}  # different keys may have one hash
        for row in run:
            by_key.setdefault(row.key, []).append(row)
        for key, some in by_key.items():
            yield from gather(check, key, some)


class _Checked:
    """Values as their declared types, or an error that names the key."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec
        self.value = value_converter(spec.value_type)
        self.map_key = value_converter(spec.map_key_type)
        conversion = None if spec.value_type is None else spec.value_type.conversion()
        self._converts = conversion is not None
        self._exact = None if conversion is None else conversion.exact

    def all_exact(self, values: list[Any]) -> list[Any] | None:
        """The values, when none has to be converted and none is null."""
        kinds = set(map(type, values))
        right = kinds == {self._exact} if self._converts else type(None) not in kinds
        return values if right else None

    def twice(self, row: DataRow) -> ConfigurationError:
        return self.error(
            row.key, f"it comes more than once, but there is one {self.spec.info.kind} per key; group the data first"
        )

    def convert(self, converter: Callable[[Any], Any] | None, value: Any, key: Any, what: str) -> Any:
        if converter is None:
            return value
        try:
            return converter(value)
        except TypeError as error:
            raise self.error(key, f"{what} does not fit its declared type: {error}") from None

    def one(self, value: Any, key: Any, what: str = "the value") -> Any:
        return self.convert(self.value, value, key, what)

    def error(self, key: Any, what: str) -> ConfigurationError:
        spec = self.spec
        return ConfigurationError(f"operator '{spec.operator}', state '{spec.info.name}', key {shorten(key)}: {what}")


def _whole(check: _Checked, key: Any, rows: list[DataRow]) -> Iterator[tuple[Any, Any, Any]]:
    kind, ttl = check.spec.info.kind, check.spec.info.ttl
    if len(rows) > 1:
        raise check.twice(rows[0])
    _, _, content, time = rows[0]
    if content is None:
        raise check.error(key, "its value is null, which no state can hold; leave such rows out")
    if kind == "list":
        if not isinstance(content, list | tuple):
            raise check.error(key, f"a list is needed, got {shorten(content)}; use element=... for one row per element")
        elements = [check.one(e, key, "an element") for e in content]
        value: Any = [(e, time) for e in elements] if ttl else elements
    elif kind == "map":
        if not isinstance(content, dict):
            raise check.error(
                key, f"a map is needed, got {shorten(content)}; use map_key=... and map_value=... for one row per entry"
            )
        pairs = [(check.convert(check.map_key, k, key, "a map key"), check.one(v, key)) for k, v in content.items()]
        value = {k: (v, time) for k, v in pairs} if ttl else dict(pairs)
    else:
        converted = check.one(content, key)
        value = (converted, time) if ttl else converted
    if value or kind not in ("list", "map"):  # an empty list or map is no entry
        yield key, None, value


def _elements(check: _Checked, key: Any, rows: list[DataRow]) -> Iterator[tuple[Any, Any, Any]]:
    elements = [(check.one(r.content, key, "an element"), r.last_access) for r in rows]
    yield key, None, elements if check.spec.info.ttl else [e for e, _ in elements]


def _map_entries(check: _Checked, key: Any, rows: list[DataRow]) -> Iterator[tuple[Any, Any, Any]]:
    content: dict[Any, Any] = {}
    for _, _, (map_key, map_value), time in rows:
        map_key = check.convert(check.map_key, map_key, key, "a map key")
        if map_key in content:
            raise check.error(key, f"the map key {shorten(map_key)} comes twice")
        converted = check.one(map_value, key, "a map value")
        content[map_key] = (converted, time) if check.spec.info.ttl else converted
    yield key, None, content


def _timers(check: _Checked, key: Any, rows: list[DataRow]) -> Iterator[tuple[Any, Any, Any]]:
    for timestamp in dict.fromkeys(row.content for row in rows):
        if type(timestamp) is not int:
            raise check.error(key, f"the timestamp of a timer is a number of ms, got {shorten(timestamp)}")
        yield key, (None, timestamp), True
