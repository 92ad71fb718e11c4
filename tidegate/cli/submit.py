"""`tidegate submit`: Spark's own `spark-submit`, with the Python that this command runs in."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tidegate.cli.errors import CommandError


def submit(arguments: Sequence[str]) -> int:
    """Runs `spark-submit` with these arguments and returns its exit code. On its own `spark-submit` looks for a
    `python3` on the path, and ends with exit code 127 when that has no PySpark."""
    home = _spark_home()
    command = os.path.join(home, "bin", "spark-submit.cmd" if os.name == "nt" else "spark-submit")
    if not os.path.isfile(command):
        raise CommandError(f"there is no {command}; SPARK_HOME has to be the folder of a Spark installation")
    return subprocess.run(
        [command, *arguments], env=environment(os.environ, home, _on_the_cluster(arguments))
    ).returncode


def environment(given: Mapping[str, str], home: str, on_the_cluster: bool) -> dict[str, str]:
    """What is set already stays. `on_the_cluster`: the driver runs there too, with the workers' Python."""
    env = {**given, "SPARK_HOME": home}
    if "PYSPARK_PYTHON" not in env:
        env["PYSPARK_PYTHON"] = sys.executable
    elif not on_the_cluster:
        env.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return env


def _on_the_cluster(arguments: Sequence[str]) -> bool:
    return any(
        value == "cluster" if name == "--deploy-mode" else name == "--deploy-mode=cluster"
        for name, value in zip(arguments, [*arguments[1:], ""], strict=True)
    )


def _spark_home() -> str:
    given = os.environ.get("SPARK_HOME")
    if given:
        return given
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise CommandError("PySpark is not installed here; install it, or set SPARK_HOME")
    return found.submodule_search_locations[0]
