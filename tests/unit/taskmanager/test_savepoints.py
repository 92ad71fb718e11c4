"""Savepoints of whole jobs, on the in-process harness: taken, restored, stopped with."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_jobs import KEYS, counting, environment, ticks

from tests.unit.storage.snapshots import of_a_newer_version
from tidegate.common import Time, Types
from tidegate.common.errors import SnapshotError
from tidegate.common.job_status import JobStatus
from tidegate.common.metric_values import MetricReport
from tidegate.datastream import KeyedProcessFunction, RuntimeContext
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.connectors.base import Committer, Sink, SinkContext, SinkWriter
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from tidegate.protocol.messages import Finish, Start
from tidegate.storage.metadata import FORMAT_VERSION
from tidegate.testing.in_process_job import InProcessJob

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}


def committing(keys: dict[str, Any], parallelism: int = 1, **source: Any) -> Any:
    """Numbers through a keyed count into a two-phase sink, whose committed records are in `Ledger.committed`."""
    env = environment(keys, parallelism)
    keyed = ticks(env, **{"burst": 20, **source}).key_by(lambda i: i % 7)
    keyed.process(PassOn()).name("pass").uid("pass").sink_to(LedgerSink()).name("ledger").uid("ledger")
    return env


class PassOn(KeyedProcessFunction):
    """Every record, and a timer that would emit something behind any barrier."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self._seen.update((self._seen.value() or 0) + 1)
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 5)
        yield value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield f"timer {ctx.get_current_key()} {timestamp}"


_ids = itertools.count()


class Ledger:
    by_id: dict[int, Any] = {}  # committing the same thing again changes nothing, as it has to be with committers
    fail_next_commits = 0

    @classmethod
    def committed(cls) -> Counter[Any]:
        return Counter(cls.by_id.values())

    @classmethod
    def numbers(cls) -> list[int]:
        return sorted(v for v in cls.by_id.values() if isinstance(v, int))


class LedgerSink(Sink[Any, Any]):
    def create_writer(self, context: SinkContext) -> SinkWriter[Any, Any]:
        return _Writer()

    def create_committer(self) -> Committer[Any]:
        return _Committer()


class _Writer(SinkWriter[Any, Any]):
    def __init__(self) -> None:
        self._pending: list[Any] = []

    def write_batch(self, values: Any, timestamps: Any) -> None:
        self._pending += values

    def prepare_commit(self) -> list[Any]:
        prepared, self._pending = self._pending, []
        return [(next(_ids), value) for value in prepared]

    def snapshot_state(self, checkpoint_id: int) -> list[Any]:
        return []


class _Committer(Committer[Any]):
    def commit(self, committables: list[Any]) -> list[Any]:
        if Ledger.fail_next_commits:
            Ledger.fail_next_commits -= 1
            raise OSError("the outside world is away")
        Ledger.by_id.update(committables)
        return []


@pytest.fixture(autouse=True)
def _clean_ledger() -> None:
    Ledger.by_id = {}
    Ledger.fail_next_commits = 0


def from_savepoint(path: Path | str, **more: Any) -> dict[str, Any]:
    return {**CHECKPOINTS, "execution.state-recovery.path": str(path), **more}


# ---------------------------------------------------------------- taking and restoring


def test_a_savepoint_is_taken_while_the_job_goes_on_and_restores_exactly_at_any_parallelism(tmp_path: Path) -> None:
    target = tmp_path / "savepoint-1"
    with InProcessJob(counting(CHECKPOINTS, parallelism=2, count=KEYS + 40)) as job:
        job.advance(100)
        job.savepoint(target).run()
        answer = job.answer()
        assert answer is not None
        assert answer.error is None
        assert answer.target == str(target)
        assert job.run_to_end() is JobStatus.FINISHED
        whole = Counter(job.results)
        before = Counter(job.results[: KEYS + 10])
    for parallelism in (1, 2, 3, 5):
        with InProcessJob(counting(from_savepoint(target), parallelism, count=KEYS + 40)) as job:
            assert job.run_to_end() is JobStatus.FINISHED
            after = Counter(job.results)
        assert not after - whole
        assert max(n for key, n in after if key == 0) == 41
        assert sum((whole - after).values()) <= sum(before.values())


