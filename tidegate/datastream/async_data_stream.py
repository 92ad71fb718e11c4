"""AsyncDataStream: calls to the outside that overlap instead of waiting for each other."""

from __future__ import annotations

import inspect
from typing import Any

from tidegate.common.time import TimeLike, as_milliseconds
from tidegate.contracts.functions import AsyncFunction, AsyncRetryStrategy
from tidegate.datastream.arguments import checked_int
from tidegate.datastream.stream import DataStream
from tidegate.graph.operator_specs import AsyncSpec


class AsyncDataStream:
    """Applies an `AsyncFunction` to a stream.

    `timeout` is for all tries of one record together (0: none); what happens then is up to `AsyncFunction.timeout`,
    which fails the job unless it is overridden. `capacity` is how many calls may be under way in a subtask; when it is
    reached the input waits.

    Records whose results were not emitted yet are part of every checkpoint. After a recovery they are called for again:
    the outside may see a call twice, the results are in the output once.
    """

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: TimeLike,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Results as they come. None overtakes a watermark."""
        no_retry = AsyncRetryStrategy.no_restart()
        return _wait("unordered_wait", data_stream, async_function, timeout, no_retry, capacity, output_type)

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: TimeLike,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """Results in the order of the records."""
        no_retry = AsyncRetryStrategy.no_restart()
        return _wait("ordered_wait", data_stream, async_function, timeout, no_retry, capacity, output_type)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: TimeLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """`unordered_wait`, and calls are tried again as the strategy says."""
        retry = async_retry_strategy
        return _wait("unordered_wait_with_retry", data_stream, async_function, timeout, retry, capacity, output_type)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: TimeLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Any = None,
    ) -> DataStream:
        """`ordered_wait`, and calls are tried again as the strategy says."""
        retry = async_retry_strategy
        return _wait("ordered_wait_with_retry", data_stream, async_function, timeout, retry, capacity, output_type)


def _wait(
    method: str,
    stream: DataStream,
    function: Any,
    timeout: TimeLike,
    retry: AsyncRetryStrategy,
    capacity: int,
    output_type: Any,
) -> DataStream:
    where = f"AsyncDataStream.{method}"
    if not isinstance(stream, DataStream):
        raise TypeError(f"{where}: takes a DataStream, got {type(stream).__name__}: {stream!r}")
    _check_async_function(where, function)
    if not isinstance(retry, AsyncRetryStrategy):
        raise TypeError(
            f"{where}: async_retry_strategy has to be an AsyncRetryStrategy, for example "
            f"AsyncRetryStrategy.fixed_delay(3, 100), got {retry!r}"
        )
    timeout_ms = as_milliseconds(timeout, f"{where}: timeout")
    checked_int(where, capacity, 1, "the capacity")
    ordered = method.startswith("ordered")
    spec = AsyncSpec(function, timeout_ms, capacity, retry, ordered)
    name = f"Async {'Ordered' if ordered else 'Unordered'} Wait"
    return stream._one_input(name, spec, where, output_type)


def _check_async_function(where: str, function: Any) -> None:
    if isinstance(function, type) and issubclass(function, AsyncFunction):
        raise TypeError(
            f"{where}: takes an AsyncFunction, got the class {function.__qualname__} itself; pass an instance: "
            f"{function.__qualname__}(...)"
        )
    if not isinstance(function, AsyncFunction):
        raise TypeError(f"{where}: takes an AsyncFunction, got {type(function).__name__}: {function!r}")
    kind = type(function).__qualname__
    if not inspect.iscoroutinefunction(function.async_invoke):
        raise TypeError(
            f"{where}: {kind}.async_invoke is not a coroutine function; define it with async def, so that calls can "
            "overlap (or use map() or flat_map() for plain functions)"
        )
    if inspect.iscoroutinefunction(function.timeout):
        raise TypeError(f"{where}: {kind}.timeout must not be a coroutine function; define it with plain def")
