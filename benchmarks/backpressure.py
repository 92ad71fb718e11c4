"""Checkpoints under back-pressure: an unaligned barrier does not wait behind records."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

from benchmarks.report import Figure
from benchmarks.workloads import RunningCount, environment, first, numbers, to_pair
from tidegate.connectors.discard import DiscardingSink
from tidegate.fault_tolerance.barriers.statistics import CheckpointStatus


class SlowCount(RunningCount):
    def process_element(self, value: Any, ctx: Any) -> Any:
        time.sleep(0.002)
        yield from super().process_element(value, ctx)


def run(quick: bool) -> list[Figure]:
    seconds = 8.0 if quick else 30.0
    aligned, _ = _completed(SlowCount(), seconds, unaligned=False)
    unaligned, slow_ms = _completed(SlowCount(), seconds, unaligned=True)
    _, fast_ms = _completed(RunningCount(), seconds / 3, unaligned=True)
    ratio = unaligned / max(1, aligned)
    return [
        Figure(f"checkpoints in {seconds:.0f} s under back-pressure, aligned", str(aligned)),
        Figure(f"checkpoints in {seconds:.0f} s under back-pressure, unaligned", str(unaligned)),
        Figure("unaligned / aligned", f"{ratio:.0f}", ">= 10", ratio >= 10),
        Figure("unaligned, end to end, with back-pressure", f"{slow_ms:.0f} ms", "about as without"),
        Figure("unaligned, end to end, without", f"{fast_ms:.0f} ms"),
    ]


def _completed(function: Any, seconds: float, unaligned: bool) -> tuple[int, float]:
    """(checkpoints completed in the time, median duration in ms)."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(
            2,
            {
                "execution.checkpointing.interval": "200 ms",
                "execution.checkpointing.dir": folder,
                "execution.checkpointing.unaligned.enabled": str(unaligned).lower(),
            },
        )
        numbers(env, 10**10).map(to_pair).key_by(first).process(function).sink_to(DiscardingSink())
        client: Any = env.execute_async("back-pressure")
        time.sleep(3.0)  # until the pipes are full
        before = {c.checkpoint_id for c in client.checkpoint_history() if _completed_one(c)}
        time.sleep(seconds)
        done = [c for c in client.checkpoint_history() if _completed_one(c) and c.checkpoint_id not in before]
        client.cancel()
        client.get_job_execution_result().exception()
    return len(done), statistics.median([c.duration_ms for c in done] or [float("nan")])


def _completed_one(record: Any) -> bool:
    return record.status is CheckpointStatus.COMPLETED
