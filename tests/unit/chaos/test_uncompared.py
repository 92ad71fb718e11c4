"""What cannot be compared is said, and never passes for equal: keyed state that is not found or not read, orders."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chaos.kit import run_in_process
from tidegate.chaos.comparison import Verdict, compare, compare_state, order_remarks, ordered_sinks
from tidegate.chaos.differences import keyed_states, unreadable_states
from tidegate.chaos.recording import _record, _write
from tidegate.chaos.report import Report, text
from tidegate.chaos.rounds import Run
from tidegate.chaos.segment import OperatorSeen, SegmentResult
from tidegate.chaos.wishes import Wishes
from tidegate.common import Types
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.testing import Record, scripted


class Keeps(KeyedProcessFunction):
    """Keeps `kept` for each key."""

    def __init__(self, kept: int) -> None:
        self._kept = kept

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("kept", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.state.update(self._kept)
        yield value


def keeping(folder: Path, kept: int, **segment: Any) -> Run:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = scripted(env, [Record(i, i) for i in range(4)]).key_by(lambda v: v).process(Keeps(kept))
        stream.name("keeps").sink_to(CollectSink())

    return run_in_process(folder, build, **segment)


@pytest.mark.parametrize("key", ["execution.checkpointing.dir", "state.checkpoints.dir"])
def test_state_is_compared_where_the_user_wants_the_checkpoints(tmp_path: Path, key: str) -> None:
    settings = {key: f"file://{tmp_path}/else%20where"}
    one, other = (keeping(tmp_path / str(kept), kept, settings=settings) for kept in (1, 2))
    assert not (tmp_path / "1" / "checkpoints").exists()
    verdict = compare(one, other)
    assert "state 'kept' of 'keeps' differs for 4 of 4 keys" in verdict.state[0]
    assert not verdict.held
    assert not verdict.uncompared


def test_state_that_is_not_found_is_no_equal_state(tmp_path: Path) -> None:
    one, other = (keeping(tmp_path / str(kept), kept) for kept in (1, 2))
    shutil.rmtree(tmp_path / "2" / "checkpoints")
    verdict = compare(one, other)
    assert not verdict.state
    (said,) = verdict.uncompared
    assert "keyed state at the end is not compared: 2 has left no checkpoint" in said
    assert str(tmp_path / "2" / "checkpoints") in said
    report = Report(Wishes(program="job.py"), one, Verdict(one), [verdict, verdict])
    assert [line for line in text(report) if "note: keyed state" in line] == [f"  note: {said}"]


def test_state_that_neither_side_can_show_is_no_equal_state() -> None:
    unreadable = {("keeps", "kept"): {"<unreadable>": "its class is gone"}, ("keeps", "other"): {"a": "1"}}
    assert unreadable_states(unreadable, unreadable) == [
        "state 'kept' of 'keeps' is not compared, since it cannot be read: its class is gone"
    ]
    assert not unreadable_states(unreadable, {("keeps", "kept"): {"a": "1"}})  # that is a difference


def test_damaged_metadata_is_no_equal_state(tmp_path: Path) -> None:
    one, other = (keeping(tmp_path / str(kept), kept) for kept in (1, 2))
    for metadata in (tmp_path / "2").rglob("_metadata"):
        metadata.write_bytes(b"nothing of the kind")
    compared = compare_state(one, other)
    assert not compared.differences
    assert "keyed state at the end is not compared" in compared.uncompared[0]


# ---------------------------------------------------------------- orders


def run(folder: Path, values: list[Any], **sink: Any) -> Run:
    (folder / "sinks" / "s").mkdir(parents=True)
    _write(str(folder / "sinks" / "s" / "0000-00000000-0000.records"), [_record(value, "auto") for value in values])
    seen = {"operator_id": "s", "name": "Out", "kind": "sink", "inputs": (), "guarantee": "exactly once"}
    operator = OperatorSeen(**(seen | {"recorded": True} | sink))
    return Run(folder.name, str(folder), [SegmentResult(job_id="x", operators=(operator,), notes=())])


PAIRS = [("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("values", "others", "sink", "order_by", "reason"),
    [
        (PAIRS, PAIRS, {}, "auto", None),
        (PAIRS, PAIRS[::-1], {}, "auto", "two undisturbed runs have records of one key in different orders"),
        (PAIRS, PAIRS, {}, "none", "--order-by none"),
        (["a", "b"], ["b", "a"], {}, "auto", "no record has a first field, and --order-by names no other one"),
        (PAIRS, PAIRS, {"guarantee": "at least once"}, "auto", "it is at least once"),
        (PAIRS, PAIRS, {"recorded": False}, "auto", "it is the program's own"),
    ],
)
def test_the_report_says_of_which_sinks_no_order_is_compared(
    tmp_path: Path, values: list[Any], others: list[Any], sink: Any, order_by: str, reason: str | None
) -> None:
    first, second = run(tmp_path / "first", values, **sink), run(tmp_path / "second", others, **sink)
    found = order_remarks(first, second, ordered_sinks(first, second), order_by)
    if reason is None:
        assert not found
    else:
        (said,) = found
        assert said.startswith(f"the order of the records of 'Out' is not compared: {reason}")
    report = Report(Wishes(program="job.py"), second, Verdict(second), remarks=found)
    assert [line for line in text(report) if "is not compared" in line] == [f"  note: {one}" for one in found]


def test_readable_states_are_read(tmp_path: Path) -> None:
    kept = keeping(tmp_path / "1", 1)
    (path,) = {str(file.parent) for file in Path(kept.folder).rglob("_metadata")}
    states = keyed_states(path)
    assert not unreadable_states(states, states)
