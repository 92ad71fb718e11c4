"""What a driver that was killed leaves behind is there until the round is over."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tests.spark.recovery_kit import is_alive, until
from tidegate.chaos.process_groups import ProcessGroups

LEAVES_A_WORKER = """
import os, signal, subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(worker.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_of_a_killed_driver_meet_the_next_one_and_are_gone_after_the_round(tmp_path: Path) -> None:
    pid_file, log = tmp_path / "pid", tmp_path / "log"
    with ProcessGroups() as processes:
        code = processes.run([sys.executable, "-c", LEAVES_A_WORKER, str(pid_file)], os.environ, log, 60)
        assert code == -signal.SIGKILL
        worker = int(pid_file.read_text())
        assert processes.run([sys.executable, "-c", "print('next'); exit(3)"], os.environ, log, 60) == 3
        assert log.read_text() == "next\n"
        assert is_alive(worker)
    until(lambda: not is_alive(worker), "the end of the worker", 30)


def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    began = time.monotonic()
    with ProcessGroups() as processes:
        assert processes.run(["sleep", "600"], os.environ, tmp_path / "log", 0.2) is None
    assert time.monotonic() - began < 300
