"""What a job costs as its slots grow, on the cores of one machine: `python -m benchmarks.slot_count [P ...]`.

For each number of slots a Spark session of its own, in a process of its own: how long a job takes to start in a warm
session, how long a checkpoint takes while next to nothing flows, and whose CPU time that is: the driver's, the JVM's or
the workers'. A job without checkpoints tells what slots cost by themselves."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from benchmarks.workloads import RunningCount, environment, first, to_pair
from tidegate.common import WatermarkStrategy
from tidegate.common.job_status import JobStatus
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.fault_tolerance.barriers.statistics import CheckpointStatus

SLOTS = (1, 4, 16, 32, 64)
_LONGEST_S = 180.0


@dataclass
class Cpu:
    """Seconds."""

    driver: float
    jvm: float
    workers: float


@dataclass
class Cost:
    slots: int
    start_s: float
    checkpoint_ms: float  # the median
    per_checkpoint: Cpu  # beyond what an idle job needs in the time
    idle: Cpu  # of a second without checkpoints


def cpu() -> Cpu:
    """Of this process and those below it, so far."""
    me = psutil.Process()
    found = Cpu(_seconds(me), 0.0, 0.0)
    for process in me.children(recursive=True):
        try:
            if process.name() == "java":
                found.jvm += _seconds(process)
            else:
                found.workers += _seconds(process)
        except psutil.Error:
            continue
    return found


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def over(seconds: float) -> Cpu:
    """CPU time of so long."""
    before = cpu()
    time.sleep(seconds)
    after = cpu()
    return Cpu(after.driver - before.driver, after.jvm - before.jvm, after.workers - before.workers)


def started(slots: int, settings: dict[str, str]) -> Any:
    """A job with a little input, running."""
    began = time.monotonic()
    common = {"spark.master": f"local[{slots}]", "tidegate.slot.start-timeout": "3 min"}
    env = environment(slots, common | settings)
    source = DataGeneratorSource(to_pair, 1 << 40, 20.0)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "pairs")
    stream.key_by(first).process(RunningCount()).add_sink(lambda pair: None)
    client: Any = env.execute_async("slot count")
    while client.view().status is not JobStatus.RUNNING:
        if time.monotonic() - began > _LONGEST_S:
            raise RuntimeError(f"{slots} slots have not started within {_LONGEST_S:.0f} s")
        time.sleep(0.02)
    return client


def measure(slots: int, seconds: float) -> Cost:
    started(slots, {}).cancel()  # brings Spark, imports and worker processes
    time.sleep(2.0)
    began = time.monotonic()
    client = started(slots, {})
    start_s = time.monotonic() - began
    time.sleep(1.0)
    idle = over(seconds / 2)
    client.cancel()
    client.get_job_execution_result().exception()
    with tempfile.TemporaryDirectory() as folder:
        client = started(slots, {"execution.checkpointing.interval": "500 ms", "execution.checkpointing.dir": folder})
        time.sleep(2.0)  # the first ones
        before = client.view().checkpoints.completed
        used = over(seconds)
        view = client.view().checkpoints
        number = max(1, view.completed - before)
        times = [one.duration_ms for one in view.history if one.status is CheckpointStatus.COMPLETED]
        client.cancel()
        client.get_job_execution_result().exception()
    for of in asdict(idle):
        per_second = getattr(idle, of) * 2 / seconds
        setattr(idle, of, per_second)
        setattr(used, of, max(0.0, getattr(used, of) - per_second * seconds) / number)
    return Cost(slots, start_s, statistics.median(times[-number:]), used, idle)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slot_count")
    parser.add_argument("slots", nargs="*", type=int, default=SLOTS)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured with checkpoints")
    parser.add_argument("--inside", action="store_true", help="in this process: for one number of slots")
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(asdict(measure(arguments.slots[0], arguments.seconds))))
        return
    print(
        "| slots | start | checkpoint | CPU of it: driver | JVM | workers | idle, CPU of a second: driver | JVM |",
        end="",
    )
    print(" workers |")
    print("|---|---|---|---|---|---|---|---|---|")
    for slots in arguments.slots:
        seconds = str(arguments.seconds)
        command = [sys.executable, "-m", "benchmarks.slot_count", str(slots), "--seconds", seconds, "--inside"]
        found = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        )
        parts = [f"{found[of][who] * 1000:.1f} ms" for of in ("per_checkpoint", "idle") for who in Cpu.__annotations__]
        print(
            f"| {slots} | {found['start_s']:.1f} s | {found['checkpoint_ms']:.0f} ms | {' | '.join(parts)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
