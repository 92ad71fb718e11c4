"""A real Spark cluster for tests: a Master and two Workers of Spark's standalone mode, each a process of its own.

The Workers have different addresses of this machine (Linux answers on all of 127.0.0.0/8), so that Spark's scheduler
sees two hosts. That is what `local-cluster` lacks: Spark starts no second copy of a task on the host that runs the
first.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.spark.programs import alive, environment, spark_installation, wait_until

HOSTS = ("127.0.0.1", "127.0.0.2")
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # processes that live for seconds: starting is what costs
_DEPLOY = "org.apache.spark.deploy"
_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_PAGE = re.compile(r"MasterWebUI.* started at http://\S+:(\d+)")
_KILL_FORM = re.compile(r"<form[^>]*app/kill[^>]*>(.*?)</form>", re.DOTALL)
_INPUT = re.compile(r"<input[^>]*>")
_ATTRIBUTE = re.compile(r"(name|value)=[\"']([^\"']*)[\"']")
_REGISTERED = re.compile(r"Successfully registered with master")
_START_S = 60.0


class StandaloneCluster:
    """`master`: for `spark.master`. Made by `standalone_cluster`."""

    def __init__(self, folder: Path, cores: int, memory_mb: int) -> None:
        self._folder = folder
        self._environment = environment(folder, **spark_installation())
        self._environment.pop("SPARK_LOCAL_IP", None)  # would undo the addresses
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cores, self._memory_mb = cores, memory_mb
        self.master = ""

    def start(self) -> None:
        self._start("master", "master.Master", "--host", HOSTS[0], "--port", "0", "--webui-port", "0")
        self.master = self._wait_for("master", _STARTED)[1]
        for host in HOSTS:
            size = "--cores", str(self._cores), "--memory", f"{self._memory_mb}m"
            place = "--host", host, "--port", "0", "--webui-port", "0", "--work-dir", str(self._folder / f"work-{host}")
            self._start(host, "worker.Worker", *size, *place, self.master)
        for host in HOSTS:
            self._wait_for(host, _REGISTERED)

    def program_variables(self) -> dict[str, str]:
        """What a driver on this cluster needs in its environment."""
        chosen = {name: self._environment[name] for name in ("SPARK_HOME", "SPARK_SCALA_VERSION")}
        return chosen | {"PYSPARK_PYTHON": sys.executable, "SPARK_MASTER": self.master, "SPARK_LOCAL_IP": HOSTS[0]}

    def kill_application(self) -> None:
        """The only one that runs, as its operator does on the Master's page."""
        log = self._log("master").read_text(errors="replace")
        (port,) = _PAGE.findall(log)
        page = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        page.request("GET", "/")
        (form,) = _KILL_FORM.findall(page.getresponse().read().decode())
        inputs = [dict(_ATTRIBUTE.findall(found)) for found in _INPUT.findall(form)]
        fields = urllib.parse.urlencode({field["name"]: field["value"] for field in inputs})
        page.request("POST", "/app/kill/", fields, {"Content-Type": "application/x-www-form-urlencoded"})
        assert page.getresponse().status in (200, 302), "it shows the list of applications then"
        page.close()

    def processes_of(self, host: str) -> list[psutil.Process]:
        """The Worker of a host, its executors and their Python processes; also when the Worker itself is gone."""
        return _session_of(self._processes[host].pid)

    def kill_host(self, host: str) -> None:
        """As if the machine were switched off: the Worker, its executors, their Python processes."""
        leader = self._processes[host]
        leader.kill()  # first, since it would start what it misses again
        wait_until(lambda: not _killed(self.processes_of(host)))
        leader.wait()

    def stop(self) -> None:
        for name in self._processes:  # the Master first: nothing is started again
            self.kill_host(name)

    def _start(self, name: str, what: str, *arguments: str) -> None:
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
        jars = os.path.join(self._environment["SPARK_HOME"], "jars", "*")
        command = [java, *QUICK_JVM.split(), "-Xmx256m", "-cp", jars, f"{_DEPLOY}.{what}", *arguments]
        with open(self._log(name), "wb") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,  # executors stay in it when their Worker is gone
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_for(self, name: str, pattern: re.Pattern[str]) -> re.Match[str]:
        deadline = time.monotonic() + _START_S
        while True:
            text = self._log(name).read_text(errors="replace")
            found = pattern.search(text)
            if found is not None:
                return found
            ended = self._processes[name].poll()
            assert ended is None, f"{name} ended with {ended}:\n{text}"
            assert time.monotonic() < deadline, f"{name} is not up within {_START_S} s:\n{text}"
            time.sleep(0.05)


@contextmanager
def standalone_cluster(folder: Path, cores: int = 2, memory_mb: int = 1024) -> Iterator[StandaloneCluster]:
    """Two Workers with `cores` and `memory_mb` each. All files below `folder`; nothing of it is alive afterwards."""
    cluster = StandaloneCluster(folder, cores, memory_mb)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _killed(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that were still alive."""
    left = [process for process in processes if alive(process)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return left


def _session_of(leader: int) -> list[psutil.Process]:
    """All processes of the session that process `leader` has begun."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(process.pid) == leader:
                found.append(process)
    return found
