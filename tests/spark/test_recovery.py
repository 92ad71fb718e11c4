"""Real processes, really killed: after every recovery the output is exact."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.programs import spark_installation
from tests.spark.recovery_kit import (
    KEYS,
    CountPerKey,
    FailOnce,
    SlowInTheFirstAttempt,
    assert_exact,
    completed,
    counted,
    expected_lines,
    failed,
    file_sink,
    flip_a_byte,
    highest_counts,
    is_alive,
    key_of,
    kill,
    latest_checkpoint,
    state_file,
    until,
    visible_lines,
    with_checkpoints,
)
from tidegate.common import JobStatus, RestartStrategies, Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError, JobCancelledError, JobExecutionError, SnapshotError
from tidegate.datastream import (
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    MapFunction,
    RuntimeContext,
    SinkFunction,
)
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.storage.filesystem import FileSystemStorage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MakeEnv = Callable[..., Any]
ROOT = Path(__file__).parents[2]


# ---------------------------------------------------------------- workers killed


def kill_workers(env: Any, tmp_path: Path, mode: str, seed: int, kills: int, roll: bool) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    records = 6000 * (1 + kills // 2)
    with_checkpoints(env, tmp_path / "checkpoints", interval_ms=100)
    if mode == "unaligned":
        env.get_checkpoint_config().enable_unaligned_checkpoints()
    counted(env, records, 5000).sink_to(file_sink(tmp_path / "out", roll))
    client = env.execute_async("kill workers")
    result = client.get_job_execution_result()
    for i in range(kills):
        until(lambda i=i: result.done() or (client.attempt() == i and running(client)), f"attempt {i} runs")
        time.sleep(rng.uniform(0.0, 0.9))
        workers = client.workers()
        if result.done() or not workers:
            break
        kill(rng.choice(workers).pid, signal.SIGKILL)
        until(lambda i=i: result.done() or client.attempt() == i + 1, "the restart")
    result.result()
    assert client.attempt() >= 1
    assert_exact(visible_lines(tmp_path / "out"), records)
    assert not [p for p in os.listdir(tmp_path / "out") if p.startswith(".")], "left-overs"


def running(client: Any) -> bool:
    return client.get_job_status().result() is JobStatus.RUNNING


@pytest.mark.parametrize(("mode", "seed", "roll"), [("aligned", 11, False), ("unaligned", 12, True)])
def test_workers_killed_at_random_moments(make_env: MakeEnv, tmp_path: Path, mode: str, seed: int, roll: bool) -> None:
    kill_workers(make_env(3), tmp_path, mode, seed, kills=3, roll=roll)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_workers_killed_many_times(make_env: MakeEnv, tmp_path: Path, mode: str) -> None:
    """A short version of a soak: TIDEGATE_KILLS=100 makes a long one."""
    kills = int(os.environ.get("TIDEGATE_KILLS", "6"))
    kill_workers(make_env(3), tmp_path, mode, seed=random.randrange(10**6), kills=kills, roll=False)


def test_a_frozen_worker_is_found_by_its_missing_heartbeat(make_env: MakeEnv, tmp_path: Path) -> None:
    records = 12_000
    env = make_env(2, {"heartbeat.interval": "100 ms", "heartbeat.timeout": "1 s"})
    with_checkpoints(env, tmp_path / "checkpoints")
    counted(env, records, 4000).sink_to(file_sink(tmp_path / "out"))
    client = env.execute_async("frozen")
    until(lambda: len(completed(client)) >= 2, "two checkpoints")
    frozen = client.workers()[1]
    kill(frozen.pid, signal.SIGSTOP)
    try:
        until(lambda: client.attempt() == 1 and len(completed(client, 1)) >= 1, "recovery without the frozen worker")
        assert "has not answered" in client.failures()[0].failure.summary
        assert f"pid {frozen.pid}" in client.failures()[0].failure.summary
    finally:
        if is_alive(frozen.pid):
            kill(frozen.pid, signal.SIGCONT)  # it wakes up in the middle of the next attempt and must do no harm
    client.get_job_execution_result().result()
    assert_exact(visible_lines(tmp_path / "out"), records)
    until(lambda: not is_alive(frozen.pid), "the end of the frozen worker")


# ---------------------------------------------------------------- drivers and executors killed


def driver(*arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.spark.recovery_driver", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def test_a_killed_driver_resumes_from_the_retained_checkpoint(make_env: MakeEnv, tmp_path: Path) -> None:
    records, per_second = 12_000, 4000
    checkpoints, out, status = tmp_path / "checkpoints", tmp_path / "out", tmp_path / "status.json"
    process = driver(checkpoints, out, records, per_second, status)
    try:
        seen = until(lambda: json.loads(status.read_text()) if status.exists() else None, "the driver")
        until(lambda: json.loads(status.read_text())["completed"] >= 3, "three checkpoints")
        seen = json.loads(status.read_text())
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(map(is_alive, seen["pids"])), "the end of the workers without their driver")
    env = make_env(2, {"execution.state-recovery.path": str(latest_checkpoint(checkpoints))})
    with_checkpoints(env, tmp_path / "more-checkpoints")
    counted(env, records, None, before=SlowInTheFirstAttempt(0)).sink_to(file_sink(out)).name("files").uid("files")
    env.execute("resumed")
    assert_exact(visible_lines(out), records)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_executor(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")

    records = 12_000
    status = tmp_path / "status.json"
    process = driver(
        tmp_path / "checkpoints",
        tmp_path / "out",
        records,
        3000,
        status,
        SPARK_MASTER="local-cluster[2,2,1024]",
        **spark_installation(),
    )
    try:
        until(lambda: status.exists() and json.loads(status.read_text())["completed"] >= 3, "three checkpoints")
        worker = psutil.Process(json.loads(status.read_text())["pids"][0])
        executor = next(p for p in worker.parents() if "java" in p.name())
        assert executor.pid != process.pid
        executor.kill()
        until(lambda: json.loads(status.read_text())["attempt"] >= 1 or process.poll() is not None, "the restart")
        assert process.wait(120) == 0, process.stderr.read().decode()[-3000:]
    finally:
        process.kill()
        process.wait()
    assert_exact(visible_lines(tmp_path / "out"), records)


# ---------------------------------------------------------------- E1: three guarantees, one job


class SlowFirst(MapFunction):
    """Subtask 0 is slow: its barriers come late, and the others' records run ahead of them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.slow = runtime_context.get_index_of_this_subtask() == 0

    def map(self, value: str) -> str:
        if self.slow:
            time.sleep(0.002)
        return value


