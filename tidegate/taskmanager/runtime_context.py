"""The contexts that user functions are given."""

from __future__ import annotations

from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.datastream.functions import (
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStateStore,
    ProcessFunction,
    RuntimeContext,
)
from tidegate.datastream.state import FunctionInitializationContext, OperatorStateStore
from tidegate.datastream.timerservice import TimerService
from tidegate.network.elements import MIN_WATERMARK
from tidegate.taskmanager.operators.base import OperatorContext


class OperatorRuntimeContext(RuntimeContext):
    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def get_task_name(self) -> str:
        return self._context.node.name

    def get_number_of_parallel_subtasks(self) -> int:
        return self._context.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._context.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        return self._context.subtask

    def get_attempt_number(self) -> int:
        return self._context.attempt

    def get_task_name_with_subtasks(self) -> str:
        c = self._context
        return f"{c.node.name} ({c.subtask + 1}/{c.parallelism})#{c.attempt}"

    def get_job_parameter(self, key: str, default_value: str) -> str:
        parameters: dict[str, str] = self._context.settings.job_parameters
        return parameters.get(key, default_value)

    def get_metrics_group(self) -> Any:
        raise ConfigurationError("user metrics are not available in this version; they come with the metrics reporter")

    def get_state(self, state_descriptor: Any) -> Any:
        return self._keyed_state(state_descriptor)

    def get_list_state(self, state_descriptor: Any) -> Any:
        return self._keyed_state(state_descriptor)

    def get_map_state(self, state_descriptor: Any) -> Any:
        return self._keyed_state(state_descriptor)

    def get_reducing_state(self, state_descriptor: Any) -> Any:
        return self._keyed_state(state_descriptor)

    def get_aggregating_state(self, state_descriptor: Any) -> Any:
        return self._keyed_state(state_descriptor)

    def _keyed_state(self, descriptor: Any) -> Any:
        backend = self._context.keyed
        if backend is None:
            raise ConfigurationError(
                f"keyed state '{descriptor.get_name()}' is only available on a keyed stream: "
                f"call key_by() before operator '{self._context.node.name}'"
            )
        return backend.get_state(descriptor)


class InitializationContext(FunctionInitializationContext):
    def __init__(self, context: OperatorContext, runtime_context: OperatorRuntimeContext) -> None:
        self._context = context
        self._runtime_context = runtime_context

    def is_restored(self) -> bool:
        return self._context.restored_checkpoint is not None

    def get_restored_checkpoint_id(self) -> int | None:
        return self._context.restored_checkpoint

    def get_operator_state_store(self) -> OperatorStateStore:
        return self._context.operator_state

    def get_keyed_state_store(self) -> KeyedStateStore:
        return self._runtime_context


class ClockOnlyTimerService(TimerService):
    """The clocks. Timers come with the event-time work; until then registering one is refused, not ignored."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def current_processing_time(self) -> int:
        return int(self._context.clock.now_ms())

    def current_watermark(self) -> int:
        return MIN_WATERMARK

    def _refuse(self) -> None:
        raise ConfigurationError("timers are not available in this version of Tidegate")

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._refuse()

    def register_event_time_timer(self, timestamp: int) -> None:
        self._refuse()

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._refuse()

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._refuse()


class ElementContext(ProcessFunction.Context, CoProcessFunction.Context):
    """One object for all records of an operator; `stamp` is set before each call."""

    def __init__(self, context: OperatorContext) -> None:
        self.stamp: int | None = None
        self._timers = ClockOnlyTimerService(context)

    def timestamp(self) -> int | None:
        return self.stamp

    def timer_service(self) -> TimerService:
        return self._timers


class KeyedElementContext(ElementContext, KeyedProcessFunction.Context, KeyedCoProcessFunction.Context):
    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._backend: Any = context.keyed

    def get_current_key(self) -> Any:
        return self._backend.current_key
