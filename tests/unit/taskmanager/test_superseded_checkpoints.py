"""A checkpoint whose barriers cannot all come to a task any more, because one of a newer checkpoint has overtaken."""

from __future__ import annotations

from typing import Any

import pytest
from small_jobs import counting

from tidegate.fault_tolerance.barriers.failures import CheckpointFailureReason
from tidegate.fault_tolerance.barriers.handlers import Abandon, ExactlyOnceHandler
from tidegate.protocol.messages import DeclineCheckpoint, DeclineReason
from tidegate.testing.in_process_job import InProcessJob

CHECKPOINTS = {
    "execution.checkpointing.interval": "100 ms",
    "execution.checkpointing.max-concurrent-checkpoints": 2,
    "execution.checkpointing.tolerable-failed-checkpoints": 0,
}


def test_a_task_that_abandons_a_checkpoint_declines_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may have to wait for the checkpoint's timeout, and it is nobody's fault."""
    reached = ExactlyOnceHandler.reached

    def abandoning(self: Any, channel: int, barrier: Any, now_ms: float) -> list[Any]:
        return (
            [Abandon(barrier.checkpoint_id)] if barrier.checkpoint_id == 1 else reached(self, channel, barrier, now_ms)
        )

    monkeypatch.setattr(ExactlyOnceHandler, "reached", abandoning)
    with InProcessJob(counting(CHECKPOINTS)) as job:
        job.advance(150)
        assert {(d.checkpoint_id, d.reason) for d in job.heard(DeclineCheckpoint)} == {(1, DeclineReason.SUPERSEDED)}
        assert [r.reason for r in job.coordinator.stats.history] == [CheckpointFailureReason.SUPERSEDED]
        job.advance(100)
        assert job.completed == [2]
        assert not job.master.failures
