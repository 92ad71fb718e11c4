"""Frames of the data plane: whatever arrives is a frame or a FrameError; what a slot cannot place ends its attempt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.effort import fuzzed
from tests.fuzz.inputs import any_bytes, damaged, encoded
from tests.unit.taskmanager.small_jobs import environment, ticks
from tidegate.common.errors import TidegateError
from tidegate.common.ids import AttemptNumber, ChannelAddress, EdgeId, SlotIndex, SubtaskIndex
from tidegate.datastream.connectors import CollectSink
from tidegate.network.elements import ControlElement, EndOfData, Watermark, encode_control
from tidegate.network.serialization import CONTROL
from tidegate.network.wire import CREDIT, Frame, FrameError, decode, encode_header
from tidegate.testing.in_process_job import InProcessJob

CHANNEL = ChannelAddress(EdgeId(0), SubtaskIndex(0), SubtaskIndex(1))
HEADERS = [encode_header(Frame(k, AttemptNumber(0), SlotIndex(0), 0, CHANNEL, 1, b"")) for k in (1, 2, CONTROL, CREDIT)]
CONTROLS = [encode_control(Watermark(5)), encode_control(EndOfData())]


@fuzzed
@given(any_bytes(HEADERS), st.binary(max_size=20))
def test_any_header_is_a_frame_or_a_frame_error(header: bytes, payload: bytes) -> None:
    try:
        frame = decode(header, payload)
    except FrameError:
        return
    assert encode_header(frame) == header


@fuzzed
@given(
    st.lists(
        st.tuples(damaged(HEADERS), st.one_of(any_bytes(CONTROLS), encoded(ControlElement))),
        min_size=1,
        max_size=5,
    )
)
def test_no_frame_does_more_than_end_the_attempt(frames: list[tuple[bytes, bytes]]) -> None:
    """Without frames of rows: they are pickles, which only peers with the job's key can send."""
    env = environment(parallelism=2)
    ticks(env, count=5).key_by(lambda v: v).map(str).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.step(3)
        runtime = job.slots[1].runtime
        assert runtime is not None
        for header, payload in frames:
            try:
                frame = decode(header, payload)
                if frame.kind not in (1, 2):
                    runtime.on_frame(frame)
                    runtime.step()
            except TidegateError:
                return
