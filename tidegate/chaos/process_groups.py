"""Programs in process groups of their own, whose rest is killed when all is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.chaos.interrupts import Interrupts

_LOOK_S = 0.05


class ProcessGroups:
    """Inside `with`: `run` as often as one likes. What a program leaves behind lives on until the block ends."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ProcessGroups:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._started:
            _kill(process)
            process.wait()

    def run(self, command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float) -> int | None:
        """The exit code, as `subprocess` has it; None: it did not end in that time, and was killed with its group."""
        with log.open("wb") as output, Interrupts.held_back():  # until it is known here it would be left behind
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            self._started.append(process)
        deadline = time.monotonic() + seconds
        # It is not waited for: until then nobody else gets its id, by which its group is killed in the end.
        while (ended := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            if time.monotonic() > deadline:
                _kill(process)
                return None
            time.sleep(_LOOK_S)
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
