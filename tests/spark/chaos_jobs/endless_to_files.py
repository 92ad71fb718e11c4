"""Counts each key of a source that never ends, into files: `key count` for every record.

`endless_to_files.py check`: whether each count of each key is there once, in the folder of a round, for `--verify`."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.spark.recovery_kit import visible_lines
from tidegate.common import Encoder, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import BucketAssigner, DataGeneratorSource, FileSink, RollingPolicy
from tidegate.datastream.state import ValueStateDescriptor

OUT = Path(os.environ["TIDEGATE_CHAOS_FOLDER"]) / "out"


class Counts(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{value} {count}"


def check() -> None:
    counts: dict[str, list[int]] = defaultdict(list)
    for line in visible_lines(OUT).elements():
        key, count = line.split()
        counts[key].append(int(count))
    for key, found in counts.items():
        if sorted(found) != list(range(1, len(found) + 1)):
            sys.exit(f"{key} has {sorted(found)}")
    print(sum(map(len, counts.values())))


def run() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    keys = DataGeneratorSource(lambda i: f"k{i % 7}", None, records_per_second=500.0)
    counted = env.from_source(keys, WatermarkStrategy.no_watermarks(), "keys").key_by(lambda key: key)
    files = FileSink.for_row_format(str(OUT), Encoder.simple_string_encoder())
    files.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    files.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
    counted.process(Counts(), Types.STRING()).name("counts").sink_to(files.build())
    env.execute("endless")


if __name__ == "__main__":
    check() if sys.argv[1:] == ["check"] else run()
