"""Another parallelism, with and without records in flight: nothing is lost, doubled or out of order."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from small_jobs import environment, ticks

from tidegate.common.errors import SnapshotError
from tidegate.common.job_status import JobStatus
from tidegate.datastream import KeyedProcessFunction, MapFunction, RuntimeContext
from tidegate.datastream.connectors.base import Sink, SinkContext, SinkWriter
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.storage.metadata import encode_metadata, read_metadata
from tidegate.testing.in_process_job import InProcessJob

RECORDS = 3000
KEYS = 23


class Gate:
    is_open = True
    written: list[Any] = []


class GatedSink(Sink[Any, Any]):
    """Takes nothing while the gate is closed: everything before it comes to a standstill."""

    def create_writer(self, context: SinkContext) -> SinkWriter[Any, Any]:
        return _GatedWriter()

    def create_committer(self) -> None:
        return None


class _GatedWriter(SinkWriter[Any, Any]):
    @property
    def available(self) -> bool:
        return Gate.is_open

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        Gate.written += values

    def prepare_commit(self) -> list[Any]:
        return []


class InOrder(KeyedProcessFunction):
    """Fails when a key's records do not come one by one, in the order of the source."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        last = self._last.value()
        expected = value % KEYS if last is None else last + KEYS
        assert value == expected, f"key {value % KEYS}: {value} after {last}"
        self._last.update(value)
        yield value


class Same(MapFunction):
    def map(self, value: Any) -> Any:
        return value


def job(keys: dict[str, Any], parallelism: int, directory: Path, edge: str) -> Any:
    env = environment(
        {
            "execution.checkpointing.interval": "50 ms",
            "execution.checkpointing.dir": str(directory),
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "execution.checkpointing.num-retained": 20,
            "execution.checkpointing.unaligned.enabled": True,
            "tidegate.network.batch-size": 16,
            "pipeline.max-parallelism": 64,
            **keys,
        },
        parallelism,
    )
    source = ticks(env, count=RECORDS, burst=RECORDS)
    if edge == "hash":
        stream = source.key_by(lambda i: i % KEYS).process(InOrder()).uid("work")
    elif edge == "rebalance":
        stream = source.rebalance().map(Same()).uid("work")
    else:
        stream = source.rebalance().map(Same()).uid("first").forward().map(Same()).disable_chaining().uid("work")
    stream.sink_to(GatedSink()).uid("out")
    return env


def checkpoint_with_records_in_flight(directory: Path, parallelism: int, edge: str) -> tuple[Path, Counter[Any]]:
    """(a checkpoint, what its sink had written before it)."""
    Gate.is_open, Gate.written = True, []
    with InProcessJob(job({}, parallelism, directory, edge)) as running:
        running.step(12)
        Gate.is_open = False
        written = Counter(Gate.written)
        running.advance(120)
        running.cancel()
        assert running.ended is not None
        last = running.completed[-1] if running.completed else 0
    path = max(directory.glob("*/chk-*"), key=lambda p: int(p.name[4:]))
    assert last or path
    return path, written


@pytest.mark.parametrize("edge", ["hash", "rebalance"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (4, 1), (1, 4), (2, 2)])
def test_in_flight_records_of_an_unaligned_checkpoint_survive_a_change_of_parallelism(
    tmp_path: Path, edge: str, before: int, after: int
) -> None:
    path, written = checkpoint_with_records_in_flight(tmp_path, before, edge)
    metadata = read_metadata(str(path)).metadata
    assert {c.side for c in metadata.channels} == {"input", "output"}
    Gate.is_open, Gate.written = True, []
    with InProcessJob(job({"execution.state-recovery.path": str(path)}, after, tmp_path / "new", edge)) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED, resumed.failure
    assert written + Counter(Gate.written) == Counter(range(RECORDS))


def test_moved_records_are_part_of_the_next_checkpoint_while_they_wait(tmp_path: Path) -> None:
    path, written = checkpoint_with_records_in_flight(tmp_path, 3, "hash")
    Gate.is_open, Gate.written = False, []
    with InProcessJob(job({"execution.state-recovery.path": str(path)}, 2, tmp_path / "b", "hash")) as stuck:
        stuck.advance(200).cancel()
    again = max((tmp_path / "b").glob("*/chk-*"), key=lambda p: int(p.name[4:]))
    assert read_metadata(str(again)).metadata.channels
    Gate.is_open = True
    with InProcessJob(job({"execution.state-recovery.path": str(again)}, 4, tmp_path / "c", "hash")) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED, resumed.failure
    assert written + Counter(Gate.written) == Counter(range(RECORDS))


def test_where_records_cannot_be_moved_the_nearest_checkpoint_without_them_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = checkpoint_with_records_in_flight(tmp_path, 2, "forward")
    keys = {"execution.state-recovery.path": str(path)}
    with pytest.raises(SnapshotError, match=r"between neighbours of a forward edge.*Resume with parallelism 2"):
        InProcessJob(job(keys, 3, tmp_path / "new", "forward"))
    metadata = read_metadata(str(path)).metadata
    older = msgspec.structs.replace(metadata, checkpoint_id=metadata.checkpoint_id - 1, channels=[])
    beside = path.parent / f"chk-{older.checkpoint_id}"
    beside.mkdir(exist_ok=True)
    (beside / "_metadata").write_bytes(encode_metadata(older))
    Gate.is_open = True
    with caplog.at_level(logging.WARNING), InProcessJob(job(keys, 3, tmp_path / "new", "forward")) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED
        assert resumed.master.restored_checkpoint == older.checkpoint_id
    assert "will be written again" in caplog.text


def test_more_subtasks_than_key_groups_are_refused(tmp_path: Path) -> None:
    path, _ = checkpoint_with_records_in_flight(tmp_path, 2, "hash")
    keys = {"execution.state-recovery.path": str(path)}
    with pytest.raises(Exception, match=r"parallelism 65 is greater than its max parallelism 64"):
        InProcessJob(job(keys, 65, tmp_path / "new", "hash"))
