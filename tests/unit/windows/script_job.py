"""A job for windows: a script of records, watermarks and arrival times, run by real slots in one thread.

A script is a list of steps, in order::

    Record(key, value, stamp)    comes now, with event time `stamp`
    Mark(stamp)                  the watermark is `stamp` from here on
    Wait(ms)                     the clock moves on

What comes between two waits may be processed as one batch. `run_script` gives what the windows emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import JobStatus, WatermarkStrategy
from tidegate.common.watermark_strategy import WatermarkGenerator, WatermarkOutput
from tidegate.contracts.batches import RecordBatch
from tidegate.datastream import DataStream, OutputTag, StreamExecutionEnvironment
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.connectors.base import Source, SourceContext, SourceSplit, SplitReader
from tidegate.datastream.functions import SinkFunction
from tidegate.testing.clock import EPOCH
from tidegate.testing.in_process_job import InProcessJob

START = int(EPOCH)
"""The clock when the job starts."""


class Record(NamedTuple):
    key: str
    value: int
    stamp: int = 0


class Mark(NamedTuple):
    stamp: int


class Wait(NamedTuple):
    ms: int


Step = Record | Mark | Wait


class Script(Source[Any]):
    def __init__(self, steps: Sequence[Step]) -> None:
        self.items: list[tuple[int, Record | Mark]] = []  # (when it comes, what)
        now = 0
        for step in steps:
            if isinstance(step, Wait):
                now += step.ms
            else:
                self.items.append((now, step))
        self.ends_at = now

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit("script")]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return _ScriptReader(self, offset or 0, context.clock)


class _ScriptReader(SplitReader[Any]):
    def __init__(self, script: Script, position: int, clock: Any) -> None:
        self._script = script
        self._position = position
        self._clock = clock

    def _due(self) -> float:
        items = self._script.items
        return EPOCH + (items[self._position][0] if self._position < len(items) else self._script.ends_at)

    def poll(self, max_records: int) -> RecordBatch | None:
        now, items = self._clock.now_ms(), self._script.items
        end = self._position
        while end < len(items) and end - self._position < max_records and EPOCH + items[end][0] <= now:
            end += 1
        polled = [step for _, step in items[self._position : end]]
        self._position = end
        if not polled and end == len(items) and self._due() <= now:
            return None
        return RecordBatch(polled, [step.stamp for step in polled])

    def offset(self) -> int:
        return self._position

    def wake_at_ms(self) -> float:
        return self._due()


class MarkGenerator(WatermarkGenerator):
    """Punctuated: the marks of the script are the watermarks."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if isinstance(event, Mark):
            output.emit_watermark(event.stamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...


class FailsOnce:
    """A filter that lets records through and fails, once in the process, before the n-th item it sees."""

    left: dict[str, int] = {}  # name -> items until the failure; removed when it has failed

    def __init__(self, name: str, after: int | None) -> None:
        self.name = name
        FailsOnce.left.pop(name, None)
        if after is not None:
            FailsOnce.left[name] = after

    def __call__(self, value: Any) -> bool:
        left = FailsOnce.left
        if self.name in left:
            left[self.name] -= 1
            if left[self.name] < 0:
                del left[self.name]
                raise RuntimeError("planned failure")
        return isinstance(value, Record)


LATE = OutputTag("late")
KEYS: dict[str, Any] = {
    "pipeline.auto-watermark-interval": "1 h",
    "execution.buffer-timeout.interval": "0",  # records arrive when the script says
}


class Outcome(NamedTuple):
    results: list[Any]
    late: list[Record]
    restarts: int


def run_script(
    steps: Sequence[Step],
    windows: Callable[[DataStream], DataStream],
    *,
    config: dict[str, Any] | None = None,
    parallelism: int = 1,
    fail_after: int | None = None,
    checkpoint_every_ms: int | None = None,
    with_late: bool = False,
    rest_ms: int = 0,
) -> Outcome:
    """`windows` takes the stream of records and gives the stream of results. `rest_ms`: how long the source stays open
    after the last step."""
    keys = {**KEYS, **(config or {})}
    if checkpoint_every_ms is not None:
        keys["execution.checkpointing.interval"] = f"{checkpoint_every_ms} ms"
        keys["restart-strategy.type"] = "fixed-delay"
        keys["restart-strategy.fixed-delay.attempts"] = 3
        keys["restart-strategy.fixed-delay.delay"] = "0"
    else:
        keys["restart-strategy.type"] = "none"
    env = script_environment(steps, windows, keys, parallelism, fail_after, with_late, rest_ms)
    with InProcessJob(env) as job:
        assert job.run_to_end() is JobStatus.FINISHED, job.failure
        return outcome_of(job.results, job.master.attempt)


def script_environment(
    steps: Sequence[Step],
    windows: Callable[[DataStream], DataStream],
    keys: dict[str, Any],
    parallelism: int,
    fail_after: int | None = None,
    with_late: bool = False,
    rest_ms: int = 0,
    to_list: bool = False,
) -> StreamExecutionEnvironment:
    """The job, not run yet; only the windows have `parallelism`. `to_list`: results go to a ListSink."""
    env = environment(keys, parallelism)
    strategy = WatermarkStrategy.for_generator(MarkGenerator)
    source = env.from_source(Script([*steps, Wait(rest_ms)]), WatermarkStrategy.no_watermarks(), "script")
    records = (
        source.set_parallelism(1)
        .assign_timestamps_and_watermarks(strategy)
        .set_parallelism(1)
        .filter(FailsOnce("script", fail_after))
        .set_parallelism(1)
    )
    results = windows(records)
    ends = [results.map(_result)]
    if with_late:
        ends.append(results.get_side_output(LATE).map(_late))
    for end in ends:
        if to_list:
            end.add_sink(ListSink())
        else:
            end.sink_to(CollectSink())
    return env


class ListSink(SinkFunction):
    """Writes to a list of this process: across the runs of a job, which a client that collects does not see."""

    written: list[Any] = []

    def invoke(self, value: Any, context: Any) -> None:
        ListSink.written.append(value)


def outcome_of(written: list[Any], restarts: int) -> Outcome:
    results = [r for kind, r in written if kind == "result"]
    late = [r for kind, r in written if kind == "late"]
    return Outcome(results, late, restarts)


def _result(value: Any) -> tuple[str, Any]:
    return "result", value


def _late(value: Any) -> tuple[str, Any]:
    return "late", value
