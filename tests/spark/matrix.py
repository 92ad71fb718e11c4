"""`make test-matrix`: the tests on Spark with other versions of PySpark and Python, each in an environment of its own.

    python -m tests.spark.matrix                        # every pair of the table below, tests marked spark and not soak
    python -m tests.spark.matrix --only 3.5             # the pairs of one line
    python -m tests.spark.matrix -- tests/spark/state_tables -k checkpoints    # some tests, with pytest's options

A pair whose Python is not on this machine is left out with a sentence. Everything but PySpark is what the lock says.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.connectors.cache import UnavailableError
from tests.environments import environment_of

REPOSITORY = Path(__file__).resolve().parents[2]

# The oldest and the newest release of each line, over the Pythons that Tidegate and that line know.
PAIRS = (
    ("3.5.0", "3.11"),
    ("3.5.9", "3.12"),
    ("4.0.0", "3.11"),
    ("4.0.5", "3.13"),
    ("4.1.0", "3.12"),
    ("4.2.1", "3.13"),
    ("4.3.0", "3.11"),
    ("4.3.0", "3.13"),
)


def requirements(pyspark: str) -> list[str]:
    """The lock's, with another PySpark and the py4j that it asks for."""
    lines = (REPOSITORY / "requirements.lock").read_text().splitlines()
    pinned = [line for line in lines if re.match(r"[a-zA-Z0-9]", line)]
    return [line for line in pinned if not line.startswith(("pyspark==", "py4j=="))] + [f"pyspark=={pyspark}"]


def run(pyspark: str, python: str, arguments: list[str]) -> str:
    """One pair; returns the outcome as a line."""
    try:
        program = environment_of(f"pyspark-{pyspark}-python-{python}", python, requirements(pyspark))
    except UnavailableError as error:
        return f"left out: {error}"
    env = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "PYSPARK_PYTHON", "VIRTUAL_ENV")}
    env["PYTHONPATH"] = str(REPOSITORY)
    command = [str(program), "-m", "pytest", "-q", "-m", "spark and not soak", "-p", "no:cacheprovider", *arguments]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    summary = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        if re.match(r"=*\s*(\d+ (passed|failed|error|skipped|deselected)|no tests ran)", line):
            summary = line.strip().strip("= ")
    status = process.wait()
    outcome = {0: "passed", 5: "no such tests"}.get(status, "FAILED")
    return f"{outcome}: {summary or f'exit code {status}'} ({time.monotonic() - began:.0f} s)"


def main() -> int:
    options, pytest_arguments = _options()
    outcomes = {}
    for pyspark, python in PAIRS:
        if options.only and not any(pyspark == o or pyspark.startswith(f"{o}.") for o in options.only):
            continue
        print(f"\n=== pyspark {pyspark}, Python {python}", flush=True)
        outcomes[pyspark, python] = run(pyspark, python, pytest_arguments)
    print()
    for (pyspark, python), outcome in outcomes.items():
        print(f"pyspark {pyspark:6} Python {python}: {outcome}")
    return 1 if any(outcome.startswith("FAILED") for outcome in outcomes.values()) else 0


def _options() -> tuple[argparse.Namespace, list[str]]:
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description="The tests on Spark with other versions of PySpark and Python.")
    parser.add_argument("--only", action="append", metavar="VERSION", help="a line (3.5) or a version; may be repeated")
    options = parser.parse_args(given[:cut])
    return options, given[cut + 1 :] or ["-n", os.environ.get("JOBS", "2"), "--dist", "loadfile", "tests"]


if __name__ == "__main__":
    sys.exit(main())
