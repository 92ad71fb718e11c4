"""Entries from anywhere, in the form that `SavepointWriter.keyed` takes (see `savepoint_writer.FrozenEntries`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.state.savepoint.writer import Entries
from tidegate.storage.handles import KeyedSnapshot, KeyedStateInfo


class GivenEntries:
    """`entries` are taken once."""

    def __init__(
        self,
        states: list[KeyedStateInfo],
        key_group_range: tuple[int, int],
        entries: Iterator[Entries],
    ) -> None:
        self.states = states
        self.key_group_range = key_group_range
        self._entries = entries

    def take_entries(self) -> Iterator[Entries]:
        return self._entries

    def write(self, sink: Any) -> KeyedSnapshot:
        raise NotImplementedError("entries are taken, never written as a snapshot of a backend")
