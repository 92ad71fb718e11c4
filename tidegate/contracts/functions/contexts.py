"""What a function is given to work with: where it runs, and the keyed state that it may ask for."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.common.accumulators import Accumulator
    from tidegate.common.metrics import MetricGroup
    from tidegate.contracts.state import (
        AggregatingState,
        AggregatingStateDescriptor,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReducingState,
        ReducingStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )


class KeyedStateStore(abc.ABC):
    """Hands out keyed state. Each object reads and writes the entry of the key that is being processed; asking twice
    for the same name gives the same object."""

    @abc.abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]: ...

    @abc.abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]: ...

    @abc.abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]: ...

    @abc.abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]: ...

    @abc.abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]: ...


class RuntimeContext(KeyedStateStore):
    """Where a function runs. Given to `Function.open`, valid until `close`. Keyed state only on a keyed stream."""

    @abc.abstractmethod
    def get_task_name(self) -> str: ...

    @abc.abstractmethod
    def get_number_of_parallel_subtasks(self) -> int: ...

    @abc.abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int: ...

    @abc.abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """The number of this subtask, from 0 to the parallelism less one."""

    @abc.abstractmethod
    def get_attempt_number(self) -> int:
        """The number of the attempt: 0 for the first, one more after each restart."""

    @abc.abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """The task's name with subtask, parallelism and attempt, for example `Count (2/4)#0`."""

    @abc.abstractmethod
    def get_job_parameter(self, key: str, default_value: str) -> str: ...

    @abc.abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """The metrics of this function in this subtask."""

    @abc.abstractmethod
    def add_accumulator(self, name: str, accumulator: Accumulator) -> None:
        """Make an accumulator part of the job's result. The same name in other functions and subtasks is the same
        accumulator, and has to be of the same class."""

    @abc.abstractmethod
    def get_accumulator(self, name: str) -> Accumulator:
        """What this subtask has added under the name."""

    @abc.abstractmethod
    def get_cached_file(self, name: str) -> str:
        """The local path of a file that was registered with `register_cached_file`, or of the folder of an archive
        that was added with `add_python_archive`."""
