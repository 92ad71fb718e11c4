"""Test your job without Spark: whole jobs in one process on a clock of their own, single functions, planned failures.

`docs/testing.md` shows how. What is here runs the real JobMaster, slots, operators, state and checkpoints; only Spark,
the sockets and the time are not real.
"""

from tidegate.common.errors import OrderNotComparedWarning
from tidegate.testing.clock import EPOCH, ManualClock
from tidegate.testing.comparison import assert_same_under_faults
from tidegate.testing.coroutines import Pause
from tidegate.testing.faults import (
    CommitsFail,
    CutConnections,
    FailAt,
    Fault,
    FreezeWorker,
    KillDriver,
    KillWorker,
    PlannedFailure,
    Rescale,
    StorageFails,
)
from tidegate.testing.harness import Harness, TwoInputHarness
from tidegate.testing.in_process_job import InProcessJob
from tidegate.testing.inputs import Feed, Record, Wait, Watermark, scripted

__all__ = [
    "EPOCH",
    "CommitsFail",
    "CutConnections",
    "FailAt",
    "Fault",
    "Feed",
    "FreezeWorker",
    "Harness",
    "InProcessJob",
    "KillDriver",
    "KillWorker",
    "ManualClock",
    "OrderNotComparedWarning",
    "Pause",
    "PlannedFailure",
    "Record",
    "Rescale",
    "StorageFails",
    "TwoInputHarness",
    "Wait",
    "Watermark",
    "assert_same_under_faults",
    "scripted",
]
