"""Asynchronous calls with their retries, broadcast state without keys, TTL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from tests.spark.cases.case import ApiCase
from tests.spark.cases.single import numbers
from tidegate.common import Time, Types
from tidegate.datastream import (
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    DataStream,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from tidegate.datastream.async_retry_strategies import (
    ExponentialBackoffDelayRetryStrategy,
    FixedDelayRetryStrategy,
    NoRetryStrategy,
)
from tidegate.datastream.functions import AsyncRetryStrategy
from tidegate.datastream.state import MapStateDescriptor, StateTtlConfig, ValueStateDescriptor

Env = StreamExecutionEnvironment
FACTORS = MapStateDescriptor("factors", Types.STRING(), Types.LONG())


class Unreliable(AsyncFunction[int, Any]):
    """Fails for odd numbers, and gives nothing for multiples of four, until the second try."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.tries: dict[int, int] = {}

    async def async_invoke(self, value: int) -> list[Any]:
        self.tries[value] = self.tries.get(value, 0) + 1
        await asyncio.sleep(0.001 * (value % 3))
        if value % 2 and self.tries[value] < 2:
            raise ConnectionError("busy")
        if value % 4 == 0 and self.tries[value] < 2:
            return []
        return [(value, self.tries[value])]


class Slow(AsyncFunction[int, Any]):
    async def async_invoke(self, value: int) -> list[Any]:
        if value % 2:
            await asyncio.sleep(60)
        return [value]

    def timeout(self, value: int) -> list[Any]:
        return [-value]


def _nothing(results: list[Any]) -> bool:
    return not results


def _busy(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


TRIED = [(n, 2 if n % 2 or n % 4 == 0 else 1) for n in range(12)]


def retried(wait: Any, strategy: AsyncRetryStrategy) -> Any:
    return lambda env: wait(numbers(env, 12), Unreliable(), Time.seconds(30), strategy, capacity=5)


class Scale(BroadcastProcessFunction):
    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        state = ctx.get_broadcast_state(FACTORS)
        yield "element", value, len(list(state.items())) in (0, 2), ctx.timestamp(), ctx.current_watermark() < 0

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Iterator[Any]:
        state = ctx.get_broadcast_state(FACTORS)
        state.put_all([(value, 2), ("other", 3), ("gone", 4)])
        state.remove("gone")
        assert state.contains(value)
        yield (
            "rule",
            state.get(value) + state.get("other"),
            sorted(state.keys()) == sorted([value, "other"]),
            None,
            True,
        )


def broadcast(env: Env) -> DataStream:
    return numbers(env, 5).connect(env.from_collection(["rule"]).broadcast(FACTORS)).process(Scale())


class Visits(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = (
            StateTtlConfig.new_builder(Time.hours(1))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
            .cleanup_incrementally(10, False)
            .build()
        )
        assert ttl.is_enabled()
        assert ttl.get_ttl() == Time.hours(1)
        assert ttl.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
        assert ttl.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
        assert ttl.get_ttl_time_characteristic() is StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
        assert ttl.get_cleanup_strategies().get_incremental_cleanup_strategy().get_cleanup_size() == 10
        descriptor = ValueStateDescriptor("visits", Types.LONG())
        descriptor.enable_time_to_live(ttl)
        self.visits = runtime_context.get_state(descriptor)

    def map(self, value: int) -> Any:
        self.visits.update((self.visits.value() or 0) + 1)
        return value % 3, self.visits.value()


CASES = [
    ApiCase(
        "ordered_wait_with_retry",
        retried(AsyncDataStream.ordered_wait_with_retry, FixedDelayRetryStrategy(3, 1, _nothing, _busy)),
        TRIED,
        key=lambda r: 0,
        parallelisms=(1,),
    ),
    ApiCase(
        "unordered_wait_with_retry",
        retried(
            AsyncDataStream.unordered_wait_with_retry,
            ExponentialBackoffDelayRetryStrategy(5, 1, 10, 2.0, _nothing, _busy),
        ),
        TRIED,
        parallelisms=(2,),
    ),
    ApiCase(
        "retry_strategies_by_name",
        lambda env: retried(
            AsyncDataStream.unordered_wait_with_retry, AsyncRetryStrategy.fixed_delay(3, 1, _nothing, _busy)
        )(env).union(
            retried(
                AsyncDataStream.ordered_wait_with_retry,
                AsyncRetryStrategy.exponential_backoff(3, 1, 10, 2.0, _nothing, _busy),
            )(env)
        ),
        TRIED * 2,
        parallelisms=(2,),
    ),
    ApiCase(
        "async_timeout",
        lambda env: AsyncDataStream.ordered_wait_with_retry(
            numbers(env, 6), Slow(), Time.milliseconds(300), NoRetryStrategy()
        ),
        [0, -1, 2, -3, 4, -5],
        parallelisms=(2,),
    ),
    ApiCase(
        "broadcast_state_without_keys",
        broadcast,
        lambda p: [("element", n, True, None, True) for n in range(5)] + [("rule", 5, True, None, True)] * p,
        parallelisms=(1, 2),
    ),
    ApiCase(
        "state_with_ttl",
        lambda env: numbers(env, 9).key_by(lambda n: n % 3).map(Visits()),
        [(k, v) for k in range(3) for v in (1, 2, 3)],
        key=lambda r: r[0],
        parallelisms=(2,),
    ),
]
