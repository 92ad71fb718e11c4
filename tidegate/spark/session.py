"""The Spark session a job runs on: the user's own when there is one, otherwise one made for it."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import threading
import time
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from tidegate.common import options
from tidegate.common.config_options import ConfigOption, parse_duration
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, ResourceError
from tidegate.common.terminal_line import LINE
from tidegate.spark.exit_codes import collect_here
from tidegate.spark.state_tables.discovery import make_known

# A session of our own lets Spark report a lost worker at once instead of trying again by itself: the JobManager decides
# what is restarted. Sessions that the user made keep their settings; a second try of Spark's is told to leave.
_OUR_SETTINGS = {
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "tidegate.spark.daemon",
    "spark.sql.shuffle.partitions": "4",
}

_REGISTRATION = "spark.scheduler.maxRegisteredResourcesWaitingTime"  # after it no more executors are waited for
_POLL_S = 0.1
_NEVER_WARNED, _MANY_PER_CORE = 16, 4  # slots on this machine: a warning above both
_ALWAYS_ALLOWED, _MOST_PER_CORE = 64, 16  # and refused above both, unless somebody asked for that master

log = logging.getLogger("tidegate.spark")

_lock = threading.Lock()
_ours: SparkSession | None = None  # the session that we made, if it is still the active one


def obtain_session(
    configuration: Configuration, given: SparkSession | None, slots: int, busy: bool = False, gang: bool = False
) -> SparkSession:
    """The given session, the active one, or a new one with at least `slots` slots on this machine.

    `busy`: jobs of this program are running, so a session of ours that is too small must not be replaced. `gang`: all
    slots are needed at once."""
    global _ours
    if given is not None:
        if given.sparkContext._jsc is None:
            raise ConfigurationError(
                "the SparkSession that get_execution_environment(spark=...) was given has been stopped. Make a new one "
                "(SparkSession.builder.getOrCreate()) and a new environment with it; without the argument the "
                "environment finds or makes a session by itself."
            )
        _take(given)
        return given
    with _lock:
        active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        if active is not None and active.sparkContext._jsc is None:
            active = None  # it was stopped
        if active is not None and active is _ours and not busy and _too_small(active, slots):
            active.stop()  # nobody but us uses it: make a larger one
            active = None
        if active is not None:
            _take(active)
            return active
        _ours = _create(configuration, slots, gang)
        return _ours


def _take(session: SparkSession) -> None:
    """What a session that somebody else may have made needs."""
    use_own_python(session)
    make_known(session)


def use_own_python(session: SparkSession) -> None:
    """A local session that says nothing of Python would start its workers with whatever `python3` the path has, which
    may lack this virtual environment's packages. The driver's own interpreter is what is meant."""
    sc = session.sparkContext
    chosen = os.environ.get("PYSPARK_PYTHON") or sc.getConf().get("spark.pyspark.python")
    if not chosen and re.match(r"local($|\[)", sc.master or ""):
        sc.pythonExec = sys.executable


def arrives_here(configuration: Configuration, option: ConfigOption, session: SparkSession) -> bool:
    """Whether what workers print or log is shown by this program: as the option says, else when Spark is local."""
    chosen = options.read(configuration, option)
    return bool((session.sparkContext.master or "").startswith("local") if chosen is None else chosen)


def workers_write_to_the_terminal(session: SparkSession) -> bool:
    """Whether the standard error of Python workers ends where this program draws its line of progress."""
    return LINE.there and bool((session.sparkContext.master or "").startswith("local"))


def _too_small(session: SparkSession, slots: int) -> bool:
    sc = session.sparkContext
    return (sc.master or "").startswith("local[") and sc.defaultParallelism < slots


def _create(configuration: Configuration, slots: int, gang: bool) -> SparkSession:
    builder: Any = SparkSession.builder
    for key, value in session_settings(configuration, slots, gang, _submitted()).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _submitted() -> dict[str, str]:
    """What `spark-submit` was given, when it has started this program."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def session_settings(configuration: Configuration, slots: int, gang: bool, submitted: dict[str, str]) -> dict[str, Any]:
    """Of a session that is made for a job. The configuration goes before what `spark-submit` was given, and both go
    before ours; `local[*]`, which it says when it was told nothing, does not count."""
    wanted = {k: v for k, v in configuration.to_dict().items() if k.startswith("spark.")}
    given = {k: v for k, v in submitted.items() if (k, v) != ("spark.master", "local[*]")}
    master = wanted.pop("spark.master", None) or given.get("spark.master") or os.environ.get("SPARK_MASTER")
    if master is None:
        cores = os.cpu_count() or 1
        if gang:
            check_local_parallelism(slots, cores)
        master = f"local[{max(slots, cores)}]"
    settings = {"spark.app.name": "tidegate", **_OUR_SETTINGS, **given, **wanted, "spark.master": master}
    if master.startswith("local"):
        collect_here()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers run in the same virtual environment
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        log4j = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
        settings.setdefault("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{log4j}")
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    return settings


