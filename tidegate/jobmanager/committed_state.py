"""Keyed state as of the last completed checkpoint, read from its files: the job does not notice.

What is read here is never rolled back: when the job falls back from a damaged checkpoint to an older one, there is no
answer until a newer one than any that was read is complete. With high availability that holds across drivers: the next
one does not know what was read, but which checkpoints there were to be read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import (
    SnapshotDamagedError,
    SnapshotError,
    StateNotReadableError,
    StateReadError,
    UnknownStateError,
    WrongKeyError,
)
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.jobmanager.query_settings import hidden_by_descriptor
from tidegate.state.bounded_source import BoundedSource
from tidegate.state.key_groups import key_group
from tidegate.state.read_budget import ReadBudget
from tidegate.state.reading import (
    Found,
    KeyReader,
    ReadableTable,
    ReadRules,
    StateTables,
    key_types_of,
    resolve,
    scan,
    shown_names,
    strange_key,
)
from tidegate.state.snapshot_tables import ChunkTable, SnapshotReader
from tidegate.storage.handles import KeyedSnapshot, OperatorMetadata
from tidegate.storage.reader import StateSource

_TRIES = 3
_PATIENCE_S = 5.0  # for the look before this one
_MAX_ENTRIES = 5_000_000  # that one look goes through: some seconds, in the driver
_MAX_VALUES = 16 << 20  # bytes of what one look finds


def _budget() -> ReadBudget:
    return ReadBudget(_MAX_ENTRIES, _MAX_VALUES)


@dataclass(frozen=True)
class CommittedAnswer:
    checkpoint_id: CheckpointId
    found: list[Found]


class CommittedState:
    """From any thread; reads come one after the other. `latest` gives the point that the job would go on from, `source`
    what reads the files below a root, `now_ms` the time by which state expires.

    A storage that hangs keeps whoever reads it, but neither those who come after (StateNotReadableError, in a bounded
    time) nor whoever closes this."""

    def __init__(
        self,
        latest: Callable[[], RestorePoint | None],
        source: Callable[[str], StateSource],
        now_ms: Callable[[], float],
        max_read: int,
        shown: CheckpointId | None = None,
    ) -> None:
        """`max_read`: bytes of files that one look reads. `shown`: the newest checkpoint that an earlier driver of the
        job may have answered from."""
        self._latest = latest
        self._source = source
        self._now_ms = now_ms
        self._max_read = max_read
        self._lock = threading.Lock()  # held while files are read, perhaps for ever: taken with a timeout only
        self._reader = SnapshotReader()  # used by the holder of the lock
        self._closed = threading.Event()
        self._newest = shown or CheckpointId(0)  # that was ever answered from

    def get(self, operator_id: str, state: str, keys: Sequence[Any], window: tuple[Any, ...] | None) -> CommittedAnswer:
        def read(parts: _Parts) -> list[Found]:
            budget = _budget()
            found: dict[Any, Found] = {}
            for (tables, table), there in parts.of_keys(keys):
                if isinstance(table, ChunkTable) and (window is not None or not table.info.namespaced):
                    table.expect([(key, window) for key in there] if table.info.namespaced else there)
                here = KeyReader(tables, table, there, budget, self._rules(table)).read(there, window)
                strange = strange_key(table, here)
                if strange is not None:
                    types = " or ".join(key_types_of(table))
                    raise WrongKeyError(
                        f"the keys of state '{state}' are {types}: there is no such key of type "
                        f"{type(strange).__name__}"
                    )
                found.update({one.key: one for one in here})
            return [Found(key, found[key].values) for key in keys]

        return self._read(operator_id, state, read)

    def scan(self, operator_id: str, state: str, limit: int) -> CommittedAnswer:
        def read(parts: _Parts) -> list[Found]:
            budget = _budget()
            found: list[Found] = []
            for _, table in parts.all():
                found += scan(table, limit - len(found), budget, self._rules(table))
                if len(found) >= limit:
                    break
            return found

        return self._read(operator_id, state, read)

    def _rules(self, table: ReadableTable) -> ReadRules:
        """What expired since the checkpoint is not shown, as it would not be to the operator if that were restored."""
        return ReadRules(table.info.ttl_ms, self._now_ms())

    def close(self) -> None:
        """Nothing can be read after it. Waits for nobody: a read that is under way cleans up when it ends."""
        self._closed.set()
        self._clean_up_if_closed()

    def _clean_up_if_closed(self) -> None:
        if self._closed.is_set() and self._lock.acquire(blocking=False):
            try:
                self._reader.close()
            finally:
                self._lock.release()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[SnapshotReader]:
        if not self._lock.acquire(timeout=_PATIENCE_S):
            raise StateNotReadableError(
                f"another look at the committed state has been reading for {_PATIENCE_S:g} s or more: its answer is "
                "large, or the storage of the checkpoints is slow or does not answer"
            )
        try:
            if self._closed.is_set():
                raise StateReadError("the job is over, and its committed state is read no more")
            yield self._reader
        finally:
            self._lock.release()
            self._clean_up_if_closed()

    def _read(self, operator_id: str, state: str, read: Callable[[_Parts], list[Found]]) -> CommittedAnswer:
        """A checkpoint may be deleted while it is read: then there is a newer one."""
        for tries_left in reversed(range(_TRIES)):
            point = self._point()
            try:
                with self._reading() as reader:
                    source = BoundedSource(self._source(point.root), self._max_read)
                    parts = _Parts(reader, source, point, operator_id, state)
                    answer = CommittedAnswer(point.checkpoint_id, read(parts))
                    if point.checkpoint_id < self._newest:
                        continue
                    self._newest = point.checkpoint_id
                return answer
            except SnapshotError as error:
                now = self._latest()
                if now is not None and now.checkpoint_id != point.checkpoint_id and tries_left:
                    continue
                if isinstance(error, SnapshotDamagedError) and now is None:
                    raise
                raise StateNotReadableError(
                    f"checkpoint {point.checkpoint_id} cannot be read now, perhaps since it is being replaced by a "
                    f"newer one: {error}"
                ) from error
        raise StateNotReadableError("checkpoints come and go faster than they can be read: retain more of them")

    def _point(self) -> RestorePoint:
        point = self._latest()
        if point is None:
            raise StateNotReadableError("no checkpoint of this job is complete so far")
        if point.checkpoint_id < self._newest:
            raise StateNotReadableError(
                f"the job went back to checkpoint {point.checkpoint_id}, since checkpoint {self._newest}, which was or "
                "may have been read before, turned out to be damaged: committed state can be read again when a newer "
                "one is complete"
            )
        return point


class _Parts:
    """One state in the parts of a checkpoint."""

    def __init__(
        self, reader: SnapshotReader, source: BoundedSource, point: RestorePoint, operator_id: str, state: str
    ) -> None:
        self._reader = reader
        self._source = source
        self._point = point
        self._state = state
        found = next((o for o in point.metadata.operators if o.operator_id == operator_id), None)
        if found is None:
            raise UnknownStateError(f"checkpoint {point.checkpoint_id} has nothing of this operator yet")
        self._operator: OperatorMetadata = found
        self._snapshots = [s.keyed for s in found.subtasks if s.keyed is not None]

    def of_keys(self, keys: Sequence[Any]) -> Iterator[tuple[tuple[StateTables, ReadableTable], list[Any]]]:
        """Each part that has one of these keys, with those that it has, each once."""
        by_part: dict[int, list[Any]] = {}
        for key in dict.fromkeys(keys):
            by_part.setdefault(self._part_of(key), []).append(key)
        for part, there in by_part.items():
            yield self._open(self._snapshots[part]), there

    def _part_of(self, key: Any) -> int:
        group = key_group(key, self._operator.max_parallelism)
        for part, snapshot in enumerate(self._snapshots):
            if snapshot.key_group_start <= group < snapshot.key_group_end:
                return part
        raise UnknownStateError(f"operator '{self._operator.name}' has no keyed state")

    def all(self) -> Iterator[tuple[StateTables, ReadableTable]]:
        return map(self._open, self._snapshots)

    def _open(self, snapshot: KeyedSnapshot) -> tuple[StateTables, ReadableTable]:
        operator = self._operator
        self._source.expect(sum(file.size for file in snapshot.files))
        tables = self._reader.tables(
            self._point.root, operator.operator_id, operator.name, snapshot, operator.max_parallelism, self._source
        )
        table = resolve(tables, self._state)
        if table is None:
            names = ", ".join(f"'{name}'" for name in shown_names(tables)) or "none"
            raise UnknownStateError(
                f"operator '{operator.name}' has no keyed state '{self._state}' in checkpoint "
                f"{self._point.checkpoint_id}; it has: {names}"
            )
        if table.info.hidden:
            raise hidden_by_descriptor(self._state, operator.name)
        return tables, table
