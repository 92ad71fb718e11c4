"""State as the user sees it: state objects, the descriptors that name them, and the stores that hand them out.

The interfaces are implemented by `tidegate.state`. A keyed state object always reads and writes the entry of the key
that is being processed.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidegate.common.errors import ConfigurationError
from tidegate.contracts.functions import AggregateFunction, ReduceFunction
from tidegate.contracts.state_ttl import StateTtlConfig

if TYPE_CHECKING:
    from tidegate.contracts.functions import KeyedStateStore

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AppendingState",
    "BroadcastState",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MergingState",
    "OperatorStateStore",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "State",
    "StateDescriptor",
    "StateTtlConfig",
    "ValueState",
    "ValueStateDescriptor",
]


# ---------------------------------------------------------------- state objects


class State(abc.ABC):
    @abc.abstractmethod
    def clear(self) -> None:
        """Remove the entry of the current key."""


class ValueState(State, Generic[T]):
    """State that holds one value for each key."""

    @abc.abstractmethod
    def value(self) -> T | None:
        """The current value, None when there is none. Change it by `update`, not in place."""

    @abc.abstractmethod
    def update(self, value: T) -> None:
        """Replace the value; `update(None)` removes it."""


class AppendingState(State, Generic[IN, OUT]):
    """State that takes elements one by one and gives back something made of them."""

    @abc.abstractmethod
    def get(self) -> OUT | None: ...

    @abc.abstractmethod
    def add(self, value: IN) -> None: ...


class MergingState(AppendingState[IN, OUT]):
    """Appending state whose contents can be merged (session windows)."""


class ReducingState(MergingState[T, T]):
    """State that holds, for each key, everything that was added reduced to one value."""


class AggregatingState(MergingState[IN, OUT]):
    """The result of an AggregateFunction over everything added."""


class ListState(MergingState[T, Iterable[T]]):
    """A list per key (or per operator subtask, from an OperatorStateStore)."""

    @abc.abstractmethod
    def get(self) -> Iterable[T]:
        """The elements in order; empty when there are none."""

    @abc.abstractmethod
    def update(self, values: list[T]) -> None:
        """Replace all elements; an empty list removes the entry."""

    @abc.abstractmethod
    def add_all(self, values: list[T]) -> None: ...

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class _MapReading(State, Generic[K, V]):
    """What every map state offers to those who only read it."""

    @abc.abstractmethod
    def get(self, key: K) -> V | None: ...

    @abc.abstractmethod
    def contains(self, key: K) -> bool: ...

    @abc.abstractmethod
    def items(self) -> Iterable[tuple[K, V]]: ...

    @abc.abstractmethod
    def keys(self) -> Iterable[K]: ...

    @abc.abstractmethod
    def values(self) -> Iterable[V]: ...

    @abc.abstractmethod
    def is_empty(self) -> bool: ...

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: object) -> bool:
        return self.contains(key)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class _MapWriting(_MapReading[K, V]):
    """What every map state offers to those who may change it."""

    @abc.abstractmethod
    def put(self, key: K, value: V) -> None: ...

    @abc.abstractmethod
    def put_all(self, dict_value: Mapping[K, V]) -> None: ...

    @abc.abstractmethod
    def remove(self, key: K) -> None: ...

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class MapState(_MapWriting[K, V]):
    """State that holds a map for each key."""


class ReadOnlyBroadcastState(_MapReading[K, V]):
    """Broadcast state on the side that may only read it."""


class BroadcastState(_MapWriting[K, V], ReadOnlyBroadcastState[K, V]):
    """A map that every subtask holds a whole copy of. Every subtask has to make the same changes in the same order."""


# ---------------------------------------------------------------- descriptors


class StateDescriptor(abc.ABC):
    """Names a state and, when declared, its type. A snapshot finds the state by its name: unique per operator."""

    kind: str
    """ "value" | "list" | "map" | "reducing" | "aggregating" (see storage.handles.KeyedStateInfo)."""

    def __init__(self, name: str, type_info: Any = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{type(self).__name__}(name): the name has to be a string, got {type(name).__name__}")
        if not name:
            raise ConfigurationError(f"{type(self).__name__}(name): the name is empty; name the state")
        self.name = name
        self.type_info = type_info  # TypeInformation of the stored value, None when undeclared
        self._ttl_config: StateTtlConfig | None = None
        self._hidden = False

    def get_name(self) -> str:
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Entries that are not touched for the configured time disappear."""
        if not isinstance(ttl_config, StateTtlConfig):
            raise TypeError(
                f"state '{self.name}': enable_time_to_live takes a StateTtlConfig, got {type(ttl_config).__name__}; "
                "make one with StateTtlConfig.new_builder(Time.hours(1)).build()"
            )
        self._ttl_config = ttl_config

    @property
    def ttl_config(self) -> StateTtlConfig | None:
        """The TTL when it is enabled, otherwise None."""
        return self._ttl_config if self._ttl_config is not None and self._ttl_config.is_enabled() else None

    def hide_from_queries(self) -> None:
        """Nobody looks into this state while the job runs: neither over REST nor on the page, the command line or the
        client. That it is there, and its size, is listed. (PyFlink does not have this.)"""
        self._hidden = True

    @property
    def hidden(self) -> bool:
        """Whether `hide_from_queries` was called."""
        return self._hidden

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ValueStateDescriptor(StateDescriptor):
    kind = "value"

    def __init__(self, name: str, value_type_info: Any = None) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor):
    kind = "list"

    def __init__(self, name: str, elem_type_info: Any = None) -> None:
        super().__init__(name, elem_type_info)
        self.elem_type_info = elem_type_info


