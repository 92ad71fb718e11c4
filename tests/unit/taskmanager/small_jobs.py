"""Jobs for the in-process harness: a source on the manual clock, a keyed count, a two-phase sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.connectors.base import (
    Committer,
    Sink,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceSplit,
    SplitReader,
)
from tidegate.datastream.state import ValueStateDescriptor

KEYS = 200


class Ticks(Source[int]):
    """0, 1, 2, ...: the first `burst` at once, then one every `every_ms`; without end when `count` is None."""

    def __init__(self, count: int | None = None, burst: int = 1, every_ms: float = 10.0) -> None:
        self.count = count
        self.burst = burst
        self.every_ms = every_ms

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit("all")]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[int]:
        return TickReader(self, offset or 0, context.clock)


class TickReader(SplitReader[int]):
    def __init__(self, source: Ticks, position: int, clock: Any) -> None:
        self._source = source
        self._position = position
        self._clock = clock
        self._began_ms = clock.now_ms() - max(0, position - source.burst + 1) * source.every_ms

    def _due(self, index: int) -> float:
        return float(self._began_ms + max(0, index - self._source.burst + 1) * self._source.every_ms)

    def poll(self, max_records: int) -> list[int] | None:
        if self._position == self._source.count:
            return None
        end, now = self._position, self._clock.now_ms()
        while end - self._position < max_records and end != self._source.count and self._due(end) <= now:
            end += 1
        polled = list(range(self._position, end))
        self._position = end
        return polled

    def offset(self) -> int:
        return self._position

    def wake_at_ms(self) -> float:
        return self._due(self._position)


class Count(KeyedProcessFunction):
    """(key, how many so far)."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield ctx.get_current_key(), count


def environment(keys: dict[str, Any] | None = None, parallelism: int = 1) -> StreamExecutionEnvironment:
    config = Configuration.from_dict({"parallelism.default": parallelism, **(keys or {})})
    return StreamExecutionEnvironment.get_execution_environment(config)


def ticks(env: StreamExecutionEnvironment, **arguments: Any) -> Any:
    source = env.from_source(Ticks(**arguments), WatermarkStrategy.no_watermarks(), "ticks").set_parallelism(1)
    return source.uid("ticks")


def counting(
    keys: dict[str, Any] | None = None, parallelism: int = 1, uid: str = "count", **source: Any
) -> StreamExecutionEnvironment:
    """KEYS keys at once, then key 0 again and again; counted; collected."""
    env = environment(keys, parallelism)
    arguments = {"burst": KEYS, **source}
    keyed = ticks(env, **arguments).key_by(lambda i: i if i < KEYS else 0)
    keyed.process(Count()).name("count").uid(uid).sink_to(CollectSink()).name("out").uid("out")
    return env


class MemorySink(Sink[Any, int]):
    """Commits to a list of this process; the first `failures` tries fail."""

    committed: list[int] = []
    tries = 0

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        type(self).committed = []
        type(self).tries = 0

    def create_writer(self, context: SinkContext) -> SinkWriter[Any, int]:
        return _MemoryWriter()

    def create_committer(self) -> Committer[int]:
        return _MemoryCommitter(self.failures)


class _MemoryWriter(SinkWriter[Any, int]):
    def __init__(self) -> None:
        self._values: list[int] = []

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._values += values

    def prepare_commit(self) -> list[int]:
        prepared, self._values = self._values, []
        return prepared


class _MemoryCommitter(Committer[int]):
    def __init__(self, failures: int) -> None:
        self._failures = failures

    def commit(self, committables: list[int]) -> list[int]:
        MemorySink.tries += 1
        if MemorySink.tries <= self._failures:
            raise OSError("the outside is away")
        MemorySink.committed += committables
        return []
