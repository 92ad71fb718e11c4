"""A control message that comes twice changes nothing the second time (found by the simulator)."""

from __future__ import annotations

from collections import Counter

from small_jobs import KEYS, counting

from tidegate.common.job_status import JobStatus
from tidegate.protocol.instructions import Send
from tidegate.protocol.messages import AckCheckpoint, Finish, Leave, Start, TriggerCheckpoint
from tidegate.testing.in_process_job import InProcessJob


class Repeating(InProcessJob):
    """Every message to a slot but the last comes twice, and all that came before comes once more with the last."""

    _before: list[Send]

    def send(self, instruction: Send) -> None:
        if instruction.slot == 0 and isinstance(instruction.message, Leave):
            for before in self._before:
                super().send(before)
        super().send(instruction)
        if not isinstance(instruction.message, Leave):
            self._before.append(instruction)
            super().send(instruction)


def test_messages_that_come_twice_change_nothing() -> None:
    checkpoints = {"execution.checkpointing.interval": "10 ms"}
    with InProcessJob(counting(checkpoints, parallelism=2, count=KEYS + 40)) as once:
        assert once.run_to_end() is JobStatus.FINISHED
    Repeating._before = []
    with Repeating(counting(checkpoints, parallelism=2, count=KEYS + 40)) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.master.attempt == 0
        for kind in (Start, TriggerCheckpoint, Finish):
            assert job.told(kind)
        assert Counter(job.results) == Counter(once.results)
        answers = Counter((m.checkpoint_id, m.snapshot.vertex, m.snapshot.subtask) for m in job.heard(AckCheckpoint))
        assert answers
        assert set(answers.values()) == {1}
