"""A state cut into pieces that can be read apart from each other, each by a process of its own.

Pieces never overlap: a subtask's part of the snapshot is cut by its files (heap, savepoint) or by key groups (RocksDB,
whose files each piece has to fetch again).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import msgspec

from tidegate.common.errors import SnapshotError
from tidegate.snapshots.catalog import FoundState
from tidegate.state.heap.snapshot import BACKEND_NAME as HEAP
from tidegate.state.savepoint.format import BACKEND_NAME as SAVEPOINT
from tidegate.storage.handles import KeyedChunk, KeyedSnapshot, OperatorListState

ROCKSDB = "rocksdb"
_ENTRIES = 1_000_000
"""A piece of about so many entries, unless a number of pieces is asked for."""


@dataclass(frozen=True)
class HeapSplit:
    """Some chunks of the full snapshot, without what later increments changed. One of the pieces of a subtask has the
    changes too."""

    chunks: list[KeyedChunk]
    changes: list[KeyedChunk]  # of the later increments, in order
    has_changes: bool


@dataclass(frozen=True)
class TableSplit:
    """Some tables of a savepoint."""

    chunks: list[KeyedChunk]


@dataclass(frozen=True)
class RocksSplit:
    snapshot: KeyedSnapshot
    number: int  # of the state in the database
    key_groups: tuple[int, int]  # [start, end)


@dataclass(frozen=True)
class ItemsSplit:
    """Operator state of one subtask."""

    subtask: int
    part: OperatorListState


Split = HeapSplit | TableSplit | RocksSplit | ItemsSplit


def make_splits(state: FoundState, wanted: int | None) -> list[Split]:
    """About `wanted` pieces; None: as many as make sense. Never more than there are chunks or key groups."""
    if state.info is None:
        return [ItemsSplit(subtask, part) for subtask, part in state.lists()]
    snapshots = state.keyed()
    share = None if wanted is None else max(1, round(wanted / max(1, len(snapshots))))
    splits: list[Split] = []
    for snapshot in snapshots:
        if snapshot.backend == ROCKSDB:
            splits += _by_key_group(state, snapshot, share or 1)
        elif snapshot.backend in (HEAP, SAVEPOINT):
            splits += _by_chunk(state, snapshot, share)
        else:
            raise SnapshotError(
                f"operator '{state.operator.name}': the snapshot was written by the state backend "
                f"'{snapshot.backend}', which this version of Tidegate does not know; use a newer one"
            )
    return splits


def _by_key_group(state: FoundState, snapshot: KeyedSnapshot, pieces: int) -> list[Split]:
    number = next(i for i, info in enumerate(snapshot.states) if info.name == state.name)
    start, end = snapshot.key_group_start, snapshot.key_group_end
    pieces = max(1, min(pieces, end - start))
    # Only the files: the other states' descriptions would be sent along for nothing.
    slim = msgspec.structs.replace(snapshot, states=[], increments=[])
    cuts = [start + (end - start) * i // pieces for i in range(pieces + 1)]
    return [RocksSplit(slim, number, (a, b)) for a, b in pairwise(cuts)]


def _by_chunk(state: FoundState, snapshot: KeyedSnapshot, pieces: int | None) -> list[Split]:
    increments = snapshot.increments
    if not increments or not increments[0].full:
        raise SnapshotError(
            f"operator '{state.operator.name}': the snapshot's chain of increments does not begin with a full one"
        )
    newest_full = max(n for n, increment in enumerate(increments) if increment.full)
    base = [c for c in increments[newest_full].chunks if c.state == state.name]
    changes = [c for i in increments[newest_full + 1 :] for c in i.chunks if c.state == state.name]
    if pieces is None:
        pieces = max(1, sum(c.entries for c in base) // _ENTRIES)
    pieces = max(1, min(pieces, len(base)))
    cuts = [len(base) * i // pieces for i in range(pieces + 1)]
    parts = [base[a:b] for a, b in pairwise(cuts)]
    if snapshot.backend == SAVEPOINT:
        return [TableSplit(part) for part in parts if part]
    return [HeapSplit(part, changes, i == 0) for i, part in enumerate(parts) if part or changes]
