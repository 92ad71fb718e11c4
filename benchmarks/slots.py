"""A real slot in this process, without Spark around it: what is measured is the CPU time of the runtime alone, which a
busy machine changes little."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.workloads import environment
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.splits import make_splits
from tidegate.protocol.messages import Message, Start
from tidegate.taskmanager.clock import SystemClock
from tidegate.taskmanager.deployment import RuntimeSettings, SlotPlan
from tidegate.taskmanager.slot import SlotRuntime
from tidegate.taskmanager.task import TaskState

Build = Callable[[Any], Any]
"""Builds the job in an environment of parallelism 1."""


class Host:
    """A slot's outside: nobody else is there."""

    transport: Any = None
    run_coroutine: Any = None

    def __init__(self) -> None:
        self.clock = SystemClock()

    def send_to_master(self, message: Message) -> None: ...

    def run_async(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        done(work(), None)

    def post(self, mail: Callable[[], None]) -> None: ...

    def operator_made(self, operator: Any) -> None: ...

    def trace(self, text: str) -> None: ...


def job_graph(build: Build) -> JobGraph:
    env = environment(1)
    build(env)
    return make_splits(build_job_graph(env._operators, env._graph_settings(), "slot", env._job_id()).job_graph)


@contextlib.contextmanager
def started(build: Build, settings: RuntimeSettings) -> Iterator[SlotRuntime]:
    slot = SlotRuntime(SlotIndex(0), AttemptNumber(0), SlotPlan(job_graph(build), settings), Host())
    slot.deploy(None)
    slot.on_message(Start(attempt=AttemptNumber(0)))
    gc.collect()
    try:
        yield slot
    finally:
        slot.close()


def run_to_end(slot: SlotRuntime) -> float:
    """CPU seconds of this process."""
    began = time.process_time()
    while any(task.state is TaskState.RUNNING for task in slot.tasks):
        slot.step()
    return time.process_time() - began
