"""The contexts that user functions are given."""

from __future__ import annotations

from typing import Any, Protocol

from tidegate.common.accumulators import Accumulator
from tidegate.common.errors import ConfigurationError
from tidegate.common.metrics import MetricGroup
from tidegate.contracts.functions import (
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStateStore,
    ProcessFunction,
    RuntimeContext,
)
from tidegate.contracts.state import FunctionInitializationContext, OperatorStateStore
from tidegate.contracts.time_domain import TimeDomain
from tidegate.contracts.timer_service import TimerService
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.taskmanager.checked_states import CheckedStates
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.timers import OperatorTimers


class OperatorInTime(Protocol):
    """As much of an operator as its contexts need to tell the time."""

    name: str
    context: OperatorContext
    current_watermark: int


class OperatorWithTimers(OperatorInTime, Protocol):
    """As much of a keyed operator as its contexts need to tell the key and to set timers."""

    backend: Any
    timers: OperatorTimers

    @property
    def timer_service(self) -> TimerService: ...


class OperatorRuntimeContext(CheckedStates, RuntimeContext):
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
        return self._context.settings.job_parameters.get(key, default_value)

    def get_metrics_group(self) -> MetricGroup:
        return self._context.metrics

    def add_accumulator(self, name: str, accumulator: Accumulator) -> None:
        if not isinstance(accumulator, Accumulator):
            raise ConfigurationError(
                f"operator '{self._context.node.name}': add_accumulator('{name}', ...) takes an accumulator of "
                f"tidegate.common.accumulators, such as IntCounter(), got {accumulator!r}"
            )
        if self._context.accumulators.setdefault(name, accumulator) is not accumulator:
            raise ConfigurationError(
                f"operator '{self._context.node.name}': accumulator '{name}' was added already; get it with "
                "get_accumulator(), or choose another name"
            )

    def get_accumulator(self, name: str) -> Accumulator:
        found = self._context.accumulators.get(name)
        if found is None:
            raise ConfigurationError(
                f"operator '{self._context.node.name}': there is no accumulator '{name}'; call add_accumulator() first"
            )
        return found

    def get_cached_file(self, name: str) -> str:
        files = self._context.settings.cached_files
        if name not in files:
            known = ", ".join(sorted(files)) or "none"
            raise ConfigurationError(
                f"operator '{self._context.node.name}': there is no cached file '{name}' (known: {known}); register it "
                "with env.register_cached_file(path, name)"
            )
        return files[name]

    def _keyed_state(self, descriptor: Any) -> Any:
        if self._context.keyed is None:
            raise ConfigurationError(
                f"keyed state '{descriptor.get_name()}' is only available on a keyed stream: "
                f"call key_by() before operator '{self._context.node.name}'"
            )
        return self._context.keyed_state(descriptor)


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


class Clocks(TimerService):
    """The clocks, for functions on streams without keys; they cannot set timers."""

    def __init__(self, operator: OperatorInTime) -> None:
        self._operator = operator

    def current_processing_time(self) -> int:
        return int(self._operator.context.clock.now_ms())

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def _refuse(self) -> None:
        raise ConfigurationError(
            f"timers are only available on a keyed stream: call key_by() before operator '{self._operator.name}'"
        )

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._refuse()

    def register_event_time_timer(self, timestamp: int) -> None:
        self._refuse()

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._refuse()

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._refuse()


class KeyedTimerService(Clocks):
    """Sets and deletes timers of the current key."""

    def __init__(self, operator: OperatorWithTimers) -> None:
        super().__init__(operator)
        self._timers = operator.timers
        self._register_event = operator.timers.event.registrar(operator.backend)
        self._register_processing = operator.timers.processing.register
        self._backend = operator.backend

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._register_processing(_checked(timestamp), self._backend.current_key)

    def register_event_time_timer(self, timestamp: int) -> None:
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:  # without a call: a hot path
            timestamp = _checked(timestamp)
        self._register_event(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._timers.processing.delete(_checked(timestamp), self._backend.current_key)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._timers.event.delete(_checked(timestamp), self._backend.current_key)


def _checked(timestamp: Any) -> int:
    if type(timestamp) is not int:
        if isinstance(timestamp, float) and timestamp.is_integer():
            return _checked(int(timestamp))
        raise ConfigurationError(f"a timer is set with whole milliseconds since the epoch, not {timestamp!r}")
    if not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
        raise ConfigurationError(
            f"a timer at {timestamp} is beyond the range of time, which is 64-bit milliseconds since the epoch "
            f"({MIN_WATERMARK} to {MAX_WATERMARK})"
        )
    return int(timestamp)


class ElementContext(ProcessFunction.Context, CoProcessFunction.Context):
    """One object for all records of an operator; `stamp` is set before each call."""

    def __init__(self, operator: OperatorInTime) -> None:
        self.stamp: int | None = None
        self._timers: TimerService = Clocks(operator)

    def timestamp(self) -> int | None:
        return self.stamp

    def timer_service(self) -> TimerService:
        return self._timers


class KeyedElementContext(ElementContext, KeyedProcessFunction.Context, KeyedCoProcessFunction.Context):
    def __init__(self, operator: OperatorWithTimers) -> None:
        super().__init__(operator)
        self._backend = operator.backend
        self._timers = operator.timer_service

    def get_current_key(self) -> Any:
        return self._backend.current_key


class KeyedTimerContext(
    KeyedElementContext, KeyedProcessFunction.OnTimerContext, KeyedCoProcessFunction.OnTimerContext
):
    """For `on_timer`; `stamp` and `domain` are set before each call."""

    domain = TimeDomain.EVENT_TIME

    def time_domain(self) -> TimeDomain:
        return self.domain
