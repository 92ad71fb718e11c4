"""Where `print` and `print_to_err` of a stream come out: of the program, as a user starts it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.spark.programs import environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
    import sys
    from tidegate.common import Configuration, Types
    from tidegate.datastream import RuntimeExecutionMode, StreamExecutionEnvironment

    def fail(n):
        if n == 3:
            raise ValueError("three")
        return n

    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_collection(range(20_000))
    numbers.print()
    numbers.map(lambda n: -n).print_to_err("err")
    env.execute()
    print("after the job")
    env.from_collection(range(5)).map(fail).print("failing")
    try:
        env.execute()
    except Exception as error:
        print("failed")
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    pairs = env.from_collection([(key, 1) for key in "abab"], Types.TUPLE([Types.STRING(), Types.INT()]))
    pairs.print("in").set_parallelism(1)
    pairs.key_by(lambda pair: pair[0]).sum(1).print_to_err("batch").set_parallelism(1)
    env.execute()
    print("after the batch job")
    workers = Configuration.from_dict({"tidegate.print.on-driver": "false"})
    env = StreamExecutionEnvironment.get_execution_environment(workers).set_parallelism(1)
    env.from_collection(["elsewhere"]).print()
    env.execute()
"""


def test_what_is_printed_comes_out_of_the_program(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[:20_001] == [*map(str, range(20_000)), "after the job"]
    assert "failed" in lines
    assert lines[-5:] == [*(f"in> ({key},1)" for key in "abab"), "after the batch job"]
    assert sorted(line for line in done.stderr.splitlines() if line.startswith("batch> ")) == [
        "batch> (a,2)",
        "batch> (b,2)",
    ]
    assert "elsewhere" not in done.stdout
    errors = [line for line in done.stderr.splitlines() if line.startswith("err> ")]
    assert errors == [f"err> {-n}" for n in range(20_000)]
