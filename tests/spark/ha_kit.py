"""Drivers of one job with high availability, each a process of its own with a Spark of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.spark.programs import environment
from tests.spark.recovery_kit import until
from tidegate.common.run_defaults import VARIABLE

START_S = 240.0  # on a machine that is very busy


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    (folder / "ha").mkdir(exist_ok=True)
    return {
        "high-availability.type": "filesystem",
        "high-availability.storageDir": str(folder / "ha"),
        "high-availability.cluster-id": "counting",
        **{key.replace("__", "."): value for key, value in more.items()},
    }


class Driver:
    """`python -m tests.spark.ha_driver` in `folder`. `supervised`: by a shell that starts it again as long as it does
    not end with code 0."""

    def __init__(
        self,
        folder: Path,
        records: int,
        per_second: float,
        configuration: dict[str, Any],
        *,
        standby: bool = False,
        other_machine: bool = False,
        supervised: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        given = {**configuration, "tidegate.high-availability.standby": standby}
        more = {VARIABLE: json.dumps(given), **({"OTHER_MACHINE": "1"} if other_machine else {}), **(variables or {})}
        self._log = open(folder / f"driver-{time.monotonic_ns()}.log", "w+")  # noqa: SIM115
        program = [sys.executable, "-m", "tests.spark.ha_driver", str(folder), str(records), str(per_second)]
        loop = ["bash", "-c", f"until {shlex.join(program)}; do sleep 0.2; done"]
        self.process = subprocess.Popen(
            loop if supervised else program,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment(folder, **more),
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        return Path(self._log.name).read_text()

    def status(self) -> dict[str, Any] | None:
        """None until it leads."""
        path = self._folder / "drivers" / f"{self.process.pid}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def until_completed(self, number: int) -> dict[str, Any]:
        def enough() -> dict[str, Any] | None:
            code = self.process.poll()
            assert code in (None, 0), f"the driver ended with {code}:\n{self.output[-3000:]}"
            status = self.status()
            return status if status is not None and status["completed"] >= number else None

        found: dict[str, Any] = until(enough, f"{number} checkpoints", START_S)
        return found

    def until_standing_by(self) -> None:
        until(lambda: "standing by" in self.output or self.process.poll() is not None, "a standby", START_S)
        assert self.process.poll() is None, self.output[-3000:]

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._log.close()


def first_records(folder: Path) -> list[float]:
    """When each subtask of each attempt got its first record, in order."""
    return sorted(float(path.read_text() or "inf") for path in (folder / "drivers").glob("first-*"))
