"""Jobs whose records become slow, on the manual clock, while many of them wait inside a chain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from small_jobs import Ticks, environment

from tidegate.common import WatermarkStrategy
from tidegate.datastream.connectors import CollectSink
from tidegate.storage.handles import CHAIN
from tidegate.storage.metadata import read_metadata
from tidegate.taskmanager.slot import SlotRuntime
from tidegate.taskmanager.task import Task
from tidegate.taskmanager.time_limit import TimeLimit
from tidegate.testing.in_process_job import InProcessJob

SLOW_FROM = 2_500
COUNT = 2_900
FEW = 20  # slow records that a barrier may wait for, of some hundred

Stream = Any


class World:
    job: ClassVar[InProcessJob]
    calls: ClassVar[int] = 0  # slow ones
    slow: ClassVar[bool] = True

    @classmethod
    def take_time(cls) -> None:
        cls.calls += 1
        if cls.slow:
            cls.job.clock.now += 50.0
            for slot in cls.job.slots:
                if slot.runtime is not None:
                    slot.runtime.limit.look(cls.job.clock.now)


def slowly(value: int) -> int:
    if value >= SLOW_FROM:
        World.take_time()
    return value


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Somebody looks at the clock: whoever is slow, in `World.take_time`."""
    World.calls, World.slow = 0, True
    step, begin = SlotRuntime.step, TimeLimit.begin

    def watched_begin(limit: TimeLimit, now_ms: float) -> None:
        limit.watched = True
        begin(limit, now_ms)

    def watched_step(runtime: SlotRuntime) -> bool:
        runtime.limit.watched = True
        return step(runtime)

    with patch.object(TimeLimit, "begin", watched_begin), patch.object(SlotRuntime, "step", watched_step):
        yield


def job(
    build: Callable[[Stream], Stream],
    directory: Path,
    keys: dict[str, Any] | None = None,
    count: int = COUNT,
    strategy: WatermarkStrategy | None = None,
) -> Any:
    env = environment(
        {
            "execution.checkpointing.interval": "1 h",
            "execution.checkpointing.dir": str(directory),
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "execution.checkpointing.num-retained": 5,
            **(keys or {}),
        }
    )
    source = env.from_source(Ticks(count, count), strategy or WatermarkStrategy.no_watermarks(), "ticks")
    build(source.uid("ticks").set_parallelism(1)).sink_to(CollectSink())
    return env


def tasks(running: InProcessJob) -> list[Task]:
    return [task for slot in running.slots if slot.runtime is not None for task in slot.runtime.tasks]


def step_until(running: InProcessJob, there: Callable[[], bool]) -> None:
    for _ in range(200_000):
        if there():
            return
        if not running.step():
            running.advance(0)
    raise AssertionError("it never came to that")


def fall_behind(running: InProcessJob) -> None:
    """Many slow records wait inside a chain."""
    World.job = running
    step_until(running, lambda: World.calls > 1 and any(task.chain.behind for task in tasks(running)))


def checkpoint(running: InProcessJob) -> int:
    """How many slow records it has waited for."""
    done, before = len(running.completed), World.calls
    running.do(lambda now: running.master.on_checkpoint_request(-1, False, now))
    step_until(running, lambda: len(running.completed) > done)
    return World.calls - before


def latest(directory: Path) -> Path:
    return max(directory.glob("*/chk-*"), key=lambda p: int(p.name[4:]))


def held(directory: Path) -> int:
    """Records inside chains, in the latest checkpoint."""
    return sum(c.records for c in read_metadata(str(latest(directory))).metadata.channels if c.side == CHAIN)


def golden_job(directory: Path, keys: dict[str, Any] | None = None) -> Any:
    """Behind the golden checkpoints: it must not change in a way that makes their operators others."""
    return job(lambda s: s.map(lambda v: v).uid("quick").map(slowly).uid("slow"), directory, keys)
