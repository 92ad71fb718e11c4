"""Entries from anywhere, in the form that `SavepointWriter.keyed` takes (see `savepoint_writer.FrozenEntries`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.storage.handles import KeyedSnapshot, KeyedStateInfo

_BATCH = 16_384


Entries = tuple[str, list[Any], list[Any], list[Any]]
"""Some entries of one state: its name, keys, namespaces and values, equally long."""


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
