"""A driver that is killed again and again, and a shell loop that starts it again: without `-s` it goes on from the
newest checkpoint, as the same job, and the output is exact. On each kind of store, and on a Spark cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.zookeeper import zookeeper
from tests.spark.ha_kit import START_S, Driver, settings
from tests.spark.programs import environment
from tests.spark.recovery_kit import assert_exact, until, visible_lines
from tests.spark.standalone_cluster import standalone_cluster

RECORDS, PER_SECOND, KILLS = 20_000, 1_500.0, 2

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """The URL of a bucket, and in its query how it is reached."""
    boto3, server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        try:
            yield "s3://bucket"
        finally:
            running.stop()


@contextlib.contextmanager
def surroundings(kind: str, folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Settings and environment variables of the driver."""
    if kind == "zookeeper":
        pytest.importorskip("kazoo")
        with zookeeper(folder / "zookeeper") as server:
            quorum = {"high-availability.zookeeper.quorum": server.quorum}
            yield settings(folder, **{"high-availability.type": "zookeeper"}) | quorum, {}
    elif kind == "s3":
        with s3() as bucket:
            chosen = {"high-availability.storageDir": f"{bucket}/ha"}
            yield settings(folder, **chosen), {"CHECKPOINTS": f"{bucket}/checkpoints"}
    elif kind == "standalone":
        with standalone_cluster(folder) as cluster:
            yield settings(folder), cluster.program_variables()
    else:
        yield settings(folder), {}


@pytest.mark.parametrize("kind", ["filesystem", "zookeeper", "s3", "standalone"])
def test_a_supervised_driver_goes_on_by_itself(kind: str, tmp_path: Path) -> None:
    with surroundings(kind, tmp_path) as (configuration, variables):
        supervisor = Driver(tmp_path, RECORDS, PER_SECOND, configuration, supervised=True, variables=variables)
        try:
            jobs, killed = set(), set()
            for kill in range(KILLS):
                pid, status = until(lambda: leader(supervisor, tmp_path, killed), "a driver that leads", START_S)
                assert status["restores"] == (1 if kill else 0)
                jobs.add(status["job_id"])
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
            assert supervisor.process.wait(START_S) == 0, supervisor.output[-3000:]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(supervisor.process.pid, signal.SIGKILL)
            supervisor.end()
        assert_exact(visible_lines(tmp_path / "out"), RECORDS)
        assert len(jobs) == 1
        assert f"epoch {KILLS + 1}" in supervisor.output


def leader(supervisor: Driver, folder: Path, killed: set[int]) -> tuple[int, dict[str, Any]] | None:
    """The driver that leads and has completed checkpoints of its own."""
    assert supervisor.process.poll() is None, supervisor.output[-3000:]
    for path in (folder / "drivers").glob("*.json"):
        status = json.loads(path.read_text())
        if int(path.stem) not in killed and status["completed"] >= 3:
            return int(path.stem), status
    return None


def test_spark_refuses_to_supervise_a_driver_in_python(tmp_path: Path) -> None:
    """As the page about high availability says. It does so before it looks for the master."""
    program = tmp_path / "job.py"
    program.touch()
    chosen = ["--master", "spark://127.0.0.1:1", "--deploy-mode", "cluster", "--supervise"]
    command = [sys.executable, "-m", "tidegate.cli", "submit", *chosen, str(program)]
    ran = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=START_S)
    assert ran.returncode != 0
    said = "Cluster deploy mode is currently not supported for python applications on standalone clusters"
    assert said in ran.stdout + ran.stderr
