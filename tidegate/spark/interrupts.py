"""Ctrl-C ends what the program is waiting for, and nothing else.

PySpark's own handler of SIGINT cancels all Spark jobs, so also the gangs of jobs in the background, which would then be
restarted. Ours takes its place when a job is submitted, and again before each later cell of a notebook, whose kernel
sets Python's own for every cell. A handler that the program has set itself is left alone.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]
from py4j.java_gateway import GatewayConnection  # type: ignore[import-untyped]
from pyspark import SparkContext

from tidegate.datastream.closeable_iterator import cancel_interrupted
from tidegate.jobmanager.running_jobs import running_jobs

_PATIENCE_S = 5.0  # for Spark to take the cancellation of what was interrupted


def spare_background_jobs() -> None:
    """From the thread that submits a job; only the main one can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        return
    _take_place()
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        shell.events.register("pre_run_cell", _before_cell)  # once, however often it is called


def _before_cell(info: object) -> None:
    _take_place()


def _take_place() -> None:
    current = signal.getsignal(signal.SIGINT)
    if current is signal.default_int_handler or _is_pysparks(current):
        signal.signal(signal.SIGINT, _interrupt)


def _is_pysparks(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("pyspark.")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """`execute` catches the exception and cancels its job; so does an iterator that waits for a result."""
    try:
        cancel_interrupted(frame)
        if _calls_spark(frame):
            # The connection of this thread is in the middle of the interrupted call: another thread has its own.
            cancelling = threading.Thread(target=_cancel_other_spark_jobs, name="tidegate-interrupt", daemon=True)
            cancelling.start()
            cancelling.join(_PATIENCE_S)
            _hang_up(frame)
    finally:
        raise KeyboardInterrupt


def _calls_spark(frame: FrameType | None) -> bool:
    """Whether the program waits for an answer of the JVM: then an action of Spark's is what is to be interrupted."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("py4j."):
            return True
        frame = frame.f_back
    return False


def _hang_up(frame: FrameType | None) -> None:
    """Close the connection that the interrupted call waits on, so that Py4J finds nothing to do. Otherwise it asks the
    JVM to shut connections down, also those on which the gangs of other jobs are waited for, and then sends the same
    call again: a second gang would start beside the first."""
    while frame is not None:
        connection = frame.f_locals.get("self")
        if isinstance(connection, (ClientServerConnection, GatewayConnection)):
            sock, connection.socket = connection.socket, None  # its stream is in use by the call: it goes with it
            connection.is_connected = False
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()
            return
        frame = frame.f_back


def _cancel_other_spark_jobs() -> None:
    """What PySpark's handler does, but for the jobs of Tidegate."""
    sc = SparkContext._active_spark_context
    if sc is None:
        return
    tracker = sc.statusTracker()
    ours = {
        number for job in running_jobs() for group in job.spark_groups for number in tracker.getJobIdsForGroup(group)
    }
    jsc: Any = sc._jsc
    for number in tracker.getActiveJobsIds():
        if number not in ours:
            jsc.sc().cancelJob(number)
