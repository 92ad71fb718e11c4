"""A driver program with high availability, for tests that kill, freeze and restart it: counts into files.

python -m tests.spark.ha_driver FOLDER RECORDS PER_SECOND

All that it writes is below FOLDER: `checkpoints`, `out`, and `drivers/<pid>.json` once it leads. Settings come from
TIDEGATE_RUN_DEFAULTS, as `tidegate run` gives them. OTHER_MACHINE=1: as if it ran on a machine of its own, so that
nobody sees whether the process is alive. CHECKPOINTS: where they lie instead.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from tests.spark.recovery_kit import counted, file_sink, with_checkpoints
from tidegate.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.storage.leases import keeper


class NoteFirst(MapFunction):
    """Notes when the first record came, in a file of the attempt's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self.first = True

    def map(self, value: Any) -> Any:
        if self.first:
            self.first = False
            (self.folder / f"first-{uuid.uuid4().hex}").write_text(f"{time.time()}")
        return value


def main(folder: Path, records: int, per_second: float) -> None:
    logging.basicConfig(format="%(created).3f %(message)s")
    logging.getLogger("tidegate.jobmanager").setLevel(logging.INFO)
    if os.environ.get("OTHER_MACHINE"):
        keeper.this_machine = lambda: uuid.uuid4().hex
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    with_checkpoints(env, None, interval_ms=200)
    place = os.environ.get("CHECKPOINTS", str(folder / "checkpoints"))
    env.get_checkpoint_config().set_checkpoint_storage_dir(place)
    drivers = folder / "drivers"
    drivers.mkdir(exist_ok=True)
    stream = counted(env, records, per_second, before=NoteFirst(drivers))
    stream.sink_to(file_sink(folder / "out", roll_on_checkpoint=True)).name("files").uid("files")
    client: Any = env.execute_async("led")
    result = client.get_job_execution_result()
    status = drivers / f"{os.getpid()}.json"
    while True:
        shown = {
            "job_id": str(client.get_job_id()),
            "pids": [w.pid for w in client.workers()],
            "completed": sum(r.ended_ms is not None and r.reason is None for r in client.checkpoint_history()),
            "restores": len(client.restores()),
        }
        status.with_suffix(".new").write_text(json.dumps(shown))
        os.replace(status.with_suffix(".new"), status)
        if result.done():
            break
        time.sleep(0.05)
    result.result()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