def test_a_savepoint_is_a_folder_of_tables_that_anybody_can_read(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    target = tmp_path / "sp"
    with InProcessJob(counting(CHECKPOINTS, parallelism=2)) as job:
        job.advance(5)
        job.savepoint(target).run()
        assert job.answer().error is None  # type: ignore[union-attr]
    readable = json.loads((target / "metadata.json").read_text())
    assert readable["format_version"] == FORMAT_VERSION
    count = next(o for o in readable["operators"] if o["uid"] == "count")
    (state,) = [s for s in count["keyed_states"] if s["name"] == "count"]
    assert state["type"] == "LONG"
    assert state["entries"] == KEYS
    table = pq.read_table(target / state["table"])
    assert table.num_rows == KEYS
    assert str(table.schema.field("value").type) == "int64"
    assert table.column("value_pickle").null_count == KEYS  # the typed value says everything
    assert sorted(table.column("key").to_pylist()) == sorted(str(i) for i in range(KEYS))
    assert str(target) not in (target / "_metadata").read_bytes().decode("latin-1")


def test_a_moved_savepoint_restores_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    target = tmp_path / "sp"
    with InProcessJob(counting(CHECKPOINTS, parallelism=1)) as job:
        job.advance(5)
        job.savepoint(target).run()
    moved = tmp_path / "elsewhere" / "copy"
    shutil.move(target, moved)
    with InProcessJob(counting(from_savepoint(moved), count=KEYS + 1)) as job:
        assert job.run_to_end() is JobStatus.FINISHED
    for path in sorted(p for p in moved.rglob("*") if p.is_file()):
        good = path.read_bytes()
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 1
        for damaged in (bytes(bad), good[: len(good) // 2], None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            assert path.name in why_it_fails(moved), path
            path.write_bytes(good)


def why_it_fails(savepoint: Path) -> str:
    try:
        with InProcessJob(counting(from_savepoint(savepoint), count=KEYS + 1)) as job:
            return job.failure if job.run_to_end() is JobStatus.FAILED else "it does not"
    except SnapshotError as error:
        return str(error)


def test_a_savepoint_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "sp"
    with InProcessJob(counting(CHECKPOINTS)) as job:
        job.advance(5)
        job.savepoint(target).run()
    newer = of_a_newer_version((target / "_metadata").read_bytes())
    (target / "_metadata").write_bytes(newer)
    with pytest.raises(SnapshotError, match=r"format version \d+.*newer"):
        InProcessJob(counting(from_savepoint(target)))


def test_a_second_savepoint_waits_for_the_first_and_an_existing_folder_is_refused(tmp_path: Path) -> None:
    with InProcessJob(counting(CHECKPOINTS)) as job:
        job.advance(5)
        job.savepoint(tmp_path / "a", 1).savepoint(tmp_path / "b", 2).savepoint(tmp_path / "a", 3)
        job.run()
        assert job.answer(1).error is None  # type: ignore[union-attr]
        assert job.answer(2).error is None  # type: ignore[union-attr]
        assert "already" in str(job.answer(3).error)  # type: ignore[union-attr]
        assert job.master.status is JobStatus.RUNNING


def test_a_savepoint_that_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with InProcessJob(counting(CHECKPOINTS)) as job:
        job.advance(5)
        for number in range(1, 4):  # more often than the job tolerates failed checkpoints
            job.savepoint(tmp_path / "file" / "sp", number).run()
            assert "savepoint" in str(job.answer(number).error)  # type: ignore[union-attr]
        job.advance(1500)
        assert job.master.status is JobStatus.RUNNING
        assert job.master.attempt == 0
        assert job.completed


class Old:
    """What values were instances of."""

    def __init__(self, number: int) -> None:
        self.number = number


class New(Old):
    """Where the class is now."""


class KeepsObjects(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._kept = runtime_context.get_state(ValueStateDescriptor("kept"))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        kept = self._kept.value()
        self._kept.update(kept or Old(value))
        yield type(kept).__name__


def test_the_class_mapping_reaches_what_reads_the_state(tmp_path: Path) -> None:
    def job(keys: dict[str, Any], count: int | None) -> Any:
        env = environment(keys)
        keyed = ticks(env, burst=5, count=count).key_by(lambda i: 0)
        keyed.process(KeepsObjects()).uid("keeps").sink_to(CollectSink()).uid("out")
        return env

    target = tmp_path / "sp"
    with InProcessJob(job(CHECKPOINTS, None)) as running:
        running.advance(5)
        running.savepoint(target).run()
    mapping = {"state.class-mapping": f"{__name__}.Old:{__name__}.New"}
    with InProcessJob(job(from_savepoint(target, **mapping), 6)) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED
        assert resumed.results[-1] == "New"
    with InProcessJob(job(from_savepoint(target), 6)) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED
        assert resumed.results[-1] == "Old"


def test_an_incompatible_state_ends_the_job_before_it_processes_anything(tmp_path: Path) -> None:
    target = tmp_path / "sp"
    with InProcessJob(counting(CHECKPOINTS)) as job:
        job.advance(5)
        job.savepoint(target).run()
    env = environment(from_savepoint(target, **{"restart-strategy.type": "fixed-delay"}))
    keyed = ticks(env, burst=5).key_by(lambda i: 0)
    keyed.process(CountsStrings()).uid("count").sink_to(CollectSink()).uid("out")
    with InProcessJob(env) as job:
        assert job.run_to_end() is JobStatus.FAILED
        assert "state 'count' was stored as LONG, but the job declares it as STRING" in job.failure
        assert job.master.attempt == 0
        assert not job.told(Start)


class CountsStrings(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("count", Types.STRING()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        yield value


# ---------------------------------------------------------------- every kind of state


class AllKinds(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("v", Types.TUPLE([Types.INT(), Types.STRING()])))
        self.list = runtime_context.get_list_state(ListStateDescriptor("l", Types.DOUBLE()))
        self.map = runtime_context.get_map_state(MapStateDescriptor("m/ö", Types.STRING(), Types.LONG()))
        untyped = ValueStateDescriptor("t")
        untyped.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.ttl = runtime_context.get_state(untyped)

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self.value.update((value, "x"))
        self.list.add(value / 2)
        self.map.put(f"k{value % 3}", value)
        self.ttl.update({value})
        ctx.timer_service().register_event_time_timer(10**12 + value)
        yield (
            ctx.get_current_key(),
            self.value.value(),
            list(self.list.get()),
            dict(self.map.items()),
            self.ttl.value(),
        )

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield "timer", timestamp


def all_kinds(keys: dict[str, Any], parallelism: int, count: int | None) -> Any:
    env = environment(keys, parallelism)
    keyed = ticks(env, burst=60, count=count).key_by(lambda i: f"key {i % 20}", Types.STRING())
    keyed.process(AllKinds()).uid("all").sink_to(CollectSink()).uid("out")
    return env


def test_every_kind_of_state_comes_back_exactly(tmp_path: Path) -> None:
    target = tmp_path / "sp"
    with InProcessJob(all_kinds(CHECKPOINTS, 2, 100)) as job:
        job.step(60)
        job.savepoint(target).run()
        assert job.answer().error is None  # type: ignore[union-attr]
        assert job.run_to_end() is JobStatus.FINISHED
        whole = [repr(r) for r in job.results]
    for parallelism in (1, 3):
        with InProcessJob(all_kinds(from_savepoint(target), parallelism, 100)) as job:
            assert job.run_to_end() is JobStatus.FINISHED
            after = Counter(repr(r) for r in job.results)
        assert after
        assert not after - Counter(whole)
        assert sum(1 for r in after if r.startswith("('timer'")) == 100


# ---------------------------------------------------------------- stop


@pytest.mark.parametrize("parallelism", [1, 3])
def test_stop_commits_everything_up_to_the_savepoint_and_nothing_after_it(tmp_path: Path, parallelism: int) -> None:
    target = tmp_path / "sp"
    with InProcessJob(committing(CHECKPOINTS, parallelism)) as job:
        job.advance(1205)
        job.stop(target)
        assert job.run_to_end() is JobStatus.FINISHED
        answer = job.answer()
        assert answer is not None
        assert answer.error is None
        numbers = Ledger.numbers()
        assert max(Ledger.committed().values()) == 1
    assert numbers == list(range(len(numbers)))
    with InProcessJob(committing(from_savepoint(target), 2, count=200)) as job:
        assert job.run_to_end() is JobStatus.FINISHED
    assert Ledger.numbers() == list(range(200))


def test_a_stop_that_fails_lets_the_job_go_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with InProcessJob(committing(CHECKPOINTS, 2, count=300)) as job:
        job.advance(300)
        job.stop(tmp_path / "file" / "sp").advance(100)
        assert "savepoint" in str(job.answer().error)  # type: ignore[union-attr]
        assert job.master.status is JobStatus.RUNNING
        assert job.master.attempt == 0
        assert job.run_to_end() is JobStatus.FINISHED
    assert Ledger.numbers() == list(range(300))


def records(job: InProcessJob) -> list[MetricReport]:
    """How many each task has taken and given."""
    return [m for m in job.slots[0]._runtime().metrics if m.name in ("numRecordsIn", "numRecordsOut")]


def test_nothing_is_emitted_behind_the_barrier_of_a_stop_until_its_fate_is_known(tmp_path: Path) -> None:
    with InProcessJob(committing(CHECKPOINTS, 1)) as job:
        job.advance(100)
        job.slots[0]._async.clear()
        job.stop(tmp_path / "sp")
        job.slots[0]._runtime().step()
        read = records(job)
        held = list(job.slots[0]._async)  # the savepoint is being written, and that takes its time
        job.slots[0]._async.clear()
        job.advance(400)
        assert records(job) == read
        job.slots[0]._async.extend(held)
        assert job.run_to_end() is JobStatus.FINISHED


def test_a_drain_brings_event_time_to_its_end_first(tmp_path: Path) -> None:
    target = tmp_path / "sp"
    with InProcessJob(all_kinds(CHECKPOINTS, 2, None)) as job:
        job.advance(50)
        job.stop(target, drain=True)
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.answer().error is None  # type: ignore[union-attr]
        read = sum(1 for r in job.results if r[0] != "timer")
        assert sum(1 for r in job.results if r[0] == "timer") == read > 60
    with InProcessJob(all_kinds(from_savepoint(target), 2, read + 10)) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        numbers = [r[1][0] for r in job.results if r[0] != "timer" and r[1][0] >= read]
        assert sorted(numbers) == list(range(read, read + 10))  # the source goes on where it was
        timers = [r[1] - 10**12 for r in job.results if r[0] == "timer" and r[1] - 10**12 >= read]
        assert sorted(timers) == list(range(read, read + 10))  # and time has its end anew


def test_a_drain_whose_savepoint_fails_goes_on_from_the_latest_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with InProcessJob(committing({**CHECKPOINTS, "restart-strategy.type": "none"}, 2, count=400)) as job:
        job.advance(1500)
        job.stop(tmp_path / "file" / "sp", drain=True).advance(200)
        assert "savepoint" in str(job.answer().error)  # type: ignore[union-attr]
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.master.attempt == 1
    assert Ledger.numbers() == list(range(400))


def test_a_crash_after_the_savepoint_is_complete_still_commits_it_once(tmp_path: Path) -> None:
    target = tmp_path / "sp"
    keys = {**CHECKPOINTS, "restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "1 ms"}
    keys |= {"tidegate.sink.commit-retries": 0}
    with InProcessJob(committing(keys, 2)) as job:
        job.advance(1500)
        Ledger.fail_next_commits = 1
        job.stop(target)
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.master.attempt == 1
        assert job.told(Finish)
        assert [m.attempt for m in job.told(Start)] == [0]  # the second attempt processes nothing
        assert job.answer().error is None  # type: ignore[union-attr]
    numbers = Ledger.numbers()
    assert numbers == list(range(len(numbers)))


def test_a_job_that_fails_while_it_stops_says_where_its_savepoint_is(tmp_path: Path) -> None:
    target = tmp_path / "sp"
    keys = {**CHECKPOINTS, "restart-strategy.type": "none", "tidegate.sink.commit-retries": 0}
    with InProcessJob(committing(keys, 1)) as job:
        job.advance(1500)
        Ledger.fail_next_commits = 1
        job.stop(target)
        assert job.run_to_end() is JobStatus.FAILED
        assert str(target) in str(job.answer().error)  # type: ignore[union-attr]
    with InProcessJob(committing(from_savepoint(target), 1, count=200)) as job:
        assert job.run_to_end() is JobStatus.FINISHED
    assert Ledger.numbers() == list(range(200))
