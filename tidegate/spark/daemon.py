"""Spark's Python worker daemon with the runtime already loaded.

Spark forks its Python workers from a daemon process. With this one (`spark.python.daemon.module`) a new worker starts
with all imports done, which takes about half a second off every recovery, and how it ends is noted (`exit_codes`).
Used by sessions that we create ourselves.
"""

from __future__ import annotations

from pyspark import daemon

import tidegate.spark.streaming.worker
import tidegate.storage.handles
import tidegate.taskmanager.slot  # noqa: F401
from tidegate.spark.exit_codes import reap

if __name__ == "__main__":
    # Spark's daemon ignores the end of its children, so that nobody knows how they ended; this is its only use of the
    # name, but for SIGHUP, which calls for nothing either.
    vars(daemon)["SIG_IGN"] = reap
    daemon.manager()
