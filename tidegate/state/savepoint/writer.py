"""The writing side of a savepoint: one task's state as Parquet tables, whichever backend holds it.

Runs on a helper thread of the worker. The backend writes its own kind of full snapshot to a local spool first, which is
read back entry by entry: so a backend needs to know nothing of savepoints. (One that can hand out its frozen entries
directly, `FrozenEntries`, saves that way.)
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import msgspec

from tidegate.common.ids import CheckpointId
from tidegate.common.type_schema import UNDECLARED, TypeSchema
from tidegate.formats.arrow_types import Place, arrow_type
from tidegate.state.backend import KeyedSnapshotWriter
from tidegate.state.entries import iterate_snapshot
from tidegate.state.evolution import observed_schema
from tidegate.state.key_groups import stable_hash
from tidegate.state.operator_state import FrozenOperatorState
from tidegate.state.savepoint.format import BACKEND_NAME, KEYED, LIST, table_folder
from tidegate.state.savepoint.tables import TableWriter
from tidegate.state.savepoint.values import encode_column, text_of
from tidegate.state.serialization import dumps, loads
from tidegate.storage.checksums import checksum
from tidegate.storage.files import Files
from tidegate.storage.handles import (
    FileRange,
    InlineBytes,
    KeyedChunk,
    KeyedIncrement,
    KeyedSnapshot,
    KeyedStateInfo,
    OperatorListState,
    StateHandle,
)

_BATCH = 16_384

Entries = tuple[str, list[Any], list[Any], list[Any]]
"""Some entries of one state: its name, keys, namespaces and values, equally long."""


@runtime_checkable
class FrozenEntries(Protocol):
    """A snapshot writer that need not write to give its entries back."""

    states: list[KeyedStateInfo]
    key_group_range: tuple[int, int]

    def take_entries(self) -> Iterator[Entries]:
        """Once, instead of `write`."""


class SavepointWriter:
    """One task's part. `close` or `abort` ends it, as with a TaskStateWriter."""

    def __init__(
        self, files: Files, subtask: int, max_parallelism: int, checkpoint_id: CheckpointId, part: str = ""
    ) -> None:
        """`part`: in the names of the files, instead of the subtask's number."""
        self._files = files
        self._subtask = subtask
        self._part = part or str(subtask)
        self._max_parallelism = max_parallelism
        self._checkpoint_id = checkpoint_id
        self._paths: list[str] = []
        self.bytes_written = 0

    @property
    def files_written(self) -> int:
        return len(self._paths)

    def close(self) -> None:
        """Every file was made durable when it was complete."""

    def abort(self) -> None:
        for path in self._paths:
            try:
                self._files.delete_file(path)
            except Exception:  # the coordinator deletes the whole folder as well
                return

    # ------------------------------------------------------------ keyed state

    def keyed(self, operator_name: str, folder: str, key: TypeSchema, frozen: KeyedSnapshotWriter) -> KeyedSnapshot:
        if isinstance(frozen, FrozenEntries):
            states, (start, end) = frozen.states, frozen.key_group_range
            return self._write_states(folder, key, states, start, end, frozen.take_entries())
        with _Spool() as spool:
            native = frozen.write(spool)
            entries = in_batches(iterate_snapshot(operator_name, native, spool))
            start, end = native.key_group_start, native.key_group_end
            return self._write_states(folder, key, native.states, start, end, entries)

    def _write_states(
        self,
        folder: str,
        key: TypeSchema,
        infos: list[KeyedStateInfo],
        start: int,
        end: int,
        entries: Iterator[Entries],
    ) -> KeyedSnapshot:
        tables = {i.name: _KeyedTable(i, key, self._max_parallelism) for i in infos}
        writers: dict[str, TableWriter] = {}
        for state, keys, namespaces, values in entries:
            table = tables[state]
            if state not in writers:
                writers[state] = TableWriter(
                    self._files, table_folder(folder, KEYED, state), self._part, table.schema()
                )
            writers[state].add(table.columns(keys, namespaces, values))
            self._note(writers[state])
        chunks = []
        for state, writer in writers.items():
            writer.flush()
            self._note(writer)
            chunks += [KeyedChunk(state=state, entries=rows, handle=handle) for handle, rows in writer.written]
        self.bytes_written += sum(h.length for w in writers.values() for h, _ in w.written)
        return KeyedSnapshot(
            backend=BACKEND_NAME,
            key_group_start=start,
            key_group_end=end,
            states=[tables[i.name].info for i in infos],
            increments=[KeyedIncrement(checkpoint_id=self._checkpoint_id, full=True, chunks=chunks)],
        )

    def _note(self, writer: TableWriter) -> None:
        for handle, _ in writer.written:
            if handle.path not in self._paths:
                self._paths.append(handle.path)

    # ------------------------------------------------------------ operator state

    def lists(self, operator_name: str, folder: str, frozen: FrozenOperatorState) -> list[OperatorListState]:
        return [
            OperatorListState(
                name=name,
                mode=mode,
                count=len(items),
                handle=self._list(operator_name, table_folder(folder, LIST, name), name, items),
            )
            for name, mode, items in frozen.pickled
        ]

    def _list(self, operator_name: str, folder: str, name: str, items: list[bytes]) -> StateHandle:
        import pyarrow as pa

        if not items:
            data = dumps(items)
            return InlineBytes(data, checksum(data))
        columns = {"subtask": pa.int32(), "position": pa.int32(), "value": pa.string(), "value_pickle": pa.binary()}
        writer = TableWriter(self._files, folder, self._part, pa.schema(list(columns.items())))
        texts = [_text_of_pickle(operator_name, name, item) for item in items]
        writer.add(
            [
                pa.array([self._subtask] * len(items), pa.int32()),
                pa.array(range(len(items)), pa.int32()),
                pa.array(texts, pa.string()),
                pa.array(items, pa.binary()),
            ]
        )
        writer.flush()
        self._note(writer)
        handles: list[FileRange] = [handle for handle, _ in writer.written]
        self.bytes_written += sum(h.length for h in handles)
        return handles[0]  # `add` was called once, so there is one file


