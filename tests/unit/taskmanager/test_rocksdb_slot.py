"""A job whose keyed state lives in RocksDB, from the configuration key to the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rocksdict
from small_jobs import KEYS, counting, environment, ticks

from tidegate.common import Time
from tidegate.common.job_status import JobStatus
from tidegate.datastream import KeyedCoProcessFunction, KeyedProcessFunction, MapFunction
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.state import ListStateDescriptor, StateTtlConfig, ValueStateDescriptor
from tidegate.protocol.messages import AckCheckpoint
from tidegate.state.rocksdb.database import Database
from tidegate.state.rocksdb.settings import RocksDBSettings
from tidegate.storage.cleanup import checkpoint_files
from tidegate.storage.handles import KeyedSnapshot
from tidegate.testing.in_process_job import InProcessJob


def rocksdb(tmp_path: Path, **keys: Any) -> dict[str, Any]:
    return {
        "state.backend.type": "rocksdb",
        "state.backend.rocksdb.localdir": str(tmp_path / "local"),
        "execution.checkpointing.interval": "100 ms",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        **keys,
    }


def keyed_snapshots(job: InProcessJob) -> list[KeyedSnapshot]:
    acks = job.heard(AckCheckpoint)
    return [o.keyed for ack in acks for o in ack.snapshot.operators if o.keyed is not None]


def local_files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "local").glob("*"))


@pytest.mark.parametrize("incremental", [True, False])
def test_checkpoints_hold_database_files_and_only_new_ones_when_incremental(tmp_path: Path, incremental: bool) -> None:
    with InProcessJob(counting(rocksdb(tmp_path, **{"execution.checkpointing.incremental": incremental}))) as job:
        job.advance(650)
        assert local_files(tmp_path)
        snapshots = keyed_snapshots(job)
        assert {s.backend for s in snapshots} == {"rocksdb"}
        inherits = [any(s.inherited_handles(n)) for n, s in enumerate(snapshots, 1)]  # type: ignore[arg-type]
        assert not inherits[0]
        assert any(inherits) is incremental  # not all: RocksDB may have joined all files of such a small state
        job.cancel()
    assert not local_files(tmp_path)


class FailOnce(KeyedProcessFunction):
    failed = False

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count"))
        self._seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        self._seen.add(value)
        if value == KEYS + 60 and not FailOnce.failed:
            FailOnce.failed = True
            raise RuntimeError("once")
        ctx.timer_service().register_processing_time_timer(10**12)  # never comes, but is state
        assert len(list(self._seen.get())) == count
        yield ctx.get_current_key(), count


@pytest.mark.parametrize("storage", ["filesystem", "jobmanager"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_failure_loses_nothing_and_leaves_no_file_behind(tmp_path: Path, storage: str, parallelism: int) -> None:
    FailOnce.failed = False
    keys = {"execution.checkpointing.storage": storage, "restart-strategy.type": "fixed-delay"}
    env = environment(rocksdb(tmp_path, **keys, **{"restart-strategy.fixed-delay.delay": "1 ms"}), parallelism)
    keyed = ticks(env, burst=KEYS).key_by(lambda i: i if i < KEYS else 0)
    keyed.process(FailOnce()).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(2000)
        assert FailOnce.failed
        counts = [count for key, count in job.results if key == 0]
        assert counts == list(range(1, len(counts) + 1))
        assert len(counts) > 100
        assert len({key for key, _ in job.results}) == KEYS
        job.cancel()
        assert not local_files(tmp_path)
        coordinator = job.coordinator
        assert coordinator is not None
        referenced = set().union(*(checkpoint_files(c.metadata) for c in coordinator.store.checkpoints))
    root = tmp_path / "checkpoints" / job.graph.job_id
    shared = {str(p.relative_to(root)) for p in (root / "shared").glob("*")}
    assert shared == {path for path in referenced if path.startswith("shared/")}
    assert not job.problems


@pytest.mark.parametrize(("before", "after"), [("rocksdb", "hashmap"), ("hashmap", "rocksdb"), ("rocksdb", "rocksdb")])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_resumes_with_another_backend_and_parallelism(
    tmp_path: Path, before: str, after: str, parallelism: int
) -> None:
    with InProcessJob(counting(rocksdb(tmp_path / "a", **{"state.backend.type": before}), parallelism=2)) as job:
        job.advance(350)
        counted = max(count for key, count in job.results if key == 0)
        job.cancel()
        newest = job.completed[-1]
    path = tmp_path / "a" / "checkpoints" / job.graph.job_id / f"chk-{newest}"
    keys = {"state.backend.type": after, "execution.state-recovery.path": str(path)}
    env = counting(rocksdb(tmp_path / "b", **keys), parallelism=parallelism, count=KEYS + counted + 50)
    with InProcessJob(env) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert max(count for key, count in job.results if key == 0) == counted + 51
    assert not local_files(tmp_path / "b")


def test_a_folder_that_cannot_be_used_fails_the_job_with_the_operators_name(tmp_path: Path) -> None:
    (tmp_path / "local").write_text("a file")
    env = counting(rocksdb(tmp_path, **{"restart-strategy.type": "none"}))
    with InProcessJob(env) as job:
        job.advance(100)
        assert job.ended is not None
        assert job.ended.status is JobStatus.FAILED
        assert "count" in job.failure
        assert str(tmp_path / "local") in job.failure


class FullDisk:
    """A database handle that fails as RocksDB does on a full disk; after a flush that failed no write passes."""

    full = False  # of the disk
    failing: set[str] = set()
    refused: list[str] = []

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._broken = False

    def __getattr__(self, name: str) -> Any:
        if FullDisk.full and (name in FullDisk.failing or (name == "write" and self._broken)):
            return self._refuse
        return getattr(self.raw, name)

    def _refuse(self, *_: Any) -> None:
        self._broken = True
        FullDisk.refused.append(self.raw.path())
        raise Exception("IO error: No space left on device: While appending to file: 000012.sst")


@pytest.mark.parametrize("failing", ["write", "flush"])
def test_a_disk_that_is_full_for_a_while_fails_the_attempt_and_loses_nothing(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes fail, or only that of RocksDB's memory to the disk; in the midst of the job, with checkpoints before."""
    monkeypatch.setattr(FullDisk, "full", False)
    monkeypatch.setattr(FullDisk, "failing", {failing})
    monkeypatch.setattr(FullDisk, "refused", [])
    opened = Database.__init__

    def on_a_disk_that_fills_up(self: Database, *arguments: Any, **keywords: Any) -> None:
        opened(self, *arguments, **keywords)
        self.raw = FullDisk(self.raw)  # type: ignore[assignment]

    monkeypatch.setattr(Database, "__init__", on_a_disk_that_fills_up)
    linked = rocksdict.Checkpoint
    monkeypatch.setattr(rocksdict, "Checkpoint", lambda handle: linked(handle.raw))
    restarts = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "500 ms"}
    count = KEYS + 150
    with InProcessJob(counting(rocksdb(tmp_path, **restarts), parallelism=2, count=count)) as job:
        job.advance(450)
        assert len(job.heard(AckCheckpoint)) > 4
        assert not job.master.failures
        FullDisk.full = True
        job.advance(150)
        assert len(job.master.failures) == 1
        assert FullDisk.refused
        folder = Path(FullDisk.refused[0])
        assert tmp_path / "local" in folder.parents
        for told in ("'count'", str(folder), "No space left on device", "state.backend.rocksdb.localdir"):
            assert told in job.failure
        assert not local_files(tmp_path)
        FullDisk.full = False  # somebody has made room
        assert job.run_to_end() is JobStatus.FINISHED
        assert len(job.master.failures) == 1
        expected = [(key, 1) for key in range(KEYS)] + [(0, n) for n in range(2, count - KEYS + 2)]
        assert sorted(job.results) == sorted(expected)
    assert not local_files(tmp_path)


