"""A long run under kills: memory, file descriptors, threads and files over time, and the output exact at the end.

`python -m benchmarks.endurance --minutes 60 --out FOLDER`: two jobs at once, one on each state backend, a checkpoint
every 50 ms, a worker killed with SIGKILL every 20 seconds. A line of figures every five seconds goes to
`FOLDER/endurance.csv`, and `FOLDER/endurance.svg` (memory) and `FOLDER/endurance-counts.svg` (descriptors, threads,
files) are drawn from it. Not part of `make bench`: it takes as long as it is told.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tidegate.common import Configuration, Encoder, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import BucketAssigner, DataGeneratorSource, FileSink
from tidegate.datastream.state import ValueStateDescriptor

KEYS = 20_000
RATE = 500.0
BACKENDS = ("hashmap", "rocksdb")
COLUMNS = (
    "seconds",
    "driver MB",
    "jvm MB",
    "hashmap worker MB",
    "rocksdb worker MB",
    "driver descriptors",
    "largest worker descriptors",
    "driver threads",
    "checkpoint files",
    "completed",
    "kills",
)


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        count = (self.count.value() or (0, b""))[0] + 1
        self.count.update((count, os.urandom(100)))
        yield f"{value} {count}"


def key_of(i: int) -> int:
    return i * 7919 % KEYS


def start(backend: str, folder: Path, records: int) -> Any:
    keys = {
        "parallelism.default": "2",
        "state.backend.type": backend,
        "execution.checkpointing.interval": "50 ms",
        "execution.checkpointing.dir": str(folder / backend / "checkpoints"),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000000",
        "restart-strategy.fixed-delay.delay": "0 s",
        "spark.master": "local[6]",
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys))
    source = DataGeneratorSource(key_of, records, RATE)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    sink = FileSink.for_row_format(str(folder / backend / "out"), Encoder.simple_string_encoder())
    counted = stream.key_by(lambda key: key).process(Count(), Types.STRING()).uid("count")
    counted.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()).uid("out")
    return env.execute_async(f"endurance on {backend}")


def megabytes(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / (1 << 20)


def measure(began: float, clients: dict[str, Any], folder: Path, kills: int) -> dict[str, float]:
    """One line. A worker that ends while it is looked at counts as nothing."""
    me = psutil.Process()
    jvm = next((p for p in me.children(recursive=True) if p.name() == "java"), None)
    workers: dict[str, list[psutil.Process]] = {backend: [] for backend in clients}
    for backend, client in clients.items():
        for worker in client.workers():
            if psutil.pid_exists(worker.pid):
                workers[backend].append(psutil.Process(worker.pid))

    def largest(processes: list[psutil.Process], figure: Any) -> float:
        found = []
        for process in processes:
            try:
                found.append(float(figure(process)))
            except psutil.Error:
                continue
        return max(found, default=0.0)

    everyone = [process for of_job in workers.values() for process in of_job]
    return {
        "seconds": round(time.monotonic() - began, 1),
        "driver MB": round(megabytes(me), 1),
        "jvm MB": 0.0 if jvm is None else round(megabytes(jvm), 1),
        "hashmap worker MB": round(largest(workers["hashmap"], megabytes), 1),
        "rocksdb worker MB": round(largest(workers["rocksdb"], megabytes), 1),
        "driver descriptors": me.num_fds(),
        "largest worker descriptors": largest(everyone, lambda p: p.num_fds()),
        "driver threads": me.num_threads(),
        "checkpoint files": sum(len(files) for b in clients for _, _, files in os.walk(folder / b / "checkpoints")),
        "completed": sum(int(client.view().checkpoints.completed) for client in clients.values()),
        "kills": kills,
    }


def run(minutes: float, folder: Path) -> None:
    rng = random.Random(1)
    records = int(minutes * 60 * RATE)
    began = time.monotonic()
    clients = {backend: start(backend, folder, records) for backend in BACKENDS}
    kills, next_kill = 0, began + 20
    with open(folder / "endurance.csv", "w", newline="") as out:
        lines = csv.DictWriter(out, COLUMNS)
        lines.writeheader()
        while not all(client.get_job_execution_result().done() for client in clients.values()):
            time.sleep(5)
            if time.monotonic() >= next_kill and time.monotonic() - began < minutes * 60 - 10:
                next_kill += 20
                workers = [worker for client in clients.values() for worker in client.workers()]
                if workers:
                    os.kill(rng.choice(workers).pid, signal.SIGKILL)
                    kills += 1
            lines.writerow(measure(began, clients, folder, kills))
            out.flush()
    for backend in BACKENDS:
        lost, doubled = compare(folder / backend / "out", records)
        print(f"{backend}: {records} records, {kills} kills in both jobs, lost {lost}, doubled {doubled}", flush=True)
    draw(folder)


def compare(out: Path, records: int) -> tuple[int, int]:
    counts: Counter[int] = Counter()
    expected: Counter[str] = Counter()
    for i in range(records):
        counts[key_of(i)] += 1
        expected[f"{key_of(i)} {counts[key_of(i)]}"] += 1
    found: Counter[str] = Counter()
    for path in out.iterdir():
        if path.name[0] not in "._":
            found.update(path.read_text().splitlines())
    return sum((expected - found).values()), sum((found - expected).values())


MEMORY = {"driver MB": "#1f77b4", "jvm MB": "#7f7f7f", "hashmap worker MB": "#2ca02c", "rocksdb worker MB": "#d62728"}
COUNTS = {
    "driver descriptors": "#1f77b4",
    "largest worker descriptors": "#d62728",
    "driver threads": "#2ca02c",
    "checkpoint files": "#7f7f7f",
}


def draw(folder: Path) -> None:
    """Over time, as pictures that need no library: resident memory; descriptors, threads and files."""
    with open(folder / "endurance.csv", newline="") as source:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(source)]
    (folder / "endurance.svg").write_text(picture(rows, "Resident memory (MB) under a kill every 20 s", MEMORY))
    counted = "Descriptors, threads and files of checkpoints under a kill every 20 s"
    (folder / "endurance-counts.svg").write_text(picture(rows, counted, COUNTS))


def picture(rows: list[dict[str, float]], title: str, colours: dict[str, str]) -> str:
    end = rows[-1]["seconds"]
    top = max(row[name] for row in rows for name in colours) * 1.1
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 320" font-family="sans-serif" font-size="12">',
        '<rect width="780" height="320" fill="white"/>',
    ]
    for step in range(5):
        y = 270 - step * 60
        parts.append(f'<line x1="50" y1="{y}" x2="600" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="44" y="{y + 4}" text-anchor="end">{top * step / 4:.0f}</text>')
    for step in range(5):
        parts.append(f'<text x="{50 + step * 137}" y="290" text-anchor="middle">{end * step / 4 / 60:.0f} min</text>')
    for i, (name, colour) in enumerate(colours.items()):
        points = " ".join(f"{50 + r['seconds'] / end * 548:.1f},{270 - r[name] / top * 240:.1f}" for r in rows)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="610" y="{40 + i * 18}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, f'<text x="50" y="20">{title}</text></svg>', ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, required=True, help="an empty folder for figures, checkpoints and output")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    run(arguments.minutes, arguments.out.absolute())


if __name__ == "__main__":
    main()
