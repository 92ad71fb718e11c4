"""What Spark has to say of a failure, made readable."""

from __future__ import annotations

import re
from typing import Any

_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")


def summarize(error: BaseException) -> str:
    """Spark's story in one line, without Java stack traces."""
    text = str(error).partition("=== Streaming Query ===")[0]  # behind it: the query's offsets and its whole plan
    python = text.partition("An exception was thrown from the Python worker")[2].partition("SQLSTATE")[0]
    raised = [line.strip() for line in python.splitlines() if _PYTHON_ERROR.match(line)]
    if raised:
        hint = (
            " (is tidegate installed for the Python that Spark's workers use?)"
            if "ModuleNotFound" in raised[-1]
            else ""
        )
        return f"{raised[-1]}{hint}"[:400]
    if "Python worker exited unexpectedly" in text:
        return "a Python worker process exited unexpectedly (it crashed or was killed)"
    _, found, story = text.partition("Error from python worker:")
    if found:  # it did not even start: what it wrote before it died, then Spark's Python path
        said = [line.strip() for line in story.partition("PYTHONPATH was:")[0].splitlines() if line.strip()]
        return f"Python worker processes could not be started: {' '.join(said[-2:]) or 'they wrote nothing'}"[:400]
    for marker in ("Most recent failure reason: ", "Most recent failure: "):
        if marker in text:
            text = text.split(marker, 1)[1]
            break
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return (" ".join(lines[:2]) if lines else type(error).__name__)[:400]


def why_spark_is_gone(sc: Any) -> str | None:
    """Why nothing more can be run on this SparkContext; None when it works. To be asked after something has failed."""
    jsc = sc._jsc
    if jsc is None:
        return "its session was stopped"
    try:
        stopped = bool(jsc.sc().isStopped())
    except Exception as error:  # of Py4J, in many shapes: nobody answers any more
        return f"its JVM does not answer any more ({type(error).__name__}); it has died, or was killed"
    return (
        "its session was stopped, by the program or because the cluster has ended the application" if stopped else None
    )