class AppendAtOnce(SinkFunction):
    """Writes without transactions: shows every count that was ever emitted."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        name = f"{runtime_context.get_attempt_number()}-{runtime_context.get_index_of_this_subtask()}"
        self.file = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def invoke(self, value: str, context: Any) -> None:
        os.write(self.file, f"{value}\n".encode())

    def close(self) -> None:
        os.close(self.file)


def count_with_a_crash(make_env: MakeEnv, tmp_path: Path, mode: CheckpointingMode | None) -> dict[str, int]:
    """The job under one guarantee, killed once, after a checkpoint if there are any. -> key -> count in the state at
    the end."""
    out = tmp_path / "out"
    out.mkdir()
    env = make_env(2)
    if mode is None:
        env.set_restart_strategy(RestartStrategies.no_restart())
    else:
        with_checkpoints(env, tmp_path / "checkpoints")
        env.get_checkpoint_config().set_checkpointing_mode(mode)
    source = env.from_source(
        DataGeneratorSource(key_of, E1_RECORDS, 4000), WatermarkStrategy.no_watermarks(), "numbers"
    )
    slowed = source.rebalance().map(SlowFirst(), Types.STRING())
    slowed.key_by(lambda key: key).process(CountPerKey(), Types.STRING()).add_sink(AppendAtOnce(str(out)))
    client = env.execute_async("guarantees")
    if mode is None:
        until(lambda: sum(visible_lines(out).values()) > E1_RECORDS // 4, "some output")
    else:
        # The first one: a later one would be so late that the source is at its end and nothing is left to replay.
        until(lambda: len(completed(client)) >= 1, "a checkpoint")
    kill(client.workers()[1].pid, signal.SIGKILL)
    result = client.get_job_execution_result()
    if mode is None:
        with pytest.raises(JobExecutionError):
            result.result()
        assert max(visible_lines(out).values()) == 1, "at most once: nothing is doubled"
    else:
        result.result()
    return highest_counts(visible_lines(out))


E1_RECORDS = 4000


def test_at_most_once_loses_and_does_not_double(make_env: MakeEnv, tmp_path: Path) -> None:
    counts = count_with_a_crash(make_env, tmp_path, None)
    assert sum(counts.values()) < E1_RECORDS
    assert all(count <= E1_RECORDS // KEYS for count in counts.values())


def test_at_least_once_loses_nothing_and_doubles(make_env: MakeEnv, tmp_path: Path) -> None:
    counts = count_with_a_crash(make_env, tmp_path, CheckpointingMode.AT_LEAST_ONCE)
    assert all(count >= E1_RECORDS // KEYS for count in counts.values())
    assert sum(counts.values()) > E1_RECORDS


def test_exactly_once_counts_everything_once(make_env: MakeEnv, tmp_path: Path) -> None:
    counts = count_with_a_crash(make_env, tmp_path, CheckpointingMode.EXACTLY_ONCE)
    assert counts == dict.fromkeys(map(key_of, range(KEYS)), E1_RECORDS // KEYS)


# ---------------------------------------------------------------- results and errors


def test_collected_results_are_exact_in_spite_of_a_failure(make_env: MakeEnv, tmp_path: Path) -> None:
    records = 6000
    env = with_checkpoints(make_env(2), tmp_path / "checkpoints", interval_ms=100)
    with counted(env, records, 4000, before=FailOnce(1500)).execute_and_collect("collect") as results:
        found = Counter(results)
    assert_exact(found, records)


def test_the_error_carries_the_causes_of_all_attempts(make_env: MakeEnv, tmp_path: Path) -> None:
    env = with_checkpoints(make_env(2), tmp_path / "checkpoints", restarts=2)
    counted(env, 3000, None, before=FailOnce(200, every_attempt=True)).sink_to(file_sink(tmp_path / "out"))
    with pytest.raises(JobExecutionError) as error:
        env.execute("fails")
    text = str(error.value)
    for attempt in range(3):
        assert f"attempt {attempt}: operator 'before' (subtask 0) failed in map()" in text
    assert "RuntimeError: planned failure" in text
    assert "failed 3 times" in text
    assert visible_lines(tmp_path / "out") == Counter()


def test_an_output_folder_that_cannot_be_written_fails_the_job_at_once(make_env: MakeEnv, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = with_checkpoints(make_env(1), tmp_path / "checkpoints")
    counted(env, 10, None).sink_to(file_sink(tmp_path / "file" / "out")).name("files")
    with pytest.raises(JobExecutionError, match=r"operator 'Sink: files'.* cannot be written to"):
        env.execute("nowhere to write")


# ---------------------------------------------------------------- storage that fails


def test_a_corrupt_checkpoint_is_passed_over_for_the_one_before(make_env: MakeEnv, tmp_path: Path) -> None:
    records = 12_000
    env = with_checkpoints(make_env(2, {"execution.checkpointing.num-retained": "3"}), tmp_path / "checkpoints", 300)
    counted(env, records, 4000, padding=4000).sink_to(file_sink(tmp_path / "out"))
    client = env.execute_async("corrupt")
    until(lambda: len(completed(client)) >= 3, "three checkpoints")
    victim = client.workers()[0]
    kill(victim.pid, signal.SIGSTOP)  # from now on no checkpoint completes
    time.sleep(0.2)
    latest = latest_checkpoint(tmp_path / "checkpoints")
    damaged = state_file(latest)
    flip_a_byte(damaged)
    kill(victim.pid, signal.SIGKILL)
    client.get_job_execution_result().result()
    n = int(latest.name.removeprefix("chk-"))
    assert [r.checkpoint_id for r in client.restores()][:2] == [n, n - 1]
    assert damaged.name in client.failures()[1].failure.summary
    assert_exact(visible_lines(tmp_path / "out"), records)


def test_a_storage_that_fails_for_a_while_fails_checkpoints_and_not_the_job(make_env: MakeEnv, tmp_path: Path) -> None:
    records = 16_000
    env = with_checkpoints(make_env(2), tmp_path / "checkpoints")
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(10_000)
    counted(env, records, 4000).sink_to(file_sink(tmp_path / "out"))
    client = env.execute_async("storage fails")
    until(lambda: len(completed(client)) >= 2, "two checkpoints")
    directory = tmp_path / "checkpoints" / str(client.get_job_id())
    os.rename(directory, tmp_path / "aside")
    directory.write_text("in the way")
    until(lambda: len(failed(client)) >= 2, "failing checkpoints")
    done = len(completed(client))
    assert running(client)
    directory.unlink()
    os.rename(tmp_path / "aside", directory)
    until(lambda: len(completed(client)) > done, "a checkpoint after the repair")
    client.get_job_execution_result().result()
    assert client.attempt() == 0
    assert failed(client)[0].reason is not None
    assert str(directory) in failed(client)[0].detail
    assert_exact(visible_lines(tmp_path / "out"), records)


def test_too_many_failed_checkpoints_fail_the_job(make_env: MakeEnv, tmp_path: Path) -> None:
    env = with_checkpoints(make_env(1), tmp_path / "checkpoints", restarts=1)
    env.set_restart_strategy(RestartStrategies.no_restart())
    counted(env, None, 1000).sink_to(file_sink(tmp_path / "out"))
    client = env.execute_async("storage fails")
    until(lambda: len(completed(client)) >= 1, "a checkpoint")
    directory = tmp_path / "checkpoints" / str(client.get_job_id())
    os.rename(directory, tmp_path / "aside")
    directory.write_text("in the way")
    with pytest.raises(JobExecutionError, match="tolerates 0 failed checkpoints"):
        client.get_job_execution_result().result()


def test_memory_storage_has_a_limit_and_says_so(make_env: MakeEnv, tmp_path: Path) -> None:
    env = with_checkpoints(make_env(1, {"state.storage.jobmanager.max-state-size": "100 b"}), None)
    env.set_restart_strategy(RestartStrategies.no_restart())
    counted(env, None, 1000).sink_to(file_sink(tmp_path / "out"))
    with pytest.raises(JobExecutionError, match=r"max-state-size|execution\.checkpointing\.dir"):
        env.execute("too large for memory")


def test_memory_storage_recovers_too(make_env: MakeEnv, tmp_path: Path) -> None:
    records = 6000
    env = with_checkpoints(make_env(2), None)
    counted(env, records, 4000, before=FailOnce(1500)).sink_to(file_sink(tmp_path / "out"))
    env.execute("in memory")
    assert_exact(visible_lines(tmp_path / "out"), records)


# ---------------------------------------------------------------- starting from a checkpoint by path


@pytest.fixture(scope="module")
def retained(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that a cancelled job has left."""
    from tidegate.datastream import StreamExecutionEnvironment

    folder = tmp_path_factory.mktemp("retained")
    env = StreamExecutionEnvironment.get_execution_environment(spark=spark).set_parallelism(2)
    with_checkpoints(env, folder / "checkpoints")
    env.get_checkpoint_config().set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    )
    counted(env, None, 2000, padding=4000).sink_to(file_sink(folder / "out")).name("files").uid("files")
    client = env.execute_async("retained")
    until(lambda: len(completed(client)) >= 2, "two checkpoints")
    with pytest.raises(ConfigurationError, match="already running"):  # the same job id on the same directory
        FileSystemStorage(str(folder / "checkpoints"), str(client.get_job_id())).open(time.time() * 1000)
    client.cancel()
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result()
    return latest_checkpoint(folder / "checkpoints")


