"""Control messages: whatever arrives decodes or is a ProtocolError, and the JobMaster goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "jobmanager"))

from jobmanager_kit import Driver

from tests.fuzz.effort import fuzzed
from tests.fuzz.inputs import any_bytes, encoded, fitting, refusal
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.jobmanager.restart_strategies import FixedDelay
from tidegate.protocol.codec import ProtocolError, decode_from_master, decode_from_slot, encode
from tidegate.protocol.instructions import Instruction, Send
from tidegate.protocol.messages import (
    PROTOCOL_VERSION,
    Deploy,
    FailureInfo,
    Leave,
    MasterToSlot,
    Register,
    SlotToMaster,
    TaskFailed,
)

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
