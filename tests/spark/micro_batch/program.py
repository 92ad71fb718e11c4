"""A micro-batch job that counts into files: for tests in one process, and as a program of its own that they kill.

python -m tests.spark.micro_batch.program FOLDER RECORDS PER_BATCH [MASTER]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tidegate.common import Configuration, Encoder, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource, FileSink
from tidegate.datastream.state import ValueStateDescriptor

KEYS = 50


class CountPerKey(KeyedProcessFunction):
    """Emits a line for every record: each must be there exactly once. Kills its process at the record `dies_at`, once,
    if `marker` names a file that does not exist yet."""

    def __init__(self, marker: str = "", dies_at: int = -1) -> None:
        self.marker, self.dies_at = marker, dies_at

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value == self.dies_at and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{value % KEYS} {count}"


def settings(folder: Path, per_batch: int, location: str = "location") -> dict[str, str]:
    return {
        "execution.runtime-mode": "MICRO_BATCH",
        "tidegate.micro-batch.checkpoint-location": str(folder / location),
        "tidegate.micro-batch.max-records": str(per_batch),
    }


def build(
    env: StreamExecutionEnvironment,
    folder: Path,
    records: int | None,
    function: CountPerKey,
    rate: float | None = None,
) -> None:
    source = DataGeneratorSource(lambda i: i, count=records, records_per_second=rate)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers").uid("numbers")
    counted = numbers.key_by(lambda n: n % KEYS, Types.LONG()).process(function, Types.STRING()).uid("count")
    sink = FileSink.for_row_format(str(folder / "out"), Encoder.simple_string_encoder()).build()
    counted.sink_to(sink).uid("files")


def output(folder: Path) -> list[str]:
    files = [path for path in (folder / "out").rglob("part-*") if not path.name.startswith(".")]
    return sorted(line for path in files for line in path.read_text().splitlines())


def expected(records: int) -> list[str]:
    return sorted(f"{n % KEYS} {n // KEYS + 1}" for n in range(records))


def main(folder: str, records: str, per_batch: str, master: str = "local[2]") -> None:
    patient = {
        "spark.master": master,
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000",
        "restart-strategy.fixed-delay.delay": "100 ms",
    }
    configuration = Configuration.from_dict(settings(Path(folder), int(per_batch)) | patient)
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    build(env, Path(folder), int(records), CountPerKey())
    env.execute("counting")


if __name__ == "__main__":
    main(*sys.argv[1:])