class Expiring(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor("count")
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(50)).build())
        self._count = runtime_context.get_state(descriptor)

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield count


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize(("every_ms", "most"), [(20, 11), (60, 1)])
def test_time_to_live_goes_by_the_slots_clock(tmp_path: Path, backend: str, every_ms: int, most: int) -> None:
    env = environment(rocksdb(tmp_path, **{"state.backend.type": backend}))
    keyed = ticks(env, burst=1, every_ms=every_ms, count=11).key_by(lambda i: "k")
    keyed.process(Expiring()).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
        assert max(job.results) == most


class Count(KeyedProcessFunction, MapFunction, KeyedCoProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count"))

    def map(self, value: int) -> tuple[int, int]:
        self._count.update((self._count.value() or 0) + 1)
        return value % MANY, self._count.value()

    def process_element(self, value: int, ctx: Any) -> Any:
        yield self.map(value)

    process_element1 = process_element2 = process_element


MANY = 3000
APPLY = {
    "process": lambda keyed: keyed.process(Count()),
    "map": lambda keyed: keyed.map(Count()),
    "reduce": lambda keyed: keyed.reduce(lambda a, b: a + MANY).map(lambda i: (i % MANY, i // MANY + 1)),
    "connected": lambda keyed: keyed.connect(keyed).process(Count()),
}


@pytest.mark.parametrize("kind", APPLY)
def test_keys_that_the_cache_does_not_hold_are_read_in_batches(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every operator that has keys; fails when one does not name them to its backend."""
    fetched = []
    get_many = Database.get_many
    monkeypatch.setattr(Database, "get_many", lambda self, keys: fetched.append(len(keys)) or get_many(self, keys))
    monkeypatch.setattr(RocksDBSettings, "object_cache_bytes", 128 * 1024)
    env = environment(rocksdb(tmp_path), 1)
    keyed = ticks(env, burst=3 * MANY, count=3 * MANY).key_by(lambda i: i % MANY)
    APPLY[kind](keyed).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(1000)
        rounds = 6 if kind == "connected" else 3
        assert sorted(job.results) == [(key, n) for key in range(MANY) for n in range(1, rounds + 1)]
    assert sum(fetched) > MANY
