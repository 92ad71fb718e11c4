"""The windows of a key that may still grow together. No I/O; the set is a keyed state.

Contents stay where they are while a window grows: each window points to a *state window*, the namespace under which its
contents were first put. When windows merge, one of their state windows is kept and the contents of the others are moved
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tidegate.contracts.state import ValueStateDescriptor
from tidegate.contracts.window import MergingWindowAssigner

OnMerge = Callable[[Any, list[Any], Any, list[Any]], None]
"""(the new window, the windows it is made of, the state window to keep, the other state windows)."""


class MergingWindowSet:
    """Order of calls for one key: `load`, any of the others, `save`."""

    STATE_NAME = "_window/merging"

    def __init__(self, backend: Any, assigner: MergingWindowAssigner[Any, Any]) -> None:
        self._state = backend.get_state(ValueStateDescriptor(self.STATE_NAME))
        self._assigner = assigner
        self._mapping: dict[Any, Any] = {}  # window -> state window, of the current key; in the order of their making
        self._changed = False

    def load(self) -> None:
        self._mapping = dict(self._state.value() or ())
        self._changed = False

    def save(self) -> None:
        if self._changed:
            if self._mapping:
                self._state.update(tuple(self._mapping.items()))
            else:
                self._state.clear()
            self._changed = False

    def state_window(self, window: Any) -> Any:
        """None when the window is not (or no longer) there."""
        return self._mapping.get(window)

    def retire(self, window: Any) -> None:
        if self._mapping.pop(window, None) is not None:
            self._changed = True

    def add(self, window: Any, on_merge: OnMerge) -> Any:
        """The window that an element of `window` belongs to, after merging. A window that is there already stays as it
        is, with its contents."""
        mapping = self._mapping
        if window in mapping:
            return window
        merges = _Merges()
        self._assigner.merge_windows([*mapping, window], merges)
        result = window
        for group, merged in merges.found:
            if window in group:
                result = merged
            members = [w for w in mapping if w in group]
            if not members:
                continue
            states = [mapping.pop(w) for w in members]
            mapping[merged] = states[0]
            if members != [merged]:
                on_merge(merged, members, states[0], states[1:])
        mapping.setdefault(result, result)
        self._changed = True
        return result


class _Merges(MergingWindowAssigner.MergeCallback[Any]):
    def __init__(self) -> None:
        self.found: list[tuple[set[Any], Any]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.found.append((set(to_be_merged), merge_result))
