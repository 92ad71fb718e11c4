"""A frozen view of the heap backend, and the way to storage and back.

Freezing is the synchronous part of a checkpoint, so it must be short and yet immune to what user code does next. Values
that cannot change (numbers, strings) need no copy: only the lists of keys and values are taken and the pickling is left
to the asynchronous part, a chunk at a time so that the interpreter lock is held briefly. All other values are pickled
at once; looking into tuples, to see whether they hold such values only, takes nearly as long as pickling them.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tidegate.common.errors import SnapshotDamagedError, SnapshotError
from tidegate.common.ids import CheckpointId
from tidegate.state.heap.increments import UnconfirmedSnapshot
from tidegate.state.serialization import dumps_entries, loads
from tidegate.storage.handles import KeyedChunk, KeyedIncrement, KeyedSnapshot, KeyedStateInfo
from tidegate.storage.reader import StateSource
from tidegate.storage.writers import StateSink

BACKEND_NAME = "heap"
CHUNK_ENTRIES = 16_384

SCALARS = frozenset(
    {int, float, bool, str, bytes, complex, type(None), decimal.Decimal, datetime.date, datetime.datetime}
    | {datetime.timedelta}
)


class FrozenChunk:
    """Up to CHUNK_ENTRIES entries of one state: pickled already, or lists that nobody changes any more."""

    __slots__ = ("_data", "_keys", "_values", "entries", "state")

    def __init__(self, state: str, keys: list[Any], values: list[Any], data: bytes | None) -> None:
        self.state = state
        self.entries = len(keys)
        self._keys, self._values = (keys, values) if data is None else ([], [])
        self._data = data

    def to_bytes(self, operator_name: str) -> bytes:
        if self._data is not None:
            return self._data
        return dumps_entries(operator_name, self.state, self._keys, self._values)

    def entries_of(self, operator_name: str) -> tuple[list[Any], list[Any]]:
        """The entries as two lists: keys and values."""
        if self._data is None:
            return self._keys, self._values
        keys, values = loads(operator_name, self.state, self._data)
        return keys, values


def freeze(operator_name: str, state: str, keys: list[Any], values: list[Any]) -> list[FrozenChunk]:
    """Raises SerializationError, naming operator, state and key, for a value that cannot be pickled."""
    lazy = set(map(type, values)) <= SCALARS
    chunks = []
    for start in range(0, len(keys), CHUNK_ENTRIES):
        some_keys, some_values = keys[start : start + CHUNK_ENTRIES], values[start : start + CHUNK_ENTRIES]
        data = None if lazy else dumps_entries(operator_name, state, some_keys, some_values)
        chunks.append(FrozenChunk(state, some_keys, some_values, data))
    return chunks


class HeapSnapshotWriter:
    """See `state.backend.KeyedSnapshotWriter`."""

    def __init__(
        self,
        operator_name: str,
        key_group_range: tuple[int, int],
        checkpoint_id: CheckpointId,
        states: list[KeyedStateInfo],
        earlier: list[KeyedIncrement],
        chunks: list[FrozenChunk],
        ledger_entry: UnconfirmedSnapshot,
    ) -> None:
        self._operator_name = operator_name
        self.key_group_range = key_group_range
        self._checkpoint_id = checkpoint_id
        self.states = states
        self._earlier = earlier  # the chain that the increment continues, [] for a full snapshot
        self._chunks = chunks
        self._ledger_entry = ledger_entry

    @property
    def full(self) -> bool:
        return not self._earlier

    @property
    def entries(self) -> int:
        """How many entries this snapshot writes itself."""
        return sum(chunk.entries for chunk in self._chunks)

    def write(self, sink: StateSink) -> KeyedSnapshot:
        written = []
        chunks, self._chunks = self._chunks, []
        chunks.reverse()
        while chunks:  # popped, so that what has been written can be freed
            chunk = chunks.pop()
            handle = sink.write(chunk.to_bytes(self._operator_name))
            written.append(KeyedChunk(state=chunk.state, entries=chunk.entries, handle=handle))
        increments = list(self._earlier)
        if self.full or written:
            increments.append(KeyedIncrement(checkpoint_id=self._checkpoint_id, full=self.full, chunks=written))
        self._ledger_entry.chain = increments
        start, end = self.key_group_range
        return KeyedSnapshot(
            backend=BACKEND_NAME,
            key_group_start=start,
            key_group_end=end,
            states=self.states,
            increments=increments,
        )

    def take_entries(self) -> Iterator[tuple[str, list[Any], list[Any], list[Any]]]:
        """Instead of `write`, for a savepoint: (state, keys, namespaces, values), equally long lists."""
        namespaced = {info.name for info in self.states if info.namespaced}
        chunks, self._chunks = self._chunks, []
        chunks.reverse()
        while chunks:
            chunk = chunks.pop()
            keys, values = chunk.entries_of(self._operator_name)
            if chunk.state in namespaced:
                yield chunk.state, [k for k, _ in keys], [n for _, n in keys], values
            else:
                yield chunk.state, keys, [None] * len(keys), values


def read_snapshot(
    operator_name: str, snapshot: KeyedSnapshot, source: StateSource, owns: Callable[[Any], bool] | None
) -> dict[str, dict[Any, Any]]:
    """State name -> entries, after applying the chain. `owns(key)` filters; None keeps everything."""
    namespaced = {info.name: info.namespaced for info in snapshot.states}
    loaded: dict[str, dict[Any, Any]] = {info.name: {} for info in snapshot.states}
    for _, info, keys, values in iterate_chunks(operator_name, snapshot, source):
        loaded[info.name].update(zip(keys, values, strict=True))
    if len(snapshot.increments) > 1:
        for entries in loaded.values():
            for key in [key for key, value in entries.items() if value is None]:
                del entries[key]
    if owns is not None:
        for name, entries in loaded.items():
            loaded[name] = _filtered(entries, owns, namespaced[name])
    return loaded


def iterate_chunks(
    operator_name: str, snapshot: KeyedSnapshot, source: StateSource
) -> Iterator[tuple[bool, KeyedStateInfo, list[Any], list[Any]]]:
    """Yields (part of the full one, state, keys, values) of each chunk, to be applied in this order: a later value
    replaces an earlier one, None deletes. Every key comes once in the full one."""
    if snapshot.backend != BACKEND_NAME:
        raise SnapshotError(
            f"operator '{operator_name}': the snapshot was written by the state backend '{snapshot.backend}', which "
            "this version of Tidegate does not know; use a newer one"
        )
    increments = snapshot.increments
    if not increments or not increments[0].full:
        raise SnapshotDamagedError(
            f"operator '{operator_name}': the snapshot's chain of increments does not begin with a full one"
        )
    states = {info.name: info for info in snapshot.states}
    newest_full = max(number for number, increment in enumerate(increments) if increment.full)
    for increment in increments[newest_full:]:
        for chunk in increment.chunks:
            if chunk.state not in states:
                raise SnapshotDamagedError(
                    f"operator '{operator_name}': the snapshot does not describe its state '{chunk.state}'"
                )
            keys, values = loads(operator_name, chunk.state, source.read(chunk.handle))
            if not len(keys) == len(values) == chunk.entries:
                raise SnapshotDamagedError(
                    f"operator '{operator_name}': state '{chunk.state}' has {len(keys)} keys and {len(values)} values "
                    f"where the snapshot says {chunk.entries} entries"
                )
            yield increment.full, states[chunk.state], keys, values


def _filtered(entries: dict[Any, Any], owns: Callable[[Any], bool], namespaced: bool) -> dict[Any, Any]:
    if namespaced:
        return {entry: value for entry, value in entries.items() if owns(entry[0])}
    return {key: value for key, value in entries.items() if owns(key)}


def chain_entries(increments: Iterable[KeyedIncrement]) -> int:
    return sum(chunk.entries for increment in increments for chunk in increment.chunks)
