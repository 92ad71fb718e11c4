"""Which keys the next increment must hold, and on which chain it stands. A pure core: no values, no I/O.

An increment holds what changed since the newest *confirmed* checkpoint, because that is the only one that is certain to
exist. A snapshot that was taken but is not confirmed keeps the list of keys that changed before it; if it is aborted,
they pass to the snapshot after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from tidegate.common.errors import check_internal
from tidegate.common.ids import CheckpointId
from tidegate.storage.handles import KeyedIncrement

ChangedKeys = dict[str, list[Any]]
"""State name -> keys without duplicates, in the order in which they changed."""

MAX_UNCONFIRMED = 64
"""More snapshots without news of their fate than any coordinator has under way: the oldest are taken for aborted."""


class UnconfirmedSnapshot:
    """One snapshot whose fate is open. `chain` is set by the asynchronous part when everything has been written."""

    __slots__ = ("chain", "changed", "detached")

    def __init__(self, changed: ChangedKeys, detached: bool) -> None:
        self.changed = changed  # between the snapshot before and this one, and those of aborted ones in between
        self.detached = detached  # belongs to the user (a savepoint): later increments must not depend on its files
        self.chain: list[KeyedIncrement] | None = None


class IncrementLedger:
    """Order of calls per checkpoint: `open_snapshot`, then at most one of `confirm` and `abort` (others are
    ignored)."""

    def __init__(self) -> None:
        self.confirmed_chain: list[KeyedIncrement] | None = (
            None  # of the newest confirmed checkpoint, None: there is none
        )
        self._unconfirmed: dict[CheckpointId, UnconfirmedSnapshot] = {}  # ascending ids
        self._carried: ChangedKeys = {}  # of aborted snapshots with no later one to take them

    @property
    def needs_changed_keys(self) -> bool:
        """False for a snapshot with none before it: no increment can ever stand on something older."""
        return self.confirmed_chain is not None or bool(self._unconfirmed)

    def open_snapshot(self, checkpoint_id: CheckpointId, changed: ChangedKeys, detached: bool) -> UnconfirmedSnapshot:
        """`changed`: the keys that changed since the last call; {} will do unless `needs_changed_keys`."""
        check_internal(
            not self._unconfirmed or checkpoint_id > next(reversed(self._unconfirmed)),
            f"snapshot {checkpoint_id} was asked for after snapshot {next(reversed(self._unconfirmed), None)}",
        )
        snapshot = UnconfirmedSnapshot(_union([self._carried, changed]), detached)
        self._carried = {}
        self._unconfirmed[checkpoint_id] = snapshot
        while len(self._unconfirmed) > MAX_UNCONFIRMED:
            self.abort(next(iter(self._unconfirmed)))
        return snapshot

    def changed_since_confirmed(self) -> ChangedKeys:
        return _union([*(s.changed for s in self._unconfirmed.values()), self._carried])

    def confirm(self, checkpoint_id: CheckpointId) -> None:
        snapshot = self._unconfirmed.get(checkpoint_id)
        if snapshot is None:
            return
        if snapshot.detached:
            self.abort(checkpoint_id)
            return
        check_internal(snapshot.chain is not None, f"checkpoint {checkpoint_id} was confirmed before it was written")
        self.confirmed_chain = snapshot.chain
        self._unconfirmed = {n: s for n, s in self._unconfirmed.items() if n > checkpoint_id}

    def abort(self, checkpoint_id: CheckpointId) -> None:
        snapshot = self._unconfirmed.pop(checkpoint_id, None)
        if snapshot is None:
            return
        heir = next((s for n, s in self._unconfirmed.items() if n > checkpoint_id), None)
        if heir is None:
            self._carried = _union([snapshot.changed, self._carried])
        else:
            heir.changed = _union([snapshot.changed, heir.changed])


def _union(parts: Iterable[ChangedKeys]) -> ChangedKeys:
    parts = [part for part in parts if part]
    if len(parts) <= 1:
        return parts[0] if parts else {}
    names = dict.fromkeys(chain.from_iterable(parts))
    return {name: list(dict.fromkeys(chain.from_iterable(part.get(name, ()) for part in parts))) for name in names}
