"""Spark's Python worker daemon with the runtime already loaded.

Spark forks its Python workers from a daemon process. With this one (`spark.python.daemon.module`) a new worker starts
with all imports done, which takes about half a second off every recovery. Used by sessions that we create ourselves.
"""

from __future__ import annotations

from pyspark import daemon

import tidegate.spark.streaming.worker
import tidegate.storage.handles
import tidegate.taskmanager.slot  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
