"""What checkpoints cost while the job runs."""

from __future__ import annotations

import tempfile

from benchmarks.report import Figure
from benchmarks.workloads import best_slope, run_w1


def run(quick: bool) -> list[Figure]:
    small, large, repeats = (500_000, 4_000_000, 1) if quick else (2_000_000, 14_000_000, 3)
    with tempfile.TemporaryDirectory() as folder:

        def rate(interval: str | None) -> float:
            settings = {}
            if interval is not None:
                settings = {"execution.checkpointing.interval": interval, "execution.checkpointing.dir": folder}
            return best_slope(lambda n: run_w1(n, 1, settings), small, large, repeats)

        rate(None) if quick else None  # warm
        without, each_second, ten_a_second = rate(None), rate("1 s"), rate("100 ms")
    return [
        Figure(
            "W1 with a checkpoint every second / without",
            f"{each_second / without:.2f}",
            ">= 0.95",
            each_second / without >= 0.95,
        ),
        Figure(
            "W1 with a checkpoint every 100 ms / without",
            f"{ten_a_second / without:.2f}",
            ">= 0.85",
            ten_a_second / without >= 0.85,
        ),
    ]
