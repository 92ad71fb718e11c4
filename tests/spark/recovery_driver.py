"""A driver program of its own, for tests that kill it or its executors: counts into files, with checkpoints. Its
first attempt takes minutes.

python -m tests.spark.recovery_driver CHECKPOINTS OUTPUT RECORDS PER_SECOND [WORKERS_FILE]
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.spark.recovery_kit import SlowInTheFirstAttempt, counted, file_sink, with_checkpoints
from tidegate.datastream import StreamExecutionEnvironment


def main(checkpoints: str, output: str, records: str, per_second: str, workers_file: str = "") -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    with_checkpoints(env, Path(checkpoints))
    stream = counted(env, int(records), float(per_second), before=SlowInTheFirstAttempt(0.02))
    stream.sink_to(file_sink(Path(output))).name("files").uid("files")
    client: Any = env.execute_async("driver")
    result = client.get_job_execution_result()
    while not result.done():
        if workers_file:
            status = {
                "attempt": client.attempt(),
                "pids": [w.pid for w in client.workers()],
                "completed": sum(r.ended_ms is not None and r.reason is None for r in client.checkpoint_history()),
                "failures": [f.failure.summary for f in client.failures()],
            }
            Path(workers_file + ".new").write_text(json.dumps(status))
            os.replace(workers_file + ".new", workers_file)
        time.sleep(0.1)
    result.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
