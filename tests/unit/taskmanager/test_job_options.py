"""What the options do that steer a job, its checkpoints and its restarts: from the key in the configuration to the
effect on the real JobMaster and real slots."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
from small_jobs import counting, environment, ticks

from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, JobGraphError, SnapshotError
from tidegate.common.job_status import JobStatus
from tidegate.common.restart_strategy import restart_strategy_of
from tidegate.datastream import (
    FileSystemCheckpointStorage,
    FsStateBackend,
    JobManagerCheckpointStorage,
    MapFunction,
    MemoryStateBackend,
)
from tidegate.datastream.connectors import CollectSink
from tidegate.fault_tolerance.barriers.failures import CheckpointFailureReason
from tidegate.fault_tolerance.barriers.statistics import CheckpointStatus
from tidegate.jobmanager import state_assignment
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.restart_strategies import GiveUp, RestartAfter, make_restart_strategy
from tidegate.network.elements import Alignment
from tidegate.protocol.instructions import CancelGang, SubmitGang
from tidegate.protocol.messages import AckCheckpoint, Leave, MasterHeartbeat, TriggerCheckpoint
from tidegate.storage.metadata import read_metadata
from tidegate.testing.in_process_job import InProcessJob, graph_of

EVERY = "execution.checkpointing."


def checkpointing(**keys: Any) -> dict[str, Any]:
    return {EVERY + "interval": "100 ms", **{EVERY + key.replace("_", "-"): value for key, value in keys.items()}}


def times(job: InProcessJob) -> list[float]:
    """When checkpoints were triggered, in ms since the first moment of the job."""
    return [m.barrier.timestamp - 1_000_000 for m in job.told(TriggerCheckpoint)]


def history(job: InProcessJob) -> list[CheckpointStatus]:
    return [record.status for record in job.coordinator.stats.history]


def checkpoints_in(folder: Path) -> list[str]:
    return sorted(p.parent.name for p in folder.rglob("_metadata"))


# ---------------------------------------------------------------- the graph


def test_default_parallelism() -> None:
    graph = graph_of(counting({"parallelism.default": "3"}, parallelism=3))
    assert [v.parallelism for v in graph.vertices] == [1, 3]
    env = environment({"parallelism.default": "4"})
    env.from_collection([1]).map(str).print()
    assert graph_of(env).vertices[-1].parallelism == 4


def test_max_parallelism() -> None:
    assert {v.max_parallelism for v in graph_of(counting({"pipeline.max-parallelism": 60})).vertices} == {60}
    assert {v.max_parallelism for v in graph_of(counting()).vertices} == {128}
    with pytest.raises(JobGraphError, match="2"):
        graph_of(counting({"pipeline.max-parallelism": 1}, parallelism=2))


@pytest.mark.parametrize("key", ["pipeline.operator-chaining.enabled", "pipeline.operator-chaining"])
def test_operator_chaining(key: str) -> None:
    def vertices(chaining: bool) -> int:
        env = environment({key: chaining})
        env.from_collection([1]).map(str).map(str).print()
        return len(graph_of(env).vertices)

    assert (vertices(True), vertices(False)) == (1, 4)


def test_generated_uids_can_be_forbidden() -> None:
    env = environment({"pipeline.auto-generate-uids": "false"})
    env.from_collection([1]).uid("source").map(str).name("nameless").print()
    with pytest.raises(JobGraphError, match="nameless"):
        graph_of(env)


# ---------------------------------------------------------------- when checkpoints are taken


@pytest.mark.parametrize("interval", [100, 250])
def test_interval(interval: int) -> None:
    with InProcessJob(counting({EVERY + "interval": interval})) as job:
        job.advance(1_000)
        assert times(job) == list(range(interval, 1_001, interval))


def test_without_an_interval_there_are_no_checkpoints() -> None:
    with InProcessJob(counting()) as job:
        job.advance(10_000)
        assert job.told(TriggerCheckpoint) == []


def test_timeout() -> None:
    with InProcessJob(counting(checkpointing(timeout="30 ms", tolerable_failed_checkpoints=9))) as job:
        job.advance(99)
        job.slots[0].held = True
        job.advance(30)
        assert history(job) == [CheckpointStatus.IN_PROGRESS]
        job.advance(1)
        assert history(job) == [CheckpointStatus.FAILED]
        assert "execution.checkpointing.timeout" in job.logged


def test_min_pause() -> None:
    with InProcessJob(counting(checkpointing(min_pause="170 ms"))) as job:
        job.advance(700)
        assert times(job) == [100, 270, 440, 610]


@pytest.mark.parametrize("allowed", [1, 3])
def test_max_concurrent(allowed: int) -> None:
    with InProcessJob(counting(checkpointing(max_concurrent_checkpoints=allowed))) as job:
        job.run()
        job.slots[0].held = True
        job.advance(1_000)
        assert len(job.coordinator.in_progress) == len(times(job)) == allowed


@pytest.mark.parametrize("tolerable", [0, 2])
def test_tolerable_failures(tolerable: int) -> None:
    keys = checkpointing(timeout="10 ms", tolerable_failed_checkpoints=tolerable)
    with InProcessJob(counting({**keys, "restart-strategy.type": "none", "task.cancellation.timeout": "1 ms"})) as job:
        job.run()
        job.slots[0].held = True
        job.advance(100 + 100 * tolerable + 9)
        assert job.master.status is JobStatus.RUNNING
        job.advance(2)
        assert job.master.status is JobStatus.FAILING
        assert f"tolerates {tolerable} failed checkpoints" in job.failure


def test_checkpoints_go_on_after_some_tasks_have_finished_unless_told_otherwise() -> None:
    def taken(keys: dict[str, Any]) -> tuple[list[float], JobStatus]:
        env = environment({**checkpointing(), **keys})
        short = ticks(env, count=16).uid("short")
        long = ticks(env, count=41).uid("long")
        short.map(lambda i: i).union(long).sink_to(CollectSink())
        with InProcessJob(env) as job:
            status = job.run_to_end()
            assert len(job.results) == 57
            return times(job), status

    assert taken({}) == ([100, 200, 300, 400], JobStatus.FINISHED)
    assert taken({EVERY + "checkpoints-after-tasks-finish": "false"}) == ([100, 400], JobStatus.FINISHED)


def test_history_size() -> None:
    with InProcessJob(counting({**checkpointing(), "tidegate.checkpoint.history-size": 3})) as job:
        job.advance(1_000)
        assert [r.checkpoint_id for r in job.coordinator.stats.history] == [8, 9, 10]


# ---------------------------------------------------------------- how they are taken


def aligning(keys: dict[str, Any]) -> InProcessJob:
    """Two sources into one task in slot 0; the one in slot 1 has been held, so its barrier does not come."""
    env = environment({**checkpointing(), **keys}, parallelism=2)
    both = ticks(env, burst=50, every_ms=1).slot_sharing_group("a").uid("first")
    other = ticks(env, burst=50, every_ms=1).uid("second").slot_sharing_group("b")
    both.union(other).map(lambda i: i).set_parallelism(1).slot_sharing_group("a").sink_to(
        CollectSink()
    ).set_parallelism(1)
    job = InProcessJob(env)
    job.__enter__()
    assert len(job.slots) == 2
    job.advance(99)
    job.slots[1].held = True
    job.advance(1)
    return job


def mapper(job: InProcessJob) -> Any:
    runtime = job.slots[0].runtime
    assert runtime is not None
    return next(t for t in runtime.tasks if len(t.inputs) == 2)


def test_exactly_once_blocks_the_channel_whose_barrier_has_come_and_at_least_once_does_not() -> None:
    for mode, blocks in (("EXACTLY_ONCE", True), ("AT_LEAST_ONCE", False)):
        job = aligning({EVERY + "mode": mode})
        before = mapper(job).records_in
        job.advance(50)
        assert [c.blocked for c in mapper(job).inputs].count(True) == blocks
        assert (mapper(job).records_in == before) == blocks
        job.slots[1].held = False
        job.advance(5)
        assert job.completed == [1]
        job.__exit__()


@pytest.mark.parametrize(
    ("keys", "alignment"),
    [
        ({"unaligned.enabled": "true"}, Alignment.UNALIGNED),
        ({"unaligned": "true"}, Alignment.UNALIGNED),
        ({"unaligned.enabled": "false"}, Alignment.ALIGNED),
    ],
)
def test_unaligned_checkpoints_do_not_wait_for_the_other_channels(keys: dict[str, str], alignment: Alignment) -> None:
    job = aligning({EVERY + key: value for key, value in keys.items()})
    assert job.told(TriggerCheckpoint)[0].barrier.alignment is alignment
    job.advance(20)
    assert any(c.blocked for c in mapper(job).inputs) == (alignment is Alignment.ALIGNED)
    job.slots[1].held = False
    job.advance(5)
    assert job.completed == [1]
    vertex = mapper(job).vertex.vertex_id
    metrics = next(a.snapshot.metrics for a in job.heard(AckCheckpoint) if a.snapshot.vertex == vertex)
    assert metrics.unaligned == (alignment is Alignment.UNALIGNED)
    assert (metrics.alignment_ms > 10) == (alignment is Alignment.ALIGNED)
    job.__exit__()


def test_an_aligned_checkpoint_turns_unaligned_after_its_timeout() -> None:
    job = aligning({EVERY + "unaligned.enabled": "true", EVERY + "aligned-checkpoint-timeout": "30 ms"})
    job.advance(29)
    assert any(c.blocked for c in mapper(job).inputs)
    job.advance(3)
    assert not any(c.blocked for c in mapper(job).inputs)
    job.slots[1].held = False
    job.advance(5)
    assert job.completed == [1]
    job.__exit__()


# ---------------------------------------------------------------- where they go and how long they stay


def test_a_directory_makes_checkpoints_in_files(tmp_path: Path) -> None:
    for key in (EVERY + "dir", "state.checkpoints.dir"):
        with InProcessJob(counting({**checkpointing(), key: str(tmp_path / key)})) as job:
            job.advance(150)
            assert checkpoints_in(tmp_path / key / job.graph.job_id) == ["chk-1"]


def test_filesystem_storage_without_a_directory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"execution\.checkpointing\.dir is not set"):
        InProcessJob(counting(checkpointing(storage="filesystem")))


def test_jobmanager_storage_keeps_state_in_memory_and_in_the_metadata_when_there_is_a_directory(tmp_path: Path) -> None:
    keys = checkpointing(storage="jobmanager", externalized_checkpoint_retention="RETAIN_ON_CANCELLATION")
    with InProcessJob(counting(keys)) as job:
        job.advance(150)
        assert job.completed == [1]
    with InProcessJob(counting({**keys, EVERY + "dir": str(tmp_path)}, every_ms=1)) as job:
        job.advance(150)
        files = [p.name for p in tmp_path.rglob("*") if p.is_file() and p.name != "_lock"]
        assert files == ["_metadata"]
        job.cancel()
    path = next(tmp_path.rglob("_metadata"))
    resumed = {**checkpointing(), "execution.state-recovery.path": str(path)}
    with InProcessJob(counting(resumed)) as job:
        job.advance(250)
        assert job.results[-1][1] > 100


@pytest.mark.parametrize(
    ("choose", "in_files"),
    [
        (lambda env, folder: env.set_state_backend(FsStateBackend(folder)), True),
        (lambda env, folder: env.set_state_backend(MemoryStateBackend(folder, max_state_size=50_000)), False),
        (lambda env, folder: env.get_checkpoint_config().set_checkpoint_storage_dir(folder), True),
        (lambda env, folder: env.get_checkpoint_config().set_checkpoint_storage(files_at(folder)), True),
        (lambda env, folder: env.get_checkpoint_config().set_checkpoint_storage(memory_at(folder)), False),
    ],
    ids=["FsStateBackend", "MemoryStateBackend", "storage_dir", "FileSystemStorage", "JobManagerStorage"],
)
def test_the_api_chooses_storage_and_directory(tmp_path: Path, choose: Any, in_files: bool) -> None:
    env = counting(burst=5_000)
    env.enable_checkpointing(100)
    choose(env, f"file://{tmp_path}/checkpoints")
    with InProcessJob(env) as job:
        job.advance(150)
        assert checkpoints_in(tmp_path / "checkpoints") == ["chk-1"]
        assert bool(list(tmp_path.rglob("*.state"))) == in_files


def files_at(folder: str) -> FileSystemCheckpointStorage:
    return FileSystemCheckpointStorage(folder)


def memory_at(folder: str) -> JobManagerCheckpointStorage:
    return JobManagerCheckpointStorage(folder, max_state_size=50_000)


def test_max_state_size_of_the_jobmanagers_memory() -> None:
    keys = {**checkpointing(tolerable_failed_checkpoints=9), "state.storage.jobmanager.max-state-size": "200 b"}
    with InProcessJob(counting(keys)) as job:
        job.advance(150)
        assert history(job) == [CheckpointStatus.FAILED]
        assert job.coordinator.stats.history[0].reason is CheckpointFailureReason.STATE_TOO_LARGE
        assert "larger than 200 bytes" in job.logged
        assert "set_checkpoint_storage_dir" in job.logged


@pytest.mark.parametrize("retained", [1, 3])
def test_num_retained(tmp_path: Path, retained: int) -> None:
    with InProcessJob(counting(checkpointing(dir=str(tmp_path), num_retained=retained))) as job:
        job.advance(550)
        expected = [f"chk-{n}" for n in range(6 - retained, 6)]
        assert checkpoints_in(tmp_path) == expected


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (None, set()),
        ("NO_EXTERNALIZED_CHECKPOINTS", set()),
        ("DELETE_ON_CANCELLATION", {JobStatus.FAILED}),
        ("RETAIN_ON_CANCELLATION", {JobStatus.FAILED, JobStatus.CANCELED}),
    ],
)
def test_externalized_retention(tmp_path: Path, retention: str | None, kept: set[JobStatus]) -> None:
    keys = {**checkpointing(), "restart-strategy.type": "none"}
    if retention is not None:
        keys[EVERY + "externalized-checkpoint-retention"] = retention
    for end in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED):
        folder = tmp_path / end.name
        env = environment({**keys, EVERY + "dir": str(folder)})
        bad = 30 if end is JobStatus.FAILED else -1
        count = 40 if end is JobStatus.FINISHED else None
        ticks(env, count=count).map(FailAt(bad)).sink_to(CollectSink())
        with InProcessJob(env) as job:
            job.advance(250)
            if end is JobStatus.CANCELED:
                job.cancel()
            assert job.run_to_end() is end
        assert bool(checkpoints_in(folder)) == (end in kept)


class FailAt(MapFunction):  # type: ignore[misc]
    def __init__(self, bad: int) -> None:
        self._bad = bad

    def map(self, value: int) -> int:
        if value == self._bad:
            raise ValueError("bad value")
        return value


# ---------------------------------------------------------------- starting from a checkpoint


def retained(tmp_path: Path, **more: Any) -> Path:
    """A job has run for 250 ms and was cancelled; its last checkpoint."""
    keys = checkpointing(dir=str(tmp_path), externalized_checkpoint_retention="RETAIN_ON_CANCELLATION")
    with InProcessJob(counting({**keys, **more})) as job:
        job.advance(250)
        job.cancel()
    return next(tmp_path.rglob("_metadata")).parent


@pytest.mark.parametrize("key", ["execution.state-recovery.path", "execution.savepoint.path"])
def test_recovery_path(tmp_path: Path, key: str) -> None:
    path = retained(tmp_path)
    with InProcessJob(counting({key: str(path)}, count=260)) as job:
        job.run_to_end()
        assert job.master.restored_checkpoint == 2
        assert job.results[0][1] > 10  # the count goes on
        assert job.results[-1] == (0, 61)


def test_state_is_assigned_once_when_a_job_starts_from_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked before anything runs, and not computed again for the first attempt."""
    path, calls, assign_state = retained(tmp_path), [], state_assignment.assign_state

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return assign_state(*arguments)

    monkeypatch.setattr(state_assignment, "assign_state", counted)
    with InProcessJob(counting({"execution.state-recovery.path": str(path)}, count=260)) as job:
        job.run_to_end()
        assert job.master.restored_checkpoint == 2
    assert len(calls) == 1