def test_a_cancelled_job_goes_on_from_its_retained_checkpoint(
    retained: Path, make_env: MakeEnv, tmp_path: Path
) -> None:
    env = make_env(2, {"execution.savepoint.path": str(retained)})
    with_checkpoints(env, tmp_path / "checkpoints")
    counted(env, 20_000, None).sink_to(file_sink(retained.parents[2] / "out")).name("files").uid("files")
    env.execute("resumed")
    assert_exact(visible_lines(retained.parents[2] / "out"), 20_000)


def test_a_job_that_lacks_an_operator_is_refused(retained: Path, make_env: MakeEnv) -> None:
    env = make_env(2, {"execution.state-recovery.path": str(retained)})
    source = DataGeneratorSource(key_of, 100)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers").print()
    with pytest.raises(SnapshotError, match=r"'count' \(uid count\).*The job has: 'Source: numbers' \(uid numbers\)"):
        env.execute("no count")


def test_another_max_parallelism_is_refused(retained: Path, make_env: MakeEnv, tmp_path: Path) -> None:
    env = make_env(2, {"execution.state-recovery.path": str(retained)}).set_max_parallelism(7)
    counted(env, 100, None).sink_to(file_sink(tmp_path)).name("files").uid("files")
    with pytest.raises(SnapshotError, match=r"'count' .* has max parallelism 7, .* taken with 128"):
        env.execute("other max parallelism")


