"""Timers belong to the key of the record at hand: where there is none, setting one is an error that says so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment, ticks
from tidegate.common import JobStatus, Types
from tidegate.datastream import KeyedProcessFunction, ProcessFunction
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.functions import CheckpointedFunction, KeyedBroadcastProcessFunction
from tidegate.datastream.state import MapStateDescriptor
from tidegate.testing.in_process_job import InProcessJob

RULES = MapStateDescriptor("rules", Types.STRING(), Types.INT())
CHECKPOINTS = {
    "execution.checkpointing.interval": "20 ms",
    "execution.checkpointing.tolerable-failed-checkpoints": 0,
    "restart-strategy.type": "none",
}


class Unkeyed(ProcessFunction):
    def __init__(self, what: str) -> None:
        self.what = what

    def process_element(self, value: Any, ctx: Any) -> None:
        getattr(ctx.timer_service(), self.what)(5)


@pytest.mark.parametrize("domain", ["event", "processing"])
@pytest.mark.parametrize("what", ["register", "delete"])
def test_on_a_stream_without_keys(domain: str, what: str) -> None:
    env = environment()
    env.from_collection([1]).process(Unkeyed(f"{what}_{domain}_time_timer")).name("clock").sink_to(CollectSink())
    with InProcessJob(env) as job:
        assert job.run_to_end() is JobStatus.FAILED
        assert "timers are only available on a keyed stream: call key_by() before operator 'clock'" in job.failure


class Keeps(KeyedBroadcastProcessFunction, CheckpointedFunction):
    """Keeps the timer service of a record for later."""

    def __init__(self, use_in: str) -> None:
        self.use_in = use_in
        self.kept: Any = None

    def initialize_state(self, context: Any) -> None: ...

    def process_element(self, value: Any, ctx: Any) -> None:
        self.kept = ctx.timer_service()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        if self.use_in == "process_broadcast_element" and self.kept is not None:
            self.kept.register_event_time_timer(5)

    def snapshot_state(self, context: Any) -> None:
        if self.use_in == "snapshot_state" and self.kept is not None:
            self.kept.register_event_time_timer(5)


class KeepsAlone(KeyedProcessFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None: ...

    def process_element(self, value: Any, ctx: Any) -> None:
        self.kept = ctx.timer_service()

    def snapshot_state(self, context: Any) -> None:
        self.kept.register_processing_time_timer(5)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("where", ["process_broadcast_element", "snapshot_state", "snapshot_state alone"])
def test_with_a_timer_service_that_was_kept_from_another_call(where: str, backend: str) -> None:
    env = environment({**CHECKPOINTS, "state.backend.type": backend})
    keyed = ticks(env, every_ms=5.0).key_by(lambda v: v % 3)
    if where.endswith("alone"):
        keyed.process(KeepsAlone()).name("late").sink_to(CollectSink())
    else:
        keyed.connect(ticks(env, every_ms=5.0).uid("rules").broadcast(RULES)).process(Keeps(where)).name(
            "late"
        ).sink_to(CollectSink())
    with InProcessJob(env) as job:
        assert job.run_to_end(1000) is JobStatus.FAILED
        where = where.removesuffix(" alone")
        assert f"operator 'late': keyed state was used in {where}, where no key is current" in job.failure
