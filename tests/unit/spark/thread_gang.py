"""Workers on threads of the test, for tests of the real JobManager without a Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tidegate.spark.streaming.worker import SlotLaunch, run_partition


class ThreadGang:
    """In the place of a SparkGang."""

    group = "threads"

    def __init__(self, *_: Any) -> None: ...

    def submit(
        self,
        launch: SlotLaunch,
        slots: int,
        exited: Callable[[str | None], None],
        spark_gone: Callable[[str], None],
    ) -> None:
        def run() -> None:
            threads = [threading.Thread(target=lambda i=i: list(run_partition(launch, [i]))) for i in range(slots)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            exited(None)

        threading.Thread(target=run, daemon=True).start()

    def has_started(self) -> bool:
        return True

    def cancel(self) -> None: ...
