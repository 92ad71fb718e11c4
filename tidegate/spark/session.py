"""The Spark session a job runs on: the user's own when there is one, otherwise one made for it."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession

from tidegate.common.configuration import Configuration
from tidegate.common.errors import ResourceError

# A session of our own lets Spark report a lost worker at once instead of trying again by itself: the JobManager decides
# what is restarted. Sessions that the user made keep their settings; a second try of Spark's is told to leave.
_OUR_SETTINGS = {
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "tidegate.spark.daemon",
    "spark.log.level": "FATAL",  # a lost worker is reported by us, in a line, not by Spark in a page
    "spark.sql.shuffle.partitions": "4",
}

_lock = threading.Lock()
_ours: SparkSession | None = None  # the session that we made, if it is still the active one


def obtain_session(configuration: Configuration, given: SparkSession | None, slots: int) -> SparkSession:
    """The given session, the active one, or a new one with at least `slots` slots on this machine."""
    global _ours
    if given is not None:
        return given
    with _lock:
        active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        if active is not None and active.sparkContext._jsc is None:
            active = None  # it was stopped
        if active is not None and active is _ours and _too_small(active, slots):
            active.stop()  # nobody but us uses it: make a larger one
            active = None
        if active is not None:
            return active
        _ours = _create(configuration, slots)
        return _ours


def _too_small(session: SparkSession, slots: int) -> bool:
    sc = session.sparkContext
    return (sc.master or "").startswith("local[") and sc.defaultParallelism < slots


def _create(configuration: Configuration, slots: int) -> SparkSession:
    wanted = {k: v for k, v in configuration.to_dict().items() if k.startswith("spark.")}
    master = (
        wanted.pop("spark.master", None)
        or os.environ.get("SPARK_MASTER")
        or f"local[{max(slots, os.cpu_count() or 1)}]"
    )
    builder: Any = SparkSession.builder.master(master).appName(wanted.pop("spark.app.name", "tidegate"))
    settings = {**_OUR_SETTINGS, **wanted}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers run in the same virtual environment
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def check_slots(session: SparkSession, needed: int) -> None:
    """Refuse at once what Spark would only refuse after minutes of retries."""
    sc = session.sparkContext
    jsc = sc._jsc.sc()
    available = int(jsc.maxNumConcurrentTasks(jsc.resourceProfileManager().defaultResourceProfile()))
    if needed <= available:
        return
    if (sc.master or "").startswith("local[") or sc.master == "local":
        more = f"create the session with master local[{needed}] or more (now {sc.master})"
    else:
        more = "add executors or cores (spark.executor.instances, spark.executor.cores), or free some"
    raise ResourceError(
        f"the job needs {needed} slots at once, and Spark at {sc.master} can run {available} tasks at once. "
        f"Lower the parallelism to at most {available}, or {more}"
    )
