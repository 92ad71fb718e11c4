"""What the driver has planned, as it arrives in a worker: pickled, and in need of the user's modules."""

from __future__ import annotations

import pickle
import socket
from typing import Any

from tidegate.protocol.messages import FailureInfo
from tidegate.spark.code_bundle import adopt_main_classes


class PlanNotLoadedError(Exception):
    """The worker lacks what the plan needs. No restart can help; `failure` says what to do."""

    def __init__(self, failure: FailureInfo) -> None:
        super().__init__(failure.summary)
        self.failure = failure


def load_plan(pickled: bytes, who: str) -> Any:
    """The plan, after the job's code bundle was installed. `who`: the slot or subtask, for the message."""
    try:
        plan = pickle.loads(pickled)
    except Exception as error:
        where = f"the worker on {socket.gethostname()} ({who})"
        if isinstance(error, ImportError):
            summary = (
                f"{where} cannot import module '{error.name or error}', which the job's functions need. Install it "
                "where Spark's workers run, or ship it with env.add_python_file(path)"
            )
        else:
            summary = f"{where} cannot load the job's functions: {type(error).__name__}: {error}"
        raise PlanNotLoadedError(FailureInfo(summary=summary, permanent=True)) from error
    adopt_main_classes()
    return plan
