"""Control messages: whatever arrives decodes or is a ProtocolError, and the JobMaster goes on."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "jobmanager"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "taskmanager"))

from jobmanager_kit import Driver
from small_jobs import counting

from tests.fuzz.effort import fuzzed
from tests.fuzz.inputs import any_bytes, encoded, fitting, refusal
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.jobmanager.restart_strategies import FixedDelay
from tidegate.protocol.codec import ProtocolError, decode_from_master, decode_from_slot, encode
from tidegate.protocol.instructions import Instruction, Send
from tidegate.protocol.messages import (
    PROTOCOL_VERSION,
    AssignSplits,
    CollectAck,
    Deploy,
    FailureInfo,
    Leave,
    MasterToSlot,
    Register,
    SlotToMaster,
    TaskFailed,
)
from tidegate.state import serialization
from tidegate.testing.in_process_job import InProcessJob

FIRST = AttemptNumber(0)
VALID = [
    encode(Register(attempt=FIRST, slot=SlotIndex(0), data_address="tcp://h:1", host="h", pid=1, incarnation="x")),
    encode(TaskFailed(attempt=FIRST, slot=SlotIndex(0), failure=FailureInfo(summary="boom"))),
    encode(Deploy(attempt=FIRST, addresses=b"\x91\xa9tcp://h:1", plan=b"plan")),
    encode(Leave(attempt=FIRST, reason="enough")),
]


@fuzzed
@given(any_bytes(VALID))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    for decode in (decode_from_slot, decode_from_master):
        message, error = refusal(lambda decode=decode: decode(data), ProtocolError)
        if message is None:
            assert len(str(error)) < 1_000
        else:
            assert repr(decode(encode(message))) == repr(message)  # NaN is no equal of itself


@fuzzed
@given(encoded(SlotToMaster), encoded(MasterToSlot))
def test_what_fits_the_types_decodes_or_is_of_another_version(up: bytes, down: bytes) -> None:
    for decode, data in ((decode_from_slot, up), (decode_from_master, down)):
        message, error = refusal(lambda decode=decode, data=data: decode(data), ProtocolError)
        if message is None:
            assert "version" in str(error)
        else:
            assert repr(decode(encode(message))) == repr(message)


def tell(driver: Driver, message: Any) -> None:
    """As the JobManager does, with everything that follows: what is sent can be sent."""
    out: list[Instruction] = driver.do(driver.master.on_message, message)
    out += driver.do(driver.master.on_tick)
    for instruction in out:
        if isinstance(instruction, Send):
            decode_from_master(encode(instruction.message))


@fuzzed
@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, None]), fitting(SlotToMaster)), min_size=1, max_size=8),
)
def test_no_message_that_decodes_ends_the_job_master(stage: int, messages: list[tuple[int | None, Any]]) -> None:
    driver = Driver(restart=FixedDelay(100, 0), checkpoints=CheckpointSettings(interval_ms=100))
    driver.start()
    if stage >= 1:
        driver.register_all()
    if stage >= 2:
        driver.ready_all()
    if stage >= 3:
        driver.wait(150)  # a checkpoint is under way
    for attempt, fields in messages:
        named = {**fields, "attempt": fields["attempt"] if attempt is None else driver.attempt - attempt}
        if named["type"] == "Register":
            named["protocol"] = PROTOCOL_VERSION
        tell(driver, decode_from_slot(msgspec.msgpack.encode(named)))
    driver.cancel()
    driver.exit()
    driver.wait(120_000, alive=False)
    assert driver.ended is not None


# ---------------------------------------------------------------- driver -> worker

CHECKPOINTS = {"execution.checkpointing.interval": "10 ms", "execution.checkpointing.max-concurrent-checkpoints": 2}
RESTARTS = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 ms"}
MANY_RESTARTS = {**RESTARTS, "restart-strategy.fixed-delay.attempts": 1000}


@fuzzed
@given(
    st.integers(0, 3),
    st.lists(
        st.tuples(st.sampled_from([0, 0, 0, 1, None]), st.booleans(), fitting(MasterToSlot)), min_size=1, max_size=8
    ),
)
def test_no_message_that_decodes_ends_a_worker_without_a_word(
    steps: int, messages: list[tuple[int | None, bool, dict[str, Any]]]
) -> None:
    """It changes nothing, or fails the attempt with a cause; and whatever it was, the job can be ended then."""
    with (
        tempfile.TemporaryDirectory() as elsewhere,
        InProcessJob(counting({**CHECKPOINTS, **MANY_RESTARTS}, parallelism=2)) as job,
    ):
        for _ in range(steps):
            job.advance(7)
        collect = next(
            node.operator_id for v in job.graph.vertices for node in v.operators if node.name.endswith("out")
        )
        for attempt, named, fields in messages:
            for lookup in fields.get("lookups", ()):
                lookup["query"] = serialization.dumps((None, None, 1))  # a pickle: reading one runs code
            if named and "operator_id" in fields:
                fields = {**fields, "operator_id": collect, "subtask": 0}
            slot, failures = job.slots[0], len(job.master.failures)
            told = {**fields, "attempt": fields["attempt"] if attempt is None else slot.attempt - attempt}
            if "splits" in told:
                told["splits"] = []  # pickles, too
            if "barrier" in told:
                told["barrier"] = {**told["barrier"], "target": told["barrier"]["target"] and f"{elsewhere}/savepoint"}
            message = decode_from_master(msgspec.msgpack.encode({**told, "protocol": PROTOCOL_VERSION}))
            taken = slot.working and slot.runtime is not None and message.attempt == slot.attempt
            slot.on_message(message)
            job.run()
            if len(job.master.failures) > failures:
                assert job.failure
                assert len(job.failure) <= 4_000
            elif taken and slot.attempt == message.attempt and isinstance(message, CollectAck | AssignSplits):
                assert isinstance(message, CollectAck)
                assert (message.operator_id, message.subtask) == (collect, 0)
        job.cancel()
        job.advance(120_000)
        assert job.ended is not None