def test_a_corrupt_checkpoint_given_by_path_is_refused_with_the_file(
    retained: Path, make_env: MakeEnv, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(retained.parent), str(copy)], check=True)
    chosen = copy / retained.name
    damaged = state_file(chosen)
    flip_a_byte(damaged)
    env = make_env(2, {"execution.state-recovery.path": str(chosen)})
    with_checkpoints(env, tmp_path / "checkpoints")
    counted(env, 100, None).sink_to(file_sink(tmp_path / "out")).name("files").uid("files")
    with pytest.raises(JobExecutionError, match=f"{damaged.name}.*(?s:.)*no other one to start from"):
        env.execute("corrupt")
    flip_a_byte(chosen / "_metadata")
    env = make_env(2, {"execution.state-recovery.path": str(chosen)})
    counted(env, 100, None).sink_to(file_sink(tmp_path / "out")).name("files").uid("files")
    with pytest.raises(SnapshotError, match="_metadata"):
        env.execute("corrupt metadata")


# ---------------------------------------------------------------- the examples


def run_example(name: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_the_textbook_example_ends_with_the_right_sums() -> None:
    output = run_example("even_odd_sums.py")
    assert "sum of the even numbers: 60 (right: 60)" in output
    assert "sum of the odd numbers:  50 (right: 50)" in output
    for shown in (
        "barrier 1 reached",
        "is blocked until",
        "snapshot 1 (aligned",
        "restored from checkpoint",
        "... fails",
    ):
        assert shown in output


@pytest.mark.slow
def test_the_demo_is_exact() -> None:
    output = run_example("demo.py")
    assert "killed with SIGKILL" in output
    assert "EXACT" in output


def test_expectations_are_right() -> None:
    assert expected_lines(KEYS + 1) == Counter([f"k{i} 1" for i in range(KEYS)] + ["k0 2"])
