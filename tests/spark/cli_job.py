"""A program for `tidegate run`: counts numbers per key into files until it is stopped, or to a given number.

tidegate run tests/spark/cli_job.py CHECKPOINTS OUTPUT [RECORDS]
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.recovery_kit import counted, file_sink, with_checkpoints
from tidegate.datastream import StreamExecutionEnvironment


def main(checkpoints: str, output: str, records: str = "") -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with_checkpoints(env, Path(checkpoints), interval_ms=300)
    stream = counted(env, int(records) if records else None, None if records else 2000.0)
    stream.sink_to(file_sink(Path(output), roll_on_checkpoint=True)).name("files").uid("files")
    env.execute("cli job")


if __name__ == "__main__":
    main(*sys.argv[1:])
