from __future__ import annotations

import msgspec
import pytest

from tidegate.common.ids import AttemptNumber, CheckpointId, SlotIndex, SubtaskIndex, VertexId
from tidegate.common.metric_values import CounterValue, MetricReport
from tidegate.protocol.codec import OtherVersionError, ProtocolError, decode_from_master, decode_from_slot, encode
from tidegate.protocol.messages import (
    MAX_SUMMARY,
    MAX_TRACEBACK,
    PROTOCOL_VERSION,
    DeclineCheckpoint,
    DeclineReason,
    Deploy,
    FailureInfo,
    Leave,
    Register,
    SlotHeartbeat,
    TaskFailed,
)

ATTEMPT, SLOT = AttemptNumber(0), SlotIndex(0)


def register(**fields: object) -> Register:
    return msgspec.structs.replace(
        Register(attempt=ATTEMPT, slot=SLOT, data_address="tcp://h:1", host="h", pid=1, incarnation="me"), **fields
    )


# ---------------------------------------------------------------- texts of users


@pytest.mark.parametrize(
    "message",
    [
        TaskFailed(attempt=ATTEMPT, slot=SLOT, failure=FailureInfo(summary="a\ud800b", traceback="\udfff")),
        SlotHeartbeat(
            attempt=ATTEMPT, slot=SLOT, metrics=(MetricReport(0, 0, "n\ud800", CounterValue(1), "op", ("g\udc00",)),)
        ),
        register(host="\udc80"),
    ],
)
def test_a_text_that_utf8_cannot_say_arrives_with_escapes(message: TaskFailed | SlotHeartbeat | Register) -> None:
    arrived = decode_from_slot(encode(message))
    assert type(arrived) is type(message)
    assert "\\\\ud" in repr(arrived)


def test_a_reason_that_utf8_cannot_say_reaches_the_slot_too() -> None:
    assert decode_from_master(encode(Leave(attempt=ATTEMPT, reason="\ud83d!"))) == Leave(
        attempt=ATTEMPT, reason="\\ud83d!"
    )


def test_the_text_of_a_failure_is_bounded_by_whoever_makes_it() -> None:
    failure = FailureInfo(summary="s" * 50_000_000, traceback="t" * 50_000_000, operator="o" * 50_000_000)
    assert len(failure.summary) == MAX_SUMMARY
    assert len(failure.traceback) == MAX_TRACEBACK
    assert len(encode(TaskFailed(attempt=ATTEMPT, slot=SLOT, failure=failure))) < 100_000
    decline = DeclineCheckpoint(
        attempt=ATTEMPT,
        checkpoint_id=CheckpointId(1),
        vertex=VertexId(0),
        subtask=SubtaskIndex(0),
        reason=DeclineReason.SNAPSHOT_FAILED,
        detail="d" * 50_000_000,
    )
    assert len(decline.detail) == MAX_SUMMARY


# ---------------------------------------------------------------- what does not decode


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", msgspec.msgpack.encode({"type": "Nothing"})]
)
def test_bytes_that_are_no_message_are_a_protocol_error_in_both_directions(payload: bytes) -> None:
    for decode in (decode_from_slot, decode_from_master):
        with pytest.raises(ProtocolError, match="cannot be read"):
            decode(payload)


def test_the_first_message_of_another_version_says_which() -> None:
    deploy = Deploy(attempt=ATTEMPT, addresses=b"", plan=b"")
    for message, decode in ((register(), decode_from_slot), (deploy, decode_from_master)):
        fields = msgspec.msgpack.decode(encode(message))
        assert fields["protocol"] == PROTOCOL_VERSION
        later = {**fields, "protocol": 99}
        with pytest.raises(OtherVersionError, match="version 99"):
            decode(msgspec.msgpack.encode(later))
        unreadable = {"type": fields["type"], "protocol": 98, "something": "new"}
        with pytest.raises(OtherVersionError, match="version 98"):
            decode(msgspec.msgpack.encode(unreadable))
        before_versions = {k: v for k, v in fields.items() if k != "protocol"}
        with pytest.raises(OtherVersionError, match="version 0"):
            decode(msgspec.msgpack.encode(before_versions))
