"""Records that have become slow inside a chain: a barrier waits for a few, and the snapshot holds the others."""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from held_records import (
    COUNT,
    FEW,
    SLOW_FROM,
    Stream,
    World,
    checkpoint,
    fall_behind,
    golden_job,
    held,
    job,
    latest,
    slowly,
    step_until,
    tasks,
    watched,
)

from tidegate.common import Duration, WatermarkStrategy
from tidegate.common.job_status import JobStatus
from tidegate.datastream import OutputTag, ProcessFunction
from tidegate.jobmanager.channel_assignment import UnmovableRecordsError
from tidegate.network.elements import Watermark
from tidegate.network.serialization import deserialize
from tidegate.storage.handles import CHAIN
from tidegate.storage.metadata import FORMAT_VERSION, read_metadata
from tidegate.storage.worker_storage import file_source
from tidegate.testing.in_process_job import InProcessJob

PAUSE_AT = 1_000


class Stamped(ProcessFunction):
    """(record, its timestamp, the time that the operator has come to). There is a pause for a watermark."""

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        slowly(value)
        if value == PAUSE_AT:
            World.job.clock.now += 1000.0
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()


SIDE = OutputTag("odd")
UNALIGNED = {"execution.checkpointing.unaligned.enabled": True}


class Split(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        yield (SIDE, value) if value % 2 else value


def both_outputs(stream: Stream) -> Stream:
    split = stream.process(Split())
    return split.map(slowly).union(split.get_side_output(SIDE).map(slowly))


JOBS: dict[str, Callable[[Stream], Stream]] = {
    "map behind a source": lambda s: s.map(slowly),
    "map behind a map": lambda s: s.map(lambda v: v).map(slowly),
    "two slow ones": lambda s: s.map(slowly).map(slowly),
    "map behind what makes many": lambda s: s.flat_map(lambda v: range(COUNT) if v == 0 else ()).map(slowly),
    "batches behind a slow map": lambda s: s.map(slowly).map_batches(lambda values: values, 7, 60_000),
    "a slow map behind batches": lambda s: s.map_batches(lambda values: values, 7, 60_000).map(slowly),
    "both outputs": both_outputs,
    "values that only cloudpickle takes": lambda s: s.map(lambda v: lambda: v).map(lambda f: slowly(f())),
}


@pytest.fixture(autouse=True)
def watching() -> Iterator[None]:
    with watched():
        yield


@pytest.mark.parametrize("keys", [{}, UNALIGNED], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("kind", JOBS)
def test_a_barrier_waits_for_few_records_and_the_others_are_restored(
    kind: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    with InProcessJob(job(JOBS[kind], tmp_path, keys)) as running:
        fall_behind(running)
        assert checkpoint(running) <= FEW
        assert held(tmp_path) > 100
        assert checkpoint(running) <= FEW
        running.kill_worker()
        World.slow = False
        assert running.run_to_end(1_000_000) is JobStatus.FINISHED, running.failure
        assert sorted(running.results) == list(range(COUNT))
        if kind != "both outputs":
            assert running.results == list(range(COUNT))


def test_what_the_source_has_left_does_not_wait_for_what_is_further_along(tmp_path: Path) -> None:
    """The time was up while records were given their timestamps: only then can the others be part of a snapshot."""

    def stamp(value: int, _: int) -> int:
        if value == SLOW_FROM + 100 and not World.calls:
            World.take_time()
        return value

    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(stamp)
    with InProcessJob(job(JOBS["map behind a source"], tmp_path, strategy=strategy)) as running:
        World.job = running
        step_until(running, lambda: World.calls > 2)
        assert checkpoint(running) <= FEW
        assert held(tmp_path) > 200
        running.kill_worker()
        World.slow = False
        assert running.run_to_end(1_000_000) is JobStatus.FINISHED, running.failure
        assert running.results == list(range(COUNT))


def test_time_inside_a_chain_is_restored_with_the_records(tmp_path: Path) -> None:
    """Watermarks wait there in their order, and the operator goes on at the time that it had come to."""

    def build(stream: Stream) -> Stream:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0))
        timed = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda v, _: v))
        return timed.process(Stamped())

    with InProcessJob(job(build, tmp_path)) as running:
        fall_behind(running)
        assert checkpoint(running) <= FEW
        reached = deserialize(*_elements(tmp_path)[0])
        assert isinstance(reached, Watermark)
        running.kill_worker()
        assert running.run_to_end(1_000_000) is JobStatus.FINISHED
        results = running.results
    assert [(value, stamp) for value, stamp, _ in results] == [(value, value) for value in range(COUNT)]
    watermarks = [watermark for _, _, watermark in results]
    assert watermarks == sorted(watermarks)
    assert all(watermark < value for value, _, watermark in results)
    assert watermarks[SLOW_FROM] == reached.timestamp > 0


def _elements(directory: Path) -> list[Any]:
    loaded = read_metadata(str(latest(directory)))
    channel = max((c for c in loaded.metadata.channels if c.side == CHAIN), key=lambda c: c.records)
    return list(pickle.loads(file_source(str(loaded.root)).read(channel.handle)))


