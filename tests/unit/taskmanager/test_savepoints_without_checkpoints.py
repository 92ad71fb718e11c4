"""A job without checkpointing can be saved, stopped and resumed all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_jobs import environment, ticks

from tidegate.common.job_status import JobStatus
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import KeyedProcessFunction, RuntimeContext
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.protocol.messages import TriggerCheckpoint
from tidegate.storage.metadata import read_metadata
from tidegate.testing.in_process_job import InProcessJob

RECORDS, KEYS = 60, 7


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value % KEYS, count


def job(parallelism: int, **keys: Any) -> Any:
    env = environment({"pipeline.max-parallelism": 16, **keys}, parallelism)
    counted = ticks(env, count=RECORDS).key_by(lambda i: i % KEYS).process(Count()).uid("count")
    counted.sink_to(CollectSink("out")).uid("out").set_parallelism(1)
    return env


EXPECTED = sorted((i % KEYS, i // KEYS + 1) for i in range(RECORDS))


@pytest.mark.parametrize("drain", [False, True])
def test_it_stops_with_a_savepoint_and_goes_on_at_another_parallelism(tmp_path: Path, drain: bool) -> None:
    with InProcessJob(job(2)) as running:
        running.advance(200)
        assert running.stop(tmp_path / "sp", drain).run().advance(50).ended is not None, running.answer()
        answer = running.answer()
        assert answer is not None
        assert answer.error is None
        first = list(running.results)
    assert 0 < len(first) < RECORDS
    with InProcessJob(job(3, **{"execution.state-recovery.path": str(tmp_path / "sp")})) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED, resumed.failure
        assert sorted(first + resumed.results) == EXPECTED


def test_a_savepoint_in_between_changes_nothing_and_no_checkpoint_is_ever_taken(tmp_path: Path) -> None:
    with InProcessJob(job(2)) as running:
        running.advance(200)
        running.savepoint(tmp_path / "sp").run()
        assert read_metadata(str(tmp_path / "sp")).metadata.savepoint
        running.do(lambda now: running.master.on_checkpoint_request(2, False, now))
        refused = running.answer(2)
        assert refused is not None
        assert "checkpointing is off" in str(refused.error)
        assert running.run_to_end() is JobStatus.FINISHED, running.failure
        assert sorted(running.results) == EXPECTED
        assert len(running.told(TriggerCheckpoint)) == 1
