"""What functions log, of a program as a user starts it: in local mode it arrives at the program, on a cluster in the
log of the executor."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.spark.programs import environment, running
from tests.spark.standalone_cluster import standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
    import logging
    import sys
    from tidegate.common import Configuration
    from tidegate.datastream import StreamExecutionEnvironment

    own = logging.StreamHandler(sys.stdout)
    own.setFormatter(logging.Formatter("%(name)s %(levelname)s %(operator)s %(subtask)s %(message)s",
                                       defaults={"operator": "-", "subtask": "-"}))
    logging.getLogger("mine").addHandler(own)
    logging.getLogger("mine").propagate = False
    logging.getLogger("mine").setLevel(logging.INFO)

    def told(n):
        import logging
        logging.getLogger("mine").info("saw %d", n)
        logging.getLogger("mine.fine").debug("fine %d", n)
        return n

    def run(**settings):
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))
        env.set_parallelism(1).from_collection([1, 2]).map(told).name("teller").print()
        env.execute("my job")

    run()
    print("-- other format, on the workers", flush=True)
    run(**{"tidegate.logging.on-driver": "false", "tidegate.logging.format": "json"})
    print("-- batch", flush=True)
    run(**{"execution.runtime-mode": "BATCH", "tidegate.logging.level": "mine.fine:DEBUG"})
"""


def test_lines_of_functions_arrive_at_the_program(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second, _ = done.stdout.split("--")
    shown = [line for line in first.splitlines() if line.startswith("mine")]
    assert shown == [f"mine INFO teller 0 [my job | teller (subtask 0)] saw {n}" for n in (1, 2)]
    assert "saw" not in second
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [(line["message"], line["operator"], line["job"]) for line in lines] == [
        (f"saw {n}", "teller", "my job") for n in (1, 2)
    ]
    batch = [line for line in done.stderr.splitlines() if "[my job | teller (subtask 0)]" in line]
    assert [line.split("] ")[1] for line in batch] == ["saw 1", "fine 1", "saw 2", "fine 2"]


ON_A_CLUSTER = """
    import os
    from tidegate.common import Configuration
    from tidegate.datastream import StreamExecutionEnvironment

    def told(n):
        import logging
        logging.getLogger("mine").info("saw %d", n)
        return n

    for mode in ("STREAMING", "BATCH"):
        settings = {"execution.runtime-mode": mode, "tidegate.logging.level": "mine:INFO",
                    "tidegate.logging.format": "json"}
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))
        env.set_parallelism(1).from_collection([1, 2]).map(told).name("teller").print()
        env.execute(f"my {mode} job")
    print("REPORT true", flush=True)
"""


@pytest.mark.soak
def test_on_a_cluster_lines_of_functions_are_in_the_log_of_the_executor(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(ON_A_CLUSTER))
    with standalone_cluster(tmp_path) as cluster, running(script, tmp_path, **cluster.program_variables()) as driver:
        driver.wait_for_report()
        at_the_driver = driver.output
    logs = [log.read_text(errors="replace") for log in tmp_path.glob("work-*/app-*/*/stderr")]
    assert len(logs) == 2, "an executor on each host"
    lines = [json.loads(line) for log in logs for line in log.splitlines() if line.startswith('{"')]
    found = [(line["job"], line["operator"], line["message"]) for line in lines if line["logger"] == "mine"]
    assert sorted(found) == sorted(
        (f"my {mode} job", "teller", f"saw {n}") for mode in ("STREAMING", "BATCH") for n in (1, 2)
    )
    assert "saw" not in at_the_driver