def test_ignore_unclaimed_state(tmp_path: Path) -> None:
    keys = {"execution.state-recovery.path": str(retained(tmp_path))}
    with pytest.raises(SnapshotError, match=r"'count' \(uid count\).*ignore-unclaimed-state"):
        InProcessJob(counting(keys, uid="renamed"))
    keys["execution.state-recovery.ignore-unclaimed-state"] = "true"
    with InProcessJob(counting(keys, uid="renamed", count=300)) as job:
        assert job.run_to_end() is JobStatus.FINISHED


@pytest.mark.parametrize(("mode", "kept"), [("NO_CLAIM", True), ("LEGACY", True), ("CLAIM", False)])
@pytest.mark.parametrize("same_job", [False, True])
def test_claim_mode(tmp_path: Path, mode: str, kept: bool, same_job: bool) -> None:
    fixed = {"pipeline.job-id": "ab" * 16} if same_job else {}
    path = retained(tmp_path, **fixed)
    keys = {
        **checkpointing(dir=str(tmp_path), num_retained=2),
        **fixed,
        "execution.state-recovery.path": str(path),
        "execution.state-recovery.claim-mode": mode,
    }
    with InProcessJob(counting(keys)) as job:
        job.advance(150)
        assert path.exists()  # as many newer ones as are retained have to be complete
        job.advance(100)
        assert job.completed == [3, 4]
        assert path.exists() == kept
        if kept:
            assert read_metadata(str(path)).metadata.checkpoint_id == 2
            referred = [
                i.checkpoint_id
                for ack in job.heard(AckCheckpoint)
                for operator in ack.snapshot.operators
                if operator.keyed is not None
                for i in operator.keyed.increments
            ]
            assert 2 not in referred  # no checkpoint of the job needs the files of one that is not its own
        job.cancel()
    assert path.exists() == kept


