"""Wrong settings, wrong state, wrong places: what a user is told, and what becomes of the job."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from small_jobs import counting, environment, ticks

from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.job_status import JobStatus
from tidegate.datastream import CheckpointingMode, KeyedProcessFunction, MapFunction
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.functions import CheckpointedFunction
from tidegate.datastream.state import ListStateDescriptor, ValueStateDescriptor
from tidegate.fault_tolerance.barriers.failures import CheckpointFailureReason
from tidegate.network.elements import Alignment
from tidegate.testing.in_process_job import InProcessJob

INTERVAL = {"execution.checkpointing.interval": "100 ms"}


def reasons(job: InProcessJob) -> list[CheckpointFailureReason | None]:
    return [record.reason for record in job.coordinator.stats.history]


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("execution.checkpointing.interval", "0"),
        ("execution.checkpointing.interval", "-5 s"),
        ("execution.checkpointing.timeout", "0 ms"),
        ("execution.checkpointing.timeout", "-1"),
        ("execution.checkpointing.min-pause", "-1 ms"),
        ("execution.checkpointing.max-concurrent-checkpoints", "0"),
        ("execution.checkpointing.num-retained", "0"),
        ("execution.checkpointing.tolerable-failed-checkpoints", "-1"),
        ("execution.checkpointing.mode", "SOMETIMES"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(key)):
        environment({key: value})


@pytest.mark.parametrize(
    ("setter", "value", "key"),
    [
        ("set_checkpoint_interval", 0, "execution.checkpointing.interval"),
        ("set_checkpoint_timeout", -1, "execution.checkpointing.timeout"),
        ("set_min_pause_between_checkpoints", -1, "execution.checkpointing.min-pause"),
    ],
)
def test_a_setter_refuses_with_the_same_message(setter: str, value: int, key: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(key)):
        getattr(environment().get_checkpoint_config(), setter)(value)


def test_unaligned_with_at_least_once_is_ignored_and_the_user_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    env = counting()
    env.enable_checkpointing(100, CheckpointingMode.AT_LEAST_ONCE)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    with caplog.at_level(logging.WARNING, logger="tidegate"), InProcessJob(env) as job:
        job.advance(150)
        assert job.completed == [1]
        assert job.coordinator.settings.alignment is Alignment.AT_LEAST_ONCE
    assert "execution.checkpointing.unaligned.enabled has no effect" in caplog.text


def test_prefer_checkpoint_for_recovery_is_accepted() -> None:
    env = counting(INTERVAL)
    env.get_checkpoint_config().set_prefer_checkpoint_for_recovery(True)
    with InProcessJob(env) as job:
        job.advance(150)
        assert job.completed == [1]


# ---------------------------------------------------------------- places


def test_a_directory_that_cannot_be_written_is_told_before_the_job_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((ConfigurationError, SnapshotError), match=re.escape(str(tmp_path / "file"))):
        InProcessJob(counting({**INTERVAL, "execution.checkpointing.dir": str(tmp_path / "file" / "below")}))


def test_a_storage_that_fails_later_fails_checkpoints_and_not_the_job(tmp_path: Path) -> None:
    keys = {
        **INTERVAL,
        "execution.checkpointing.dir": str(tmp_path),
        "execution.checkpointing.tolerable-failed-checkpoints": 1,
        "restart-strategy.type": "none",
    }
    with InProcessJob(counting(keys)) as job:
        for n in (2, 4, 5):  # checkpoint n cannot be written, as on a full disk
            (tmp_path / job.graph.job_id / f"chk-{n}").write_text("in the way")
        job.advance(450)
        failed = CheckpointFailureReason.METADATA_FAILED
        assert reasons(job) == [None, failed, None, failed]
        assert job.master.status is JobStatus.RUNNING
        assert "checkpoint 2 failed: its metadata could not be written" in job.logged
        assert job.run_to_end() is JobStatus.FAILED
        assert "tolerates 1 failed checkpoints in a row" in job.failure


def test_the_same_job_id_twice_in_one_directory_is_refused(tmp_path: Path) -> None:
    keys = {**INTERVAL, "execution.checkpointing.dir": str(tmp_path), "pipeline.job-id": "5" * 32}
    with InProcessJob(counting(keys)) as job:
        job.run()
        with pytest.raises(ConfigurationError, match=rf"{'5' * 32} is already running, in process \d+ on .* job id"):
            InProcessJob(counting(keys))
        InProcessJob(counting({**keys, "pipeline.job-id": "6" * 32})).prepared.discard()
    InProcessJob(counting(keys)).prepared.discard()


def test_a_path_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=rf"there is no .*{re.escape(str(tmp_path))}.*_metadata"):
        InProcessJob(counting({"execution.state-recovery.path": str(tmp_path / "chk-9")}))


# ---------------------------------------------------------------- state


class KeepsLocks(KeyedProcessFunction):  # type: ignore[misc]
    def open(self, runtime_context: Any) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("handles"))

    def process_element(self, value: int, ctx: Any) -> Any:
        self._state.update(threading.Lock() if ctx.get_current_key() == "bad" else value)
        yield value


class KeepsALock(MapFunction, CheckpointedFunction):  # type: ignore[misc]
    def initialize_state(self, context: Any) -> None:
        self._state = context.get_operator_state_store().get_list_state(ListStateDescriptor("connections"))

    def snapshot_state(self, context: Any) -> None:
        self._state.update([1, threading.Lock()])

    def map(self, value: int) -> int:
        return value


def test_a_state_value_that_cannot_be_stored_is_named_with_operator_state_and_key() -> None:
    def run(tolerable: int) -> InProcessJob:
        keys = {"execution.checkpointing.tolerable-failed-checkpoints": tolerable, "restart-strategy.type": "none"}
        env = environment({**INTERVAL, **keys})
        keyed = ticks(env).key_by(lambda i: "bad" if i == 3 else "good")
        keyed.process(KeepsLocks()).name("sessions").sink_to(CollectSink())
        with InProcessJob(env) as job:
            job.advance(250)
        return job

    job = run(tolerable=9)
    assert reasons(job) == [CheckpointFailureReason.SNAPSHOT_FAILED] * 2
    assert job.master.status is JobStatus.RUNNING
    assert "operator 'sessions': state 'handles' cannot be stored: the value of key 'bad'" in job.logged
    failed = run(tolerable=0)
    assert failed.master.status is JobStatus.FAILED
    assert "the value of key 'bad' (_thread.lock) cannot be pickled" in failed.failure


def test_an_item_of_operator_state_that_cannot_be_stored_is_named() -> None:
    env = environment({**INTERVAL, "execution.checkpointing.tolerable-failed-checkpoints": 9})
    ticks(env).map(KeepsALock()).name("enrich").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(150)
        assert job.master.status is JobStatus.RUNNING
        assert "operator 'enrich': state 'connections' cannot be stored: item 1 (_thread.lock)" in job.logged


# ---------------------------------------------------------------- restoring what does not fit


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    keys = {
        **INTERVAL,
        "execution.checkpointing.dir": str(tmp_path),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    with InProcessJob(counting(keys)) as job:
        job.advance(150)
        job.cancel()
    return next(tmp_path.rglob("chk-1"))


def test_a_graph_that_lacks_an_operator_is_refused_with_the_names_of_both_sides(checkpoint: Path) -> None:
    with pytest.raises(SnapshotError) as refused:
        InProcessJob(counting({"execution.state-recovery.path": str(checkpoint)}, uid="renamed"))
    text = str(refused.value)
    assert "does not have: 'count' (uid count)" in text
    assert "The job has: " in text
    assert "'count' (uid renamed)" in text
    assert "execution.state-recovery.ignore-unclaimed-state" in text


def test_another_max_parallelism_is_refused_with_both_numbers(checkpoint: Path) -> None:
    keys = {"execution.state-recovery.path": str(checkpoint), "pipeline.max-parallelism": 64}
    with pytest.raises(SnapshotError, match=r"'count' \(uid count\) has max parallelism 64, .* taken with 128"):
        InProcessJob(counting(keys))


def test_a_refused_job_leaves_no_lock_behind(checkpoint: Path) -> None:
    root, job_id = checkpoint.parent.parent, checkpoint.parent.name
    keys = {
        **INTERVAL,
        "execution.checkpointing.dir": str(root),
        "pipeline.job-id": job_id,
        "execution.state-recovery.path": str(checkpoint),
    }
    with pytest.raises(SnapshotError):
        InProcessJob(counting(keys, uid="renamed"))
    with InProcessJob(counting(keys)) as job:
        job.advance(150)
        assert job.master.restored_checkpoint == 1
        assert job.completed == [2]
