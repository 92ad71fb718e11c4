"""Downtime: from SIGKILL of a worker to the first record processed again."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Figure
from benchmarks.workloads import RunningCount, environment, first, numbers, to_pair
from tidegate.connectors.discard import DiscardingSink


class TimedCount(RunningCount):
    """Notes when the first record of each attempt is processed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self._attempt = runtime_context.get_attempt_number()
        self._noted = False

    def process_element(self, value: Any, ctx: Any) -> Any:
        if not self._noted:
            self._noted = True
            Path(self._folder, f"first-{self._attempt}-{os.getpid()}").write_text(str(time.time()))
        yield from super().process_element(value, ctx)


def run(quick: bool) -> list[Figure]:
    downtimes = []
    with tempfile.TemporaryDirectory() as folder:
        env = environment(
            2,
            {
                "execution.checkpointing.interval": "200 ms",
                "execution.checkpointing.dir": f"{folder}/checkpoints",
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "1000",
                "restart-strategy.fixed-delay.delay": "0 s",
            },
        )
        numbers(env, 10**10).map(to_pair).key_by(first).process(TimedCount(folder)).sink_to(DiscardingSink())
        client: Any = env.execute_async("downtime")
        for attempt in range(2 if quick else 6):
            _wait_for(folder, attempt)
            time.sleep(2.0)  # all keys are in state, checkpoints are complete
            killed = time.time()
            os.kill(client.workers()[0].pid, signal.SIGKILL)
            downtimes.append(_wait_for(folder, attempt + 1) - killed)
        client.cancel()
        client.get_job_execution_result().exception()
    median = statistics.median(downtimes)
    return [
        Figure("SIGKILL to the first record again, median", f"{median * 1000:.0f} ms", "< 1000 ms", median < 1),
        Figure("SIGKILL to the first record again, worst", f"{max(downtimes) * 1000:.0f} ms"),
    ]


def _wait_for(folder: str, attempt: int) -> float:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [p.read_text() for p in Path(folder).glob(f"first-{attempt}-*")]
        if found and all(found):
            return min(map(float, found))
        time.sleep(0.005)
    raise TimeoutError(f"attempt {attempt} has processed nothing within a minute")