def _text_of_pickle(operator_name: str, name: str, item: bytes) -> str | None:
    try:
        return text_of(loads(operator_name, name, item))
    except Exception as error:
        return f"<cannot be shown: {type(error).__name__}>"


class _KeyedTable:
    """The columns of one keyed state. A timer's timestamp, which it keeps in its namespace, is its value here."""

    def __init__(self, info: KeyedStateInfo, key: TypeSchema, max_parallelism: int) -> None:
        self.info = info
        self._key = key
        self._max_parallelism = max_parallelism
        self._timers = info.kind == "timers"
        self._single_ttl = info.ttl and info.kind not in ("list", "map")
        declared = info.schema if info.schema is not None else UNDECLARED
        self._value = UNDECLARED if info.ttl and not self._single_ttl else declared
        if self._timers:
            self._value = TypeSchema(kind="LONG")

    def schema(self) -> Any:
        import pyarrow as pa

        columns = [
            ("key_group", pa.int32()),
            ("key", arrow_type(self._key, Place.SAVEPOINT)),
            ("key_pickle", pa.binary()),
            ("namespace", pa.string()),
            ("namespace_pickle", pa.binary()),
            ("value", arrow_type(self._value, Place.SAVEPOINT)),
            ("value_pickle", pa.binary()),
        ]
        if self._single_ttl:
            columns.append(("last_access", pa.int64()))
        return pa.schema(columns)

    def columns(self, keys: list[Any], namespaces: list[Any], values: list[Any]) -> list[Any]:
        import pyarrow as pa

        groups = [stable_hash(k) % self._max_parallelism for k in keys]
        accessed: list[Any] = []
        if self._timers:
            values = [n[1] for n in namespaces]
            namespaces = [n[0] for n in namespaces]
        elif self._single_ttl:
            accessed = [v[1] for v in values]
            values = [v[0] for v in values]
        if values and (self.info.schema is None or self.info.schema == UNDECLARED):
            found = observed_schema(self.info.kind, self.info.ttl and not self._single_ttl, values[0])
            if found is not None:  # remember its fields: they may change before the savepoint is read
                self.info = msgspec.structs.replace(self.info, schema=found)
        if not self.info.namespaced or set(map(type, namespaces)) <= {type(None)}:
            namespace = [pa.nulls(len(keys), pa.string()), pa.nulls(len(keys), pa.binary())]
        else:
            pickled = [None if n is None else dumps(n) for n in namespaces]
            namespace = [pa.array(map(text_of, namespaces), pa.string()), pa.array(pickled, pa.binary())]
        columns = [pa.array(groups, pa.int32()), *encode_column(keys, self._key), *namespace]
        columns += encode_column(values, self._value)
        return [*columns, pa.array(accessed, pa.int64())] if self._single_ttl else columns


def in_batches(entries: Iterable[tuple[str, Any, Any, Any]]) -> Iterator[Entries]:
    """From (state, namespace, key, value), in any order."""
    waiting: dict[str, Entries] = {}
    for state, namespace, key, value in entries:
        batch = waiting.get(state)
        if batch is None:
            batch = waiting[state] = (state, [], [], [])
        batch[1].append(key)
        batch[2].append(namespace)
        batch[3].append(value)
        if len(batch[1]) >= _BATCH:
            yield waiting.pop(state)
    yield from waiting.values()


class _Spool:
    """A StateSink and StateSource on a local temporary file."""

    def __enter__(self) -> _Spool:
        self._file = tempfile.TemporaryFile(prefix="tidegate-savepoint-")
        self._end = 0
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> StateHandle:
        self._file.seek(self._end)
        self._file.write(data)
        handle = FileRange("spool", self._end, len(data), "")
        self._end += len(data)
        return handle

    def start_file(self) -> None: ...

    def read(self, handle: StateHandle) -> bytes:
        assert isinstance(handle, FileRange)
        self._file.seek(handle.offset)
        return self._file.read(handle.length)
