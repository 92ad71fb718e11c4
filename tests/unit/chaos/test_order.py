"""The order of records of one key: recorded folders that differ in it alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.chaos.comparison import compare, ordered_sinks
from tidegate.chaos.recording import _record, _write
from tidegate.chaos.rounds import Run
from tidegate.chaos.segment import OperatorSeen, SegmentResult

SINK = OperatorSeen(operator_id="s", name="Sink", kind="sink", inputs=(), guarantee="exactly once", recorded=True)


def run(folder: Path, values: list[tuple[str, int]]) -> Run:
    (folder / "sinks" / "s").mkdir(parents=True)
    _write(str(folder / "sinks" / "s" / "0000-00000000-0000.records"), [_record(value, "auto") for value in values])
    return Run(folder.name, str(folder), [SegmentResult(job_id="x", operators=(SINK,), notes=())])


@pytest.mark.parametrize(
    ("values", "out_of_order"),
    [
        ([("a", 1), ("b", 1), ("a", 2), ("b", 2)], 0),
        ([("b", 1), ("b", 2), ("a", 1), ("a", 2)], 0),  # among keys there is no order
        ([("a", 2), ("b", 1), ("a", 1), ("b", 2)], 2),
        ([("a", 2), ("b", 2), ("a", 1), ("b", 1)], 4),
    ],
)
def test_swapped_records_of_one_key_are_out_of_order(
    tmp_path: Path, values: list[tuple[str, int]], out_of_order: int
) -> None:
    first, second = (run(tmp_path / name, [("a", 1), ("b", 1), ("a", 2), ("b", 2)]) for name in ("one", "two"))
    ordered = ordered_sinks(first, second)
    assert ordered == {"s"}
    disturbed = run(tmp_path / "round 1", values)
    verdict = compare(second, disturbed, ordered)
    (sink,) = verdict.sinks
    assert (sink.out_of_order, sink.lost, sink.doubled, sink.changed) == (out_of_order, 0, 0, 0)
    assert verdict.held == (out_of_order == 0)
    assert any("out of order among the records of one key" in one for one in sink.examples) == (out_of_order > 0)
    assert compare(second, disturbed).held  # a sink that two undisturbed runs do not agree on has no order
    assert ordered_sinks(second, disturbed) == (frozenset() if out_of_order else {"s"})
