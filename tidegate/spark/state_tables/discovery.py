"""The format `tidegate-state` in sessions that a user has made.

Spark finds data sources in Python by itself, once, with the Python of the variables PYSPARK_DRIVER_PYTHON and
PYSPARK_PYTHON as they were when it was started, else with the `python3` of the path; no setting of a session changes
that. Where that is not the Python of the program, as in a notebook or in a virtual environment that was not activated,
the format is registered when an environment takes the session. That takes Spark a second or two, so it is done beside
the job.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import weakref
from typing import Any

from tidegate.spark.versions import has_python_data_sources

log = logging.getLogger("tidegate.spark")

_lock = threading.Lock()
_known: weakref.WeakSet[Any] = weakref.WeakSet()  # sessions that have it, or are about to


def make_known(session: Any) -> threading.Thread | None:
    """May be called as often as one likes. The thread that registers it, or None when there is nothing to do."""
    if not has_python_data_sources() or spark_finds_it():
        return None
    with _lock:
        if session in _known:
            return None
        _known.add(session)
    thread = threading.Thread(target=_register, args=(session,), name="tidegate-state-format", daemon=True)
    thread.start()
    return thread


def spark_finds_it() -> bool:
    """Whether the Python that Spark looks with is this one."""
    chosen = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON") or "python3"
    found = shutil.which(chosen)
    return found is not None and os.path.dirname(os.path.abspath(found)) == os.path.dirname(sys.executable)


def _register(session: Any) -> None:
    from tidegate.spark.state_tables import register

    try:
        register(session)
    except Exception as error:  # the session may be stopped by now; nobody has asked for the format yet
        log.debug("the format tidegate-state was not registered: %s", error)
