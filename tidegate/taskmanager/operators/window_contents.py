"""What a window holds, as state of the current key in the current namespace: its elements, or their aggregate.

The caller sets `backend.current_key` and `backend.current_namespace`; `merge` moves between namespaces itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tidegate.contracts.state import ListStateDescriptor, ValueStateDescriptor
from tidegate.graph.operator_specs import WindowSpec
from tidegate.taskmanager.operators.window_base import aggregation_calls


class Contents(Protocol):
    def add(self, value: Any) -> None: ...

    def get(self) -> list[Any]:
        """What the window function gets; empty when the window holds nothing."""

    def clear(self) -> None: ...

    def merge(self, target: Any, sources: Sequence[Any]) -> None:
        """Move the contents of the namespaces `sources` to `target`, behind what is there."""


class ElementContents:
    def __init__(self, backend: Any, name: str) -> None:
        self._backend = backend
        self._state = backend.get_state(ListStateDescriptor(name), namespaced=True)
        self.add = self._state.add
        self.clear = self._state.clear

    def get(self) -> list[Any]:
        return list(self._state.get())

    def merge(self, target: Any, sources: Sequence[Any]) -> None:
        for source in sources:
            self._backend.current_namespace = source
            elements = list(self._state.get())
            self._state.clear()
            self._backend.current_namespace = target
            self._state.add_all(elements)


class AggregateContents:
    """One value or accumulator per window."""

    def __init__(self, backend: Any, name: str, spec: WindowSpec) -> None:
        self._backend = backend
        self._state = backend.get_state(ValueStateDescriptor(name), namespaced=True)
        self._first, self._add, self._result, self._merge = aggregation_calls(spec)
        self.clear = self._state.clear

    def add(self, value: Any) -> None:
        so_far = self._state.value()
        self._state.update(self._first(value) if so_far is None else self._add(so_far, value))

    def get(self) -> list[Any]:
        so_far = self._state.value()
        if so_far is None:
            return []
        return [so_far if self._result is None else self._result(so_far)]

    def merge(self, target: Any, sources: Sequence[Any]) -> None:
        for source in sources:
            self._backend.current_namespace = source
            more = self._state.value()
            if more is not None:
                self._state.clear()
                self._backend.current_namespace = target
                so_far = self._state.value()
                self._state.update(more if so_far is None else self._merge(so_far, more))


def make_contents(backend: Any, name: str, spec: WindowSpec) -> Contents:
    if spec.kind == "elements":
        return ElementContents(backend, name)
    return AggregateContents(backend, name, spec)