def test_a_claimed_checkpoint_of_a_running_job_is_left_alone(tmp_path: Path) -> None:
    from tidegate.storage.filesystem import FileSystemStorage, delete_claimed

    path = retained(tmp_path)
    running = FileSystemStorage(str(tmp_path), path.parent.name)
    running.open(0.0)
    problems = delete_claimed(str(path.parent), 2, 0.0)  # type: ignore[arg-type]
    assert "was not deleted" in problems[0]
    assert "already running" in problems[0]
    assert path.exists()
    running.close()
    assert delete_claimed(str(path.parent), 2, 0.0) == []  # type: ignore[arg-type]
    assert not path.parent.exists()


# ---------------------------------------------------------------- the job id


def test_a_fixed_job_id_names_the_directory_and_ids_go_on_from_the_run_before(tmp_path: Path) -> None:
    keys = checkpointing(dir=str(tmp_path), externalized_checkpoint_retention="RETAIN_ON_CANCELLATION")
    fixed = {**keys, "pipeline.job-id": "0123456789ABCDEF" * 2}
    for expected in (["chk-2"], ["chk-2", "chk-4"]):  # the second run starts anew, and touches nothing of the first
        with InProcessJob(counting(fixed)) as job:
            assert job.graph.job_id == "0123456789abcdef" * 2
            job.advance(250)
            job.cancel()
        assert os.listdir(tmp_path) == [job.graph.job_id]
        assert checkpoints_in(tmp_path) == expected
    assert graph_of(counting(keys)).job_id != graph_of(counting(keys)).job_id


