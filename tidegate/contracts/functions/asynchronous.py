"""Functions whose calls to the outside overlap, and when such a call is tried again."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidegate.contracts.functions.base import Function

IN = TypeVar("IN")
OUT = TypeVar("OUT")


class AsyncRetryPredicate(abc.ABC):
    """Says whether an asynchronous call is tried again."""

    @abc.abstractmethod
    def result_predicate(self) -> Callable[[list[Any]], bool] | None: ...

    @abc.abstractmethod
    def exception_predicate(self) -> Callable[[Exception], bool] | None: ...


class AsyncRetryStrategy(abc.ABC):
    """How often and after how long an asynchronous call is tried again."""

    @abc.abstractmethod
    def can_retry(self, current_attempts: int) -> bool: ...

    @abc.abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int: ...

    @abc.abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate: ...

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        from tidegate.contracts.async_retry_strategies import NoRetryStrategy

        return NoRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: Callable[[list[Any]], bool] | None = None,
        exception_predicate: Callable[[Exception], bool] | None = None,
    ) -> AsyncRetryStrategy:
        from tidegate.contracts.async_retry_strategies import FixedDelayRetryStrategy

        return FixedDelayRetryStrategy(max_attempts, backoff_time_millis, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: Callable[[list[Any]], bool] | None = None,
        exception_predicate: Callable[[Exception], bool] | None = None,
    ) -> AsyncRetryStrategy:
        from tidegate.contracts.async_retry_strategies import ExponentialBackoffDelayRetryStrategy

        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class AsyncFunction(Function, Generic[IN, OUT]):
    """Calls to the outside that overlap: one coroutine per record."""

    @abc.abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """The results of one record."""

    def timeout(self, value: IN) -> list[OUT]:
        """What to emit when the call took too long; fails the job unless overridden."""
        raise TimeoutError(
            f"async call for {value!r} timed out; override AsyncFunction.timeout to emit something instead"
        )


@dataclass(frozen=True)
class AsyncFunctionDescriptor:
    """An asynchronous function with the settings it was applied with."""

    class OutputMode(enum.Enum):
        ORDERED = 0  # results in the order of the records
        UNORDERED = 1  # results as they come

    async_function: AsyncFunction[Any, Any]
    timeout_ms: int
    capacity: int
    async_retry_strategy: AsyncRetryStrategy
    output_mode: AsyncFunctionDescriptor.OutputMode
