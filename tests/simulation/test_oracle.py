"""What the simulator holds against a run and what it excuses, without a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.simulation.faults import FaultPlan
from tests.simulation.outside_world import BrokenPromise
from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.protocol.messages import DeclineCheckpoint, DeclineReason

CLOSED = "SnapshotError: operator 'Windows': the task was closed before its snapshot could be written"


def declined(detail: str, in_progress: tuple[int, ...]) -> None:
    sim = SimpleNamespace(coordinator=SimpleNamespace(in_progress=in_progress))
    plan = cast(Any, SimpleNamespace(_sim=sim))
    message = DeclineCheckpoint(
        attempt=AttemptNumber(0),
        vertex=VertexId(9),
        subtask=SubtaskIndex(0),
        checkpoint_id=CheckpointId(5),
        reason=DeclineReason.WRITE_FAILED,
        detail=detail,
    )
    FaultPlan.check_decline(plan, message)


def test_a_task_that_has_ended_may_decline_a_checkpoint_that_is_over() -> None:
    declined(CLOSED, in_progress=(6,))


@pytest.mark.parametrize("detail", [CLOSED, "SnapshotError: the RocksDB database is gone", "TypeError"])
def test_a_checkpoint_under_way_is_not_declined_without_a_fault(detail: str) -> None:
    with pytest.raises(BrokenPromise, match="declined a checkpoint by itself"):
        declined(detail, in_progress=(5,))