def check_local_parallelism(slots: int, cores: int) -> None:
    """Refuse, before a session is made for it, a gang that would only make this machine unusable: every slot is a
    Python process. Somebody who makes the session says how many slots it has and is only warned."""
    most = max(_ALWAYS_ALLOWED, _MOST_PER_CORE * cores)
    if slots > most:
        raise ResourceError(
            f"the job needs {slots} slots, and each is a Python process: that is too much for the {cores} cores of "
            f"this machine, and more than one or two per core make nothing faster. Lower the parallelism to at most "
            f"{most}, or run on a cluster; if it is meant, set spark.master to local[{slots}]"
        )


def _warn_of_many(master: str, slots: int, cores: int) -> None:
    if re.match(r"local($|\[)", master) and slots > max(_NEVER_WARNED, _MANY_PER_CORE * cores):
        log.warning(
            "the job starts %d Python processes on a machine of %d cores (master %s); more than one or two per core "
            "make nothing faster",
            slots,
            cores,
            master,
        )


def check_slots(session: SparkSession, needed: int) -> None:
    """Refuse at once what Spark would only refuse after minutes of retries. Executors of a cluster that has just been
    started are waited for, as Spark itself does."""
    sc = session.sparkContext
    available = _slots(sc)
    while needed > available and needed <= _expected_slots(sc):
        time.sleep(_POLL_S)
        available = _slots(sc)
    if needed <= available:
        _warn_of_many(sc.master or "", needed, os.cpu_count() or 1)
        return
    if (sc.master or "").startswith("local[") or sc.master == "local":
        more = f"create the session with master local[{needed}] or more (now {sc.master})"
    else:
        more = "add executors or cores (spark.executor.instances, spark.executor.cores), or free some"
    raise ResourceError(
        f"the job needs {needed} slots at once, and Spark at {sc.master} can run {available} tasks at once. "
        f"Lower the parallelism to at most {available}, or {more}"
    )


def _slots(sc: SparkContext) -> int:
    """How many tasks can run at once on the executors that are there now."""
    jsc = sc._jsc.sc()
    return int(jsc.maxNumConcurrentTasks(jsc.resourceProfileManager().defaultResourceProfile()))


def _expected_slots(sc: SparkContext) -> float:
    """How many slots may still come: none once the executors have had their time to register."""
    master = sc.master or ""
    if time.time() - sc.startTime / 1000 > _registration_s(sc) or re.match(r"local($|\[)", master):
        return 0
    cluster = re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,", master)
    return int(cluster[1]) * int(cluster[2]) if cluster else math.inf


def _registration_s(sc: SparkContext) -> float:
    """How long after the start of a session executors may still come, by Spark's own setting and default."""
    return parse_duration(sc.getConf().get(_REGISTRATION) or "30s") / 1000