class MapStateDescriptor(StateDescriptor):
    kind = "map"

    def __init__(self, name: str, key_type_info: Any = None, value_type_info: Any = None) -> None:
        super().__init__(name, value_type_info)
        self.key_type_info = key_type_info
        self.value_type_info = value_type_info


class ReducingStateDescriptor(StateDescriptor):
    kind = "reducing"

    def __init__(
        self, name: str, reduce_function: ReduceFunction | Callable[[Any, Any], Any], type_info: Any = None
    ) -> None:
        super().__init__(name, type_info)
        if not isinstance(reduce_function, ReduceFunction):
            if not callable(reduce_function) or isinstance(reduce_function, type):
                raise TypeError(
                    f"ReducingStateDescriptor '{name}': reduce_function has to be a ReduceFunction or a function of "
                    f"two values, got {reduce_function!r}"
                )
            reduce_function = _CallableReduce(reduce_function)
        self._reduce_function = reduce_function

    def get_reduce_function(self) -> ReduceFunction:
        return self._reduce_function


class _CallableReduce(ReduceFunction):
    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def reduce(self, value1: Any, value2: Any) -> Any:
        return self._function(value1, value2)


class AggregatingStateDescriptor(StateDescriptor):
    kind = "aggregating"

    def __init__(self, name: str, agg_function: AggregateFunction, state_type_info: Any = None) -> None:
        super().__init__(name, state_type_info)
        if not isinstance(agg_function, AggregateFunction):
            raise TypeError(
                f"AggregatingStateDescriptor '{name}': agg_function has to be an instance of AggregateFunction, "
                f"got {agg_function!r}"
            )
        self._agg_function = agg_function

    def get_agg_function(self) -> AggregateFunction:
        return self._agg_function


# ---------------------------------------------------------------- operator state, contexts of CheckpointedFunction


class OperatorStateStore(abc.ABC):
    """State of an operator subtask that belongs to no key."""

    @abc.abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list whose items are dealt out evenly over the subtasks when the job is restored."""

    @abc.abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list of which every subtask gets all items of all subtasks when the job is restored."""

    @abc.abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]: ...


class FunctionInitializationContext(abc.ABC):
    """Given to `CheckpointedFunction.initialize_state`."""

    @abc.abstractmethod
    def is_restored(self) -> bool:
        """Whether the job started from a checkpoint or savepoint."""

    @abc.abstractmethod
    def get_restored_checkpoint_id(self) -> int | None: ...

    @abc.abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore: ...

    @abc.abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore: ...


class FunctionSnapshotContext(abc.ABC):
    """Given to `CheckpointedFunction.snapshot_state`."""

    @abc.abstractmethod
    def get_checkpoint_id(self) -> int: ...

    @abc.abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """The time at which the checkpoint was triggered, in milliseconds since the epoch."""