def test_a_barrier_behind_the_last_record_of_a_channel_is_taken_while_the_chain_is_behind(tmp_path: Path) -> None:
    """Aligned. The head has taken everything, and what waits inside its chain keeps the barrier no longer."""
    many = lambda s: s.rebalance().flat_map(lambda v: range(COUNT)).map(slowly)  # noqa: E731
    with InProcessJob(job(many, tmp_path, count=1)) as running:
        fall_behind(running)
        (task,) = [task for task in tasks(running) if task.chain.behind]
        assert task.inputs
        assert checkpoint(running) <= FEW
        assert held(tmp_path) > 100
        running.kill_worker()
        World.slow = False
        assert running.run_to_end(1_000_000) is JobStatus.FINISHED
        assert running.results == list(range(COUNT))


def test_a_savepoint_has_none_and_waits_for_them(tmp_path: Path) -> None:
    with InProcessJob(job(JOBS["map behind a source"], tmp_path)) as running:
        fall_behind(running)
        before = World.calls
        running.savepoint(tmp_path / "savepoint").run()
        answer = running.answer()
        assert answer is not None
        assert answer.error is None, answer.error
        assert World.calls - before > 100
    assert not read_metadata(str(tmp_path / "savepoint")).metadata.channels


def test_after_stopping_with_a_drain_nothing_waits_in_a_checkpoint(tmp_path: Path) -> None:
    """The end of time that it brings is none for a job that goes on."""
    with InProcessJob(job(JOBS["map behind a source"], tmp_path)) as running:
        fall_behind(running)
        for task in tasks(running):
            task.drain()
        checkpoint(running)
        assert held(tmp_path) == 0


class Locked:
    def __init__(self, value: int) -> None:
        self.value, self.lock = value, threading.Lock()


def test_records_that_cannot_be_pickled_are_worked_off(tmp_path: Path) -> None:
    with InProcessJob(job(lambda s: s.map(Locked).map(lambda o: slowly(o.value)), tmp_path)) as running:
        fall_behind(running)
        checkpoint(running)
        assert held(tmp_path) == 0
        assert all(not task.chain.holdable for task in tasks(running))
        assert running.run_to_end(1_000_000) is JobStatus.FINISHED, running.failure
        assert running.results == list(range(COUNT))


def test_at_least_once_holds_records_without_their_time(tmp_path: Path) -> None:
    keys = {"execution.checkpointing.mode": "AT_LEAST_ONCE"}
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v)
    build = lambda s: s.assign_timestamps_and_watermarks(strategy).map(slowly)  # noqa: E731
    with InProcessJob(job(build, tmp_path, keys)) as running:
        fall_behind(running)
        assert checkpoint(running) <= FEW
        assert held(tmp_path) > 100
        assert not any(isinstance(deserialize(*e), Watermark) for e in _elements(tmp_path))
        running.kill_worker()
        World.slow = False
        assert running.run_to_end(1_000_000) is JobStatus.FINISHED
        assert set(running.results) == set(range(COUNT))


def test_records_inside_a_chain_cannot_be_moved_and_an_older_checkpoint_without_any_can(tmp_path: Path) -> None:
    def wide(parallelism: int, restore: Path | None = None) -> Any:
        keys = {} if restore is None else {"execution.state-recovery.path": str(restore)}

        def build(stream: Stream) -> Stream:
            return stream.set_parallelism(parallelism).map(slowly).uid("slow").set_parallelism(parallelism)

        return job(build, tmp_path / f"{parallelism}", keys)

    with InProcessJob(wide(2)) as running:
        World.job = running
        step_until(running, lambda: any(task.records_in for task in tasks(running)))
        checkpoint(running)
        without = latest(tmp_path / "2")
        assert not read_metadata(str(without)).metadata.channels
        fall_behind(running)
        checkpoint(running)
        running.cancel()
        written = list(running.results)
    assert held(tmp_path / "2")
    World.slow = False
    with InProcessJob(wide(3, latest(tmp_path / "2"))) as resumed:
        assert resumed.run_to_end(1_000_000) is JobStatus.FINISHED, resumed.failure
        assert set(resumed.results) | set(written) == set(range(COUNT))
    for older in (tmp_path / "2").glob("*/chk-*"):
        if older.name == without.name:
            shutil.rmtree(older)
    with pytest.raises(UnmovableRecordsError, match=r"waited inside a chain, for 'Map' \(uid slow\).*from 2 to 3"):
        InProcessJob(wide(3, latest(tmp_path / "2")))


GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("checkpoint-v*/chk-*"))


def test_there_is_a_golden_checkpoint_for_every_format_version_that_has_held_records() -> None:
    assert [p.parent.name for p in GOLDEN] == [f"checkpoint-v{n}" for n in range(4, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.parent.name)
def test_a_golden_checkpoint_is_restored_with_the_records_inside_its_chain(path: Path, tmp_path: Path) -> None:
    with InProcessJob(golden_job(tmp_path, {"execution.state-recovery.path": str(path)})) as resumed:
        World.slow = False
        assert resumed.run_to_end(1_000_000) is JobStatus.FINISHED, resumed.failure
        assert resumed.results == list(range(COUNT))
        assert World.calls < COUNT - SLOW_FROM
