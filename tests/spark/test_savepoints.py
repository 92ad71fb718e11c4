"""Savepoints on real Spark: taken, stopped with, resumed at another parallelism and in the other backend."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.recovery_kit import (
    assert_exact,
    completed,
    counted,
    file_sink,
    highest_counts,
    until,
    visible_lines,
    with_checkpoints,
)
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.web.registry import running_jobs

pytestmark = pytest.mark.spark
RECORDS = 30_000
MakeEnv = Callable[..., StreamExecutionEnvironment]


def job(
    make_env: MakeEnv, tmp_path: Path, parallelism: int, per_second: float | None, config: dict[str, Any] | None = None
) -> Any:
    env = with_checkpoints(make_env(parallelism, config), tmp_path / "chk")
    stream = counted(env, RECORDS, per_second)
    stream.sink_to(file_sink(tmp_path / "out", roll_on_checkpoint=True)).name("files").uid("files")
    return env.execute_async("savepoints")


def test_a_savepoint_is_resumed_exactly_at_another_parallelism(make_env: MakeEnv, tmp_path: Path, spark: Any) -> None:
    config = {"execution.checkpointing.savepoint-dir": str(tmp_path / "sp")}
    client = job(make_env, tmp_path, 2, 3000.0, config)
    until(lambda: completed(client), "a checkpoint")
    first = client.trigger_savepoint().result(30)
    assert Path(first).parent == tmp_path / "sp"
    stopped = client.stop_with_savepoint(False).result(30)
    assert client.get_job_status().result().name == "FINISHED"
    client.get_job_execution_result().result(10)
    lines = visible_lines(tmp_path / "out")
    assert 0 < sum(lines.values()) == sum(highest_counts(lines).values()) < RECORDS  # per key 1, 2, 3, ...
    (table,) = Path(stopped).glob("count-*/keyed-count")
    assert spark.read.parquet(str(table)).where("key = 'k7'").count() == 1
    config = {"execution.state-recovery.path": stopped, "state.backend.type": "rocksdb"}
    client = job(make_env, tmp_path, 3, None, config)
    client.get_job_execution_result().result(60)
    assert_exact(visible_lines(tmp_path / "out"), RECORDS)
    with pytest.raises(SnapshotError, match="over"):
        client.trigger_savepoint(str(tmp_path / "sp")).result(5)


def test_a_savepoint_that_cannot_be_taken_says_why_and_the_job_goes_on(make_env: MakeEnv, tmp_path: Path) -> None:
    client = job(make_env, tmp_path, 1, 1000.0)
    until(lambda: completed(client), "a checkpoint")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="savepoint-dir"):
        client.trigger_savepoint().result(10)
    with pytest.raises(SnapshotError, match="no savepoint can be written"):
        client.stop_with_savepoint(False, str(tmp_path / "file")).result(10)
    done = len(completed(client))
    until(lambda: len(completed(client)) > done + 1, "more checkpoints")
    client.cancel()
    until(lambda: client.get_job_execution_result().done(), "the end")


def test_the_rest_port_can_be_placed_and_switched_off(
    make_env: MakeEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = job(make_env, tmp_path, 1, 1000.0, {"rest.port": port, "rest.bind-address": "localhost"})
    (record,) = until(running_jobs, "an entry in the registry")
    assert record.url == f"http://localhost:{port}"
    assert record.job_id == str(client.get_job_id())
    client.cancel()
    until(lambda: client.get_job_execution_result().done(), "the end")
    assert running_jobs() == []
    client = job(make_env, tmp_path / "b", 1, 1000.0, {"rest.enabled": False})
    until(lambda: completed(client), "a checkpoint")
    assert running_jobs() == []
    client.cancel()
    until(lambda: client.get_job_execution_result().done(), "the end")
