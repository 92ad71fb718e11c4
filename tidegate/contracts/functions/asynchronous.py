"""Functions whose calls to the outside overlap."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidegate.contracts.functions.base import Function
from tidegate.contracts.functions.retries import AsyncRetryStrategy

IN = TypeVar("IN")
OUT = TypeVar("OUT")


class AsyncFunction(Function, Generic[IN, OUT]):
    """Calls to the outside that overlap: one coroutine per record."""

    @abc.abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """Returns the results of one record, when they are there."""

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