def test_a_job_id_has_32_hex_digits() -> None:
    with pytest.raises(ConfigurationError, match=r"pipeline\.job-id: A job id is 32 hex digits"):
        graph_of(counting({"pipeline.job-id": "my job"}))


# ---------------------------------------------------------------- restarts


@pytest.mark.parametrize(
    ("keys", "delays"),
    [
        ({"type": "none"}, []),
        ({"type": "fixed-delay"}, [1_000]),
        ({"type": "fixed-delay", "fixed-delay.attempts": 3, "fixed-delay.delay": "5 ms"}, [5, 5, 5]),
        ({"type": "failure-rate", "failure-rate.delay": "7 ms"}, [7]),
        ({"type": "failure-rate", "failure-rate.max-failures-per-interval": 4}, [1_000] * 4),
        ({"type": "failure-rate", "failure-rate.failure-rate-interval": "50 ms"}, [1_000] * 6),
        (
            {
                "type": "exponential-delay",
                "exponential-delay.initial-backoff": "10 ms",
                "exponential-delay.backoff-multiplier": 3,
                "exponential-delay.max-backoff": "100 ms",
                "exponential-delay.jitter-factor": 0,
                "exponential-delay.attempts-before-reset-backoff": 5,
            },
            [10, 30, 90, 100, 100],
        ),
    ],
)
def test_each_key_of_the_restart_strategies(keys: dict[str, Any], delays: list[float]) -> None:
    """Six failures, 100 ms apart."""
    config = Configuration.from_dict({f"restart-strategy.{key}": value for key, value in keys.items()})
    strategy = make_restart_strategy(restart_strategy_of(config, False), random.Random(0))
    seen = []
    for n in range(6):
        decision = strategy.on_failure(n * 100.0)
        if isinstance(decision, GiveUp):
            break
        seen.append(decision.delay_ms)
    assert seen == delays


