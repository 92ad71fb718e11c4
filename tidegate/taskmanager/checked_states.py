"""Keyed state by descriptor, as functions ask for it."""

from __future__ import annotations

import abc
from typing import Any

from tidegate.contracts.functions import KeyedStateStore
from tidegate.contracts.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)


class CheckedStates(KeyedStateStore):
    """Each method takes its own kind of descriptor, and no other."""

    @abc.abstractmethod
    def _keyed_state(self, descriptor: StateDescriptor) -> Any: ...

    def get_state(self, state_descriptor: Any) -> Any:
        return self._checked("get_state", state_descriptor, ValueStateDescriptor)

    def get_list_state(self, state_descriptor: Any) -> Any:
        return self._checked("get_list_state", state_descriptor, ListStateDescriptor)

    def get_map_state(self, state_descriptor: Any) -> Any:
        return self._checked("get_map_state", state_descriptor, MapStateDescriptor)

    def get_reducing_state(self, state_descriptor: Any) -> Any:
        return self._checked("get_reducing_state", state_descriptor, ReducingStateDescriptor)

    def get_aggregating_state(self, state_descriptor: Any) -> Any:
        return self._checked("get_aggregating_state", state_descriptor, AggregatingStateDescriptor)

    def _checked(self, method: str, descriptor: Any, kind: type[StateDescriptor]) -> Any:
        if not isinstance(descriptor, kind):
            raise TypeError(f"{method}: takes a {kind.__name__}, got {type(descriptor).__name__}: {descriptor!r}")
        return self._keyed_state(descriptor)
