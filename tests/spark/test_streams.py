"""Asynchronous calls, broadcast state, metrics, accumulators, cached streams and sources on real Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.common import Time, WatermarkStrategy
from tidegate.common.accumulators import IntCounter
from tidegate.datastream import (
    AsyncDataStream,
    AsyncFunction,
    KeyedBroadcastProcessFunction,
    MapFunction,
    RuntimeContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import HybridSource, NumberSequenceSource
from tidegate.datastream.state import MapStateDescriptor

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RULES = MapStateDescriptor("rules")
MakeEnv = Callable[..., StreamExecutionEnvironment]


class LookUp(AsyncFunction[int, Any]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.under_way = 0
        self.calls = runtime_context.get_metrics_group().counter("calls")
        self.total = IntCounter()
        runtime_context.add_accumulator("total", self.total)

    async def async_invoke(self, value: int) -> list[Any]:
        self.calls.inc()
        self.total.add(value)
        self.under_way += 1
        together = self.under_way
        await asyncio.sleep(0.1 if value % 10 == 0 else 0.02)
        self.under_way -= 1
        return [(value, together)]


class Flag(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Any:
        known = ctx.get_broadcast_state(RULES).contains("limit")
        yield ctx.get_current_key(), *value, known

    def process_broadcast_element(self, value: int, ctx: KeyedBroadcastProcessFunction.Context) -> Any:
        ctx.get_broadcast_state(RULES).put("limit", value)


@pytest.mark.parametrize("ordered", [True, False])
def test_calls_overlap_and_metrics_and_accumulators_come_back(ordered: bool, make_env: MakeEnv) -> None:
    env = make_env(2, {"execution.checkpointing.interval": "50 ms"})
    numbers = env.from_source(NumberSequenceSource(0, 199), WatermarkStrategy.no_watermarks(), "numbers")
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    looked_up = wait(numbers, LookUp(), Time.seconds(30), capacity=50).name("look up")
    rules = env.from_collection([5]).broadcast(RULES)
    flagged = looked_up.key_by(lambda v: v[0] % 3).connect(rules).process(Flag())
    seen: list[Any] = []
    with flagged.map(lambda v: v).execute_and_collect("calls") as results:  # type: ignore[union-attr]
        seen = list(results)
    assert max(together for _, _, together, _ in seen) > 10
    assert sorted((key, value) for key, value, _, _ in seen) == sorted((v % 3, v) for v in range(200))


class Count(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_metrics_group().add_group("deep").counter("seen")
        self.total = IntCounter()
        runtime_context.add_accumulator("total", self.total)
        with open(runtime_context.get_cached_file("factor"), encoding="utf-8") as file:
            self.factor = int(file.read())

    def map(self, value: int) -> int:
        self.seen.inc()
        self.total.add(1)
        return value * self.factor


class Push(SourceFunction):
    def run(self, ctx: SourceFunction.SourceContext) -> None:
        for i in range(1000, 1050):
            ctx.collect(i)

    def cancel(self) -> None: ...


def test_a_cached_stream_of_several_sources(make_env: MakeEnv, tmp_path: Path) -> None:
    (tmp_path / "factor.txt").write_text("3")
    with make_env(2) as env:
        env.register_cached_file(str(tmp_path / "factor.txt"), "factor")
        source = HybridSource.builder(NumberSequenceSource(0, 49)).add_source(NumberSequenceSource(50, 99)).build()
        numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
        cached = numbers.union(env.add_source(Push())).map(Count()).name("count").cache()
        cached.print()
        client: Any = env.execute_async("first")
        result = client.get_job_execution_result().result()
        assert result.get_accumulator_result("total") == 150
        assert client.get_accumulators().result() == {"total": 150}
        assert {name: v for name, v in client.metrics().items() if v}.keys() <= {
            "count.0.deep.seen",
            "count.1.deep.seen",
        }
        assert sum(client.metrics().values()) == 150
        again: Any = cached.map(lambda v: v + 1).execute_and_collect("second")
        with again:
            assert sorted(again) == [v * 3 + 1 for v in [*range(100), *range(1000, 1050)]]