def test_jitter_and_reset_threshold_of_the_exponential_delay() -> None:
    keys = {"type": "exponential-delay", "exponential-delay.jitter-factor": 0.5}
    keys["exponential-delay.reset-backoff-threshold"] = "1 s"
    config = Configuration.from_dict({f"restart-strategy.{key}": value for key, value in keys.items()})
    first, after_a_short_run, after_a_long_run = set(), set(), set()
    for seed in range(100):
        strategy = make_restart_strategy(restart_strategy_of(config, False), random.Random(seed))
        for since, seen in ((0.0, first), (500.0, after_a_short_run), (2_000.0, after_a_long_run)):
            strategy.on_running(10_000.0)
            decision = strategy.on_failure(10_000.0 + since)
            assert isinstance(decision, RestartAfter)
            seen.add(decision.delay_ms)
    assert min(first) < 600
    assert max(first) > 1_400
    assert max(after_a_short_run) > 2_000
    assert max(after_a_long_run) <= 1_500


def test_a_job_is_restarted_as_the_configuration_says() -> None:
    keys = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 2}
    env = environment({**keys, "restart-strategy.fixed-delay.delay": "40 ms"})
    ticks(env).map(FailAt(0)).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(39)
        assert len(job.of(SubmitGang)) == 1
        job.advance(1)
        assert len(job.of(SubmitGang)) == 2
        assert job.run_to_end() is JobStatus.FAILED
        assert len(job.of(SubmitGang)) == 3


