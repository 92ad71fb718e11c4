"""How a job is started on each system."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.trace import lines
from tests.environments import environment_of

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
_TIME_LIMIT_S = 600.0


@dataclass(frozen=True)
class System:
    name: str
    package: str  # whose version is shown
    requirements: tuple[str, ...]  # of an environment of its own; none: this one
    python: str = "3.11"
    threads: bool = False  # PyFlink: Python in the JVM's own process, where no worker can be killed

    def interpreter(self) -> str:
        if not self.requirements:
            return sys.executable
        return str(environment_of(f"peer-{self.name.split()[0].lower()}", self.python, self.requirements))

    def version(self) -> str:
        code = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        found = subprocess.run([self.interpreter(), "-c", code], capture_output=True, text=True)
        return found.stdout.strip() or "this checkout"


TIDEGATE = System("Tidegate", "tidegate", ())
PYFLINK = System("PyFlink", "apache-flink", ("apache-flink==2.3.0",))
PYFLINK_THREADS = System("PyFlink threads", "apache-flink", ("apache-flink==2.3.0",), threads=True)
BYTEWAX = System("bytewax", "bytewax", ("bytewax==0.21.1",))
SPARK = System("Spark", "pyspark", ("pyspark==4.3.0", "pandas>=2.2,<3", "pyarrow>=15", "protobuf", "numpy"))
SYSTEMS = (TIDEGATE, PYFLINK, PYFLINK_THREADS, BYTEWAX, SPARK)


@dataclass(frozen=True)
class Job:
    name: str  # w1, window, latency, recovery
    count: int
    keys: int
    per_second: float = 0  # of each source subtask; 0: as fast as it goes
    parallelism: int = 2
    checkpoints_ms: int = 0


class JobFailedError(Exception):
    """With what the program has said."""


class Run:
    """One job on one system, in a folder of its own."""

    def __init__(self, system: System, job: Job, folder: Path) -> None:
        self.system, self.job, self.folder = system, job, folder
        self.trace = folder / "trace"
        shutil.rmtree(folder, ignore_errors=True)
        self.trace.mkdir(parents=True)
        self._log = folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def settings(self) -> dict[str, Any]:
        job, recovery = self.job, self.job.name == "recovery"
        configuration = {}
        if recovery:
            configuration = {
                "execution.checkpointing.dir": f"file://{self.folder / 'checkpoints'}",
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "10",
                "restart-strategy.fixed-delay.delay": "0 s",
            }
        if job.name == "latency":  # otherwise records wait for their buffer
            configuration["execution.buffer-timeout.interval"] = "0 ms"
        of_flink = self.system in (PYFLINK, PYFLINK_THREADS)
        if of_flink:
            configuration["pipeline.object-reuse"] = "true"
            if job.name == "window":  # whose states are many, and which fail without metrics
                configuration["python.state.cache-size"] = "200000"
                configuration["python.fn-execution.bundle.time"] = "10000"
            else:
                configuration["python.metric.enabled"] = "false"
            configuration["python.execution-mode"] = "thread" if self.system.threads else "process"
            # Long bundles for throughput; otherwise each record is one, and none waits for others.
            configuration["python.fn-execution.bundle.size"] = "1" if job.per_second else "100000"
        unpaced = self.system is SPARK and recovery  # the source with a rate cannot be counted: small files instead
        return {
            "code": str(REPOSITORY),
            "system": "pyflink" if of_flink else "tidegate",
            "job": "w1" if recovery else job.name,
            "count": job.count,
            "keys": job.keys,
            "per_second": 0 if unpaced else job.per_second,
            "parallelism": job.parallelism,
            "checkpoints_ms": job.checkpoints_ms,
            "window_ms": 1000,
            "progress": recovery,
            "files": 40 if recovery else 10,
            "folder": str(self.trace),
            "scratch": str(self.folder),
            "configuration": configuration,
        }

    def start(self) -> None:
        python, settings = self.system.interpreter(), json.dumps(self.settings())
        env = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "VIRTUAL_ENV", "PYTHONPATH")}
        env |= {"PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": python, "PEER_SETTINGS": settings}
        env["_python_worker_execution_mode"] = "process"  # PyFlink: on one machine it would use threads of the program
        env["PATH"] = os.pathsep.join([os.path.dirname(python), env["PATH"]])  # PyFlink's JVM starts `python`
        if self.system is BYTEWAX:
            command = [python, "-m", "bytewax.testing", f"{HERE / 'bytewax_program.py'}:flow"]
            command += ["-p", str(self.job.parallelism)]
            if self.job.checkpoints_ms:
                store = self.folder / "recovery"
                if not store.exists():
                    store.mkdir()
                    make = [python, "-m", "bytewax.recovery", str(store), str(self.job.parallelism)]
                    subprocess.run(make, check=True, env=env)
                command += ["-r", str(store), "-s", "1", "-b", "0"]
        else:
            program = "spark_program.py" if self.system is SPARK else "flink_program.py"
            command = [python, str(HERE / program), settings]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, env=env, start_new_session=True
            )

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """For its end, or until something holds."""
        assert self._process is not None
        deadline = time.monotonic() + _TIME_LIMIT_S
        while self._process.poll() is None and not until():
            if time.monotonic() > deadline:
                self.stop()
                raise JobFailedError(f"{self.system.name}: {self.job.name} has not ended in {_TIME_LIMIT_S} s")
            time.sleep(0.05)
        if self._process.poll():
            raise JobFailedError(f"{self.system.name}: {self.job.name} failed:\n{self.log()[-3000:]}")

    def stop(self) -> None:
        """It, and the processes that it has started."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def lines(self, kind: str) -> list[list[str]]:
        return [line[1:] for line in lines(str(self.trace)) if line[0] == kind]

    def writers(self) -> list[int]:
        """The processes that have written results, the busiest first."""
        found = []
        for path in self.trace.iterdir():
            number = path.read_text().count("out ")
            if number:
                found.append((number, int(path.stem)))
        return [pid for _, pid in sorted(found, reverse=True)]
