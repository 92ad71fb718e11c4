"""Programs that tests run as a user would: a script, in a process of its own, with a Spark of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
MARK = "REPORT "  # a line that begins so holds JSON for the test


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        time.sleep(0.02)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Temporary files of Python, Java and Spark under `folder/tmp`, and the package importable."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "PYSPARK_PYTHON", "PYTHONPATH")}
    env.update(
        TMPDIR=str(temporary),
        SPARK_LOCAL_DIRS=str(temporary),
        JAVA_TOOL_OPTIONS=f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData",
        PYTHONPATH=str(REPOSITORY),
        **more,
    )
    return env


def spark_installation() -> dict[str, str]:
    """What `local-cluster` and Spark's own daemons need to know of the PySpark that pip has installed: where it is, and
    the Scala that it is built with (2.12 before Spark 4)."""
    import pyspark

    home = Path(pyspark.__file__).parent
    (core,) = (home / "jars").glob("spark-core_*.jar")
    return {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": core.name.split("_")[1].split("-")[0]}


class Program:
    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text()

    def reports(self) -> list[Any]:
        return [json.loads(line[len(MARK) :]) for line in self.output.splitlines() if line.startswith(MARK)]

    def wait_for_report(self, number: int = 1, seconds: float = 240) -> Any:
        """The `number`th report; fails when the program ends before it."""
        deadline = time.monotonic() + seconds
        while len(self.reports()) < number:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.output}"
            assert time.monotonic() < deadline, f"no report in {seconds} s:\n{self.output}"
            time.sleep(0.05)
        return self.reports()[number - 1]

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def running(script: Path, folder: Path, *arguments: str, stdin: bool = False, **more: str) -> Iterator[Program]:
    """Start `python script` in `folder` (or `python - < script`); whatever is left of it is killed at the end."""
    output = folder / "output.txt"
    command = [sys.executable, "-" if stdin else str(script), *arguments]
    with open(output, "w") as out, open(script) as source:
        process = subprocess.Popen(
            command,
            stdin=source if stdin else subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment(folder, **more),
            text=True,
        )
    program = Program(process, output)
    seen: list[psutil.Process] = []
    try:
        yield program
        if process.poll() is None:
            seen = program.descendants()
    finally:
        if process.poll() is None:
            seen = seen or program.descendants()
            process.kill()
        process.wait()
        for left in seen:
            if alive(left):
                left.kill()


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def listening_ports(processes: list[psutil.Process]) -> set[int]:
    ports: set[int] = set()
    for process in processes:
        try:
            ports |= {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        except psutil.Error:
            continue
    return ports