# ---------------------------------------------------------------- failure detection and the end of tasks


def test_heartbeat_interval() -> None:
    with InProcessJob(counting({"heartbeat.interval": "50 ms"})) as job:
        job.advance(1_000)
        assert len(job.told(MasterHeartbeat)) == 20


def test_heartbeat_timeout() -> None:
    with InProcessJob(counting({"heartbeat.interval": "50 ms", "heartbeat.timeout": "300 ms"})) as job:
        job.advance(100)
        job.slots[0].muted = True
        job.advance(290)
        assert job.master.status is JobStatus.RUNNING
        job.advance(20)
        assert job.master.status is JobStatus.FAILING
        assert "has not answered for 0.3 s" in job.failure


def test_heartbeats_and_the_time_to_leave_reach_the_workers() -> None:
    keys = {"heartbeat.interval": "5 ms", "heartbeat.timeout": "70 ms", "task.cancellation.timeout": "9 ms"}
    settings = InProcessJob(counting(keys)).prepared.settings
    assert (settings.heartbeat_interval_ms, settings.heartbeat_timeout_ms, settings.leave_grace_ms) == (5, 70, 9)


def test_slot_start_timeout() -> None:
    with InProcessJob(counting({"tidegate.slot.start-timeout": "2 s"})) as job:
        job.to_master.clear()  # the worker never registers
        job.advance(1_999)
        assert job.master.status is JobStatus.CREATED
        job.advance(1)
        assert "only 0 of 1 workers came up within 2 s" in job.failure


def test_slot_restore_timeout() -> None:
    with InProcessJob(counting({"tidegate.slot.restore-timeout": "2 s"})) as job:
        job._take_message()  # the worker registers, and is deployed
        job.to_master.clear()  # it is never ready
        job.advance(1_999)
        assert job.master.status is JobStatus.CREATED
        job.advance(1)
        assert "1 of 1 workers have not opened their functions within 2 s" in job.failure


def test_without_a_slot_restore_timeout_there_is_no_limit() -> None:
    configuration = Configuration()
    configuration.set_string("tidegate.slot.restore-timeout", "0")
    assert JobSettings.from_configuration("job", configuration).restore_timeout_ms == math.inf


@pytest.mark.parametrize(("timeout", "killed_after"), [("300 ms", 1_800), ("0", None)])
def test_a_task_that_does_not_leave_is_killed_after_the_cancellation_timeout(
    timeout: str, killed_after: int | None
) -> None:
    with InProcessJob(counting({"task.cancellation.timeout": timeout})) as job:
        job.run()
        job.slots[0].held = True
        job.cancel()
        assert len(job.told(Leave)) == 1
        job.advance(1_799)
        assert job.of(CancelGang) == []
        job.advance(60_000 if killed_after is None else 1)
        assert len(job.of(CancelGang)) == (killed_after is not None)
