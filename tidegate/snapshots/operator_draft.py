"""One operator of a savepoint that is being built: what is kept of an existing one, and what is added."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.common.type_schema import UNDECLARED
from tidegate.snapshots.bootstrap import PartTarget, StateSpec
from tidegate.snapshots.given_entries import GivenEntries
from tidegate.state.backend import StateSource
from tidegate.state.entries import iterate_snapshot
from tidegate.state.operator_state import BROADCAST, FrozenOperatorState
from tidegate.state.savepoint.format import BACKEND_NAME, KEYED, operator_folder, table_folder
from tidegate.state.savepoint.reader import is_table, read_items
from tidegate.state.savepoint.writer import SavepointWriter, in_batches
from tidegate.state.serialization import loads
from tidegate.storage.files import Files, open_files, write_file
from tidegate.storage.handles import (
    FileRange,
    KeyedChunk,
    KeyedIncrement,
    KeyedSnapshot,
    OperatorListState,
    OperatorMetadata,
    OperatorSnapshot,
)
from tidegate.storage.location import StorageLocation

WriteParts = Callable[[PartTarget], list[KeyedSnapshot]]
"""Writes all parts of one state; returns them in order."""

_COPIES_AT_ONCE = 8


@dataclass
class AddedState:
    spec: StateSpec
    write: WriteParts
    preferred_parts: int


@dataclass
class AddedItems:
    name: str
    mode: str
    items: list[bytes]  # pickled


@dataclass
class OperatorDraft:
    operator_id: OperatorId
    uid: str
    name: str
    max_parallelism: int
    base: OperatorMetadata | None = None
    dropped: set[str] = field(default_factory=set)  # states of `base`
    states: dict[str, AddedState] = field(default_factory=dict)
    items: dict[str, AddedItems] = field(default_factory=dict)

    @property
    def parallelism(self) -> int:
        if self.base is not None:
            return self.base.parallelism
        wanted = max((s.preferred_parts for s in self.states.values()), default=1)
        return max(1, min(wanted, self.max_parallelism))

    def write(
        self, location: StorageLocation, checkpoint_id: CheckpointId, source: StateSource | None
    ) -> OperatorMetadata:
        """`source` reads the handles of `base`."""
        folder = operator_folder(self.operator_id, self.uid, self.name)
        target = PartTarget(location, folder, self.max_parallelism, self.parallelism, checkpoint_id)
        files = open_files(location)
        keyed: list[KeyedSnapshot | None] = [None] * self.parallelism
        lists: list[list[OperatorListState]] = [[] for _ in keyed]
        if self.base is not None:
            assert source is not None
            for index, snapshot in enumerate(self.base.subtasks):
                if snapshot.keyed is not None:
                    keyed[index] = self._kept(snapshot.keyed, target, index, files, source)
                lists[index] = self._kept_lists(snapshot.lists, target, index, files, source)
        for added in self.states.values():
            for index, part in enumerate(added.write(target)):
                keyed[index] = _joined(keyed[index], part)
        for index in range(self.parallelism):
            lists[index] += self._added_lists(target, index, files)
        return OperatorMetadata(
            operator_id=self.operator_id,
            name=self.name,
            uid=self.uid,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            subtasks=[
                OperatorSnapshot(operator_id=self.operator_id, name=self.name, uid=self.uid, keyed=k, lists=some)
                for k, some in zip(keyed, lists, strict=True)
            ],
            end_of_data=self.base.end_of_data if self.base is not None else [False] * self.parallelism,
        )

    # ------------------------------------------------------------ what is kept

    def _gone(self, name: str) -> bool:
        return name in self.dropped or name in self.states

    def _kept(
        self, snapshot: KeyedSnapshot, target: PartTarget, index: int, files: Files, source: StateSource
    ) -> KeyedSnapshot:
        infos = [i for i in snapshot.states if not self._gone(i.name)]
        if snapshot.backend != BACKEND_NAME:
            writer = SavepointWriter(files, index, self.max_parallelism, target.checkpoint_id)
            entries = (e for e in iterate_snapshot(self.name, snapshot, source) if not self._gone(e.state))
            frozen = GivenEntries(infos, (snapshot.key_group_start, snapshot.key_group_end), in_batches(entries))
            key = snapshot.key if snapshot.key is not None else UNDECLARED
            return msgspec.structs.replace(writer.keyed(self.name, target.folder, key, frozen), key=snapshot.key)
        chunks = [c for i in snapshot.increments for c in i.chunks if not self._gone(c.state)]
        with ThreadPoolExecutor(_COPIES_AT_ONCE, "tidegate-savepoint-copy") as pool:
            copied = list(pool.map(lambda chunk: _copied(chunk, target.folder, files, source), chunks))
        increment = KeyedIncrement(checkpoint_id=target.checkpoint_id, full=True, chunks=copied)
        return msgspec.structs.replace(snapshot, states=infos, increments=[increment])

    def _kept_lists(
        self, states: list[OperatorListState], target: PartTarget, index: int, files: Files, source: StateSource
    ) -> list[OperatorListState]:
        kept = [s for s in states if s.name not in self.dropped and s.name not in self.items]
        pickled = [(s.name, s.mode, self._items_of(s, source)) for s in kept]
        writer = SavepointWriter(files, index, self.max_parallelism, target.checkpoint_id)
        return writer.lists(self.name, target.folder, FrozenOperatorState(pickled))

    def _items_of(self, state: OperatorListState, source: StateSource) -> list[bytes]:
        if is_table(state.handle):
            return read_items(state.handle, source)
        items: list[bytes] = loads(self.name, state.name, source.read(state.handle))
        return items

    # ------------------------------------------------------------ what is added

    def _added_lists(self, target: PartTarget, index: int, files: Files) -> list[OperatorListState]:
        if not self.items:
            return []
        count = self.parallelism
        shares = [
            (a.name, a.mode, a.items if a.mode == BROADCAST else _share(a.items, index, count))
            for a in self.items.values()
        ]
        writer = SavepointWriter(files, index, self.max_parallelism, target.checkpoint_id)
        return writer.lists(self.name, target.folder, FrozenOperatorState(shares))


def _share(items: list[bytes], index: int, count: int) -> list[bytes]:
    return items[len(items) * index // count : len(items) * (index + 1) // count]


def _copied(chunk: KeyedChunk, folder: str, files: Files, source: StateSource) -> KeyedChunk:
    """The file under its new name; its checksum is verified on the way."""
    assert isinstance(chunk.handle, FileRange)
    name = chunk.handle.path.rpartition("/")[2]
    path = f"{table_folder(folder, KEYED, chunk.state)}/{name}"
    write_file(files, path, source.read(chunk.handle))
    return msgspec.structs.replace(chunk, handle=msgspec.structs.replace(chunk.handle, path=path))


def _joined(before: KeyedSnapshot | None, part: KeyedSnapshot) -> KeyedSnapshot:
    if before is None:
        return part
    increment = msgspec.structs.replace(
        before.increments[0], chunks=before.increments[0].chunks + part.increments[0].chunks
    )
    key = before.key if before.key is not None else part.key
    return msgspec.structs.replace(before, states=before.states + part.states, increments=[increment], key=key)
