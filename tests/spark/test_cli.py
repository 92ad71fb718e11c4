"""The command line against a job in another process, on real Spark: run, list, savepoint, inspect, stop, run again with
another parallelism, cancel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.recovery_kit import assert_exact, visible_lines

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
JOB = str(Path(__file__).with_name("cli_job.py"))


class Shell:
    def __init__(self, home: Path) -> None:
        self.environment = {**os.environ, "XDG_STATE_HOME": str(home), "PYTHONPATH": str(ROOT)}
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate.cli", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(process)
        return process

    def tidegate(self, name: str, *arguments: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "tidegate.cli", name, "--json", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    def job(self, within_s: float = 240.0) -> dict[str, Any]:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            _, answer = self.tidegate("list")
            for job in answer["jobs"]:
                if job["status"] == "RUNNING" and job["last_checkpoint"]:
                    return dict(job)
            assert self.running[-1].poll() is None, self.running[-1].communicate()[0]
            time.sleep(0.2)
        raise AssertionError("no job is running")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path / "state")
    yield made
    for process in made.running:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def test_a_job_is_run_looked_at_stopped_and_resumed_wider_from_the_command_line(shell: Shell, tmp_path: Path) -> None:
    checkpoints, out, savepoints = str(tmp_path / "chk"), tmp_path / "out", str(tmp_path / "sp")
    program = shell.start("run", "-p", "1", "-D", "spark.master=local[4]", JOB, checkpoints, str(out))
    job = shell.job()
    assert job["job_name"] == "cli job"
    assert job["parallelism"] == 1

    code, taken = shell.tidegate("savepoint", job["job_id"][:8], savepoints)
    assert code == 0, taken
    code, found = shell.tidegate("inspect", taken["path"])
    assert code == 0
    assert found["kind"] == "savepoint"
    count = next(o for o in found["operators"] if o["uid"] == "count")
    assert {s["name"]: s["entries"] for s in count["keyed_states"]}["count"] == 50

    code, refused = shell.tidegate("savepoint", job["job_id"])
    assert code == 1
    assert "savepoint-dir" in refused["error"]

    code, stopped = shell.tidegate("stop", "cli job", "-p", savepoints)
    assert code == 0, stopped
    assert program.wait(120) == 0, program.communicate()[0]
    lines = sum(visible_lines(out).values())
    assert lines > 0
    assert_exact(visible_lines(out), lines)  # everything up to the savepoint is committed, and nothing after it

    code, gone = shell.tidegate("cancel", job["job_id"])
    assert code == 1
    assert "no job" in gone["error"]

    code, ended = shell.tidegate(
        *("run", "-p", "3", "-s", stopped["path"], "-D", "spark.master=local[4]"),
        *(JOB, checkpoints, str(out), str(lines + 5000)),
    )
    assert code == 0, ended
    assert_exact(visible_lines(out), lines + 5000)


def test_cancel_ends_a_job_and_a_wrong_path_is_told_before_spark_starts(shell: Shell, tmp_path: Path) -> None:
    java = shell.environment.get("JAVA_HOME")
    shell.environment["JAVA_HOME"] = str(tmp_path / "no java")  # Spark cannot start
    code, answer = shell.tidegate("run", "-s", str(tmp_path / "nowhere"), JOB)
    assert code == 1
    assert str(tmp_path / "nowhere") in answer["error"]
    shell.environment.pop("JAVA_HOME")
    shell.environment |= {} if java is None else {"JAVA_HOME": java}
    program = shell.start("run", "-D", "spark.master=local[2]", JOB, str(tmp_path / "chk"), str(tmp_path / "out"))
    job = shell.job()
    code, answer = shell.tidegate("cancel", job["job_id"])
    assert (code, answer["status"]) == (0, "CANCELED")
    assert program.wait(120) == 1  # execute() raises in the program
    assert "was cancelled" in program.communicate()[0]
    assert shell.tidegate("list")[1] == {"jobs": []}
