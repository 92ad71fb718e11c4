"""What the driver sends to a worker that has no such task is not dropped in silence: the attempt fails, with the
cause."""

from __future__ import annotations

from typing import Any

import pytest
from small_jobs import KEYS, counting

from tidegate.common.ids import OperatorId, SubtaskIndex
from tidegate.common.job_status import JobStatus
from tidegate.protocol.codec import decode_from_master, encode
from tidegate.protocol.messages import AssignSplits, CollectAck, Message
from tidegate.testing.in_process_job import InProcessJob

KEYS_OF_A_JOB = {
    "execution.checkpointing.interval": "10 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 3,
    "restart-strategy.fixed-delay.delay": "0 ms",
}
NOWHERE = OperatorId("f" * 32)


def operator_of(job: InProcessJob, name: str) -> OperatorId:
    return next(n.operator_id for v in job.graph.vertices for n in v.operators if n.name.endswith(name))


def splits(job: InProcessJob, operator_id: OperatorId, subtask: int, payloads: Any = ()) -> Message:
    return AssignSplits(
        attempt=job.master.attempt,
        operator_id=operator_id,
        subtask=SubtaskIndex(subtask),
        number=1,
        splits=list(payloads),
        complete=True,
    )


def ack(job: InProcessJob, operator_id: OperatorId, subtask: int) -> Message:
    return CollectAck(attempt=job.master.attempt, operator_id=operator_id, subtask=SubtaskIndex(subtask), seq=-1)


CASES: dict[str, tuple[Any, str]] = {
    "splits for no operator": (lambda job: splits(job, NOWHERE, 0), "AssignSplits for subtask 0 of operator 'fff"),
    "splits for no subtask": (lambda job: splits(job, operator_of(job, "ticks"), 7), "AssignSplits for subtask 7"),
    "splits for no source": (lambda job: splits(job, operator_of(job, "count"), 0), "takes no such message"),
    "splits for a source that has all": (lambda job: splits(job, operator_of(job, "ticks"), 0), "discovers none"),
    "an answer to no operator": (lambda job: ack(job, NOWHERE, 0), "CollectAck for subtask 0 of operator 'fff"),
    "an answer to no subtask": (lambda job: ack(job, operator_of(job, "out"), 7), "CollectAck for subtask 7"),
    "an answer to no sink": (lambda job: ack(job, operator_of(job, "count"), 0), "takes no such message"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_slot_does_not_have_fails_the_attempt_with_the_cause(case: str) -> None:
    make, cause = CASES[case]
    with InProcessJob(counting(KEYS_OF_A_JOB, count=KEYS + 40)) as job:
        job.advance(15)
        job.slots[0].on_message(decode_from_master(encode(make(job))))
        job.run()
        assert cause in job.failure
        assert job.restarts == 1
        assert job.run_to_end() is JobStatus.FINISHED
        assert len(job.results) == KEYS + 40


def test_what_it_has_is_taken() -> None:
    with InProcessJob(counting(KEYS_OF_A_JOB, count=KEYS + 40)) as job:
        job.advance(15)
        job.slots[0].on_message(decode_from_master(encode(ack(job, operator_of(job, "out"), 0))))
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts == 0


def test_a_message_of_an_earlier_attempt_is_dropped_whatever_it_names() -> None:
    with InProcessJob(counting(KEYS_OF_A_JOB, count=KEYS + 40)) as job:
        job.advance(15)
        late = decode_from_master(encode(splits(job, NOWHERE, 0)))
        job.kill_worker().run()
        job.advance(15)
        job.slots[0].on_message(late)
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts == 1
