"""A job with checkpoints of at least once: what is counted twice is said and breaks nothing, what is lost does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chaos.kit import run_in_process
from tests.unit.chaos.test_mistakes import Totals
from tidegate.chaos.comparison import Verdict, compare
from tidegate.chaos.differences import SinkVerdict, compare_records, lost_keys
from tidegate.chaos.recording import Recorded, _WriteTotals
from tidegate.chaos.report import Outcome, Report
from tidegate.chaos.rounds import Run
from tidegate.chaos.wishes import Wishes
from tidegate.common import WatermarkStrategy
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import CheckpointingMode, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.testing import FreezeWorker, KillWorker

RECORDS = 100
# Barriers of one worker come late, while the records of the other go on being counted; then back to that checkpoint.
COUNTED_TWICE = [FreezeWorker(checkpoint=3, for_ms=100, slot=1), KillWorker(checkpoint=4)]


def build(env: StreamExecutionEnvironment) -> None:
    """Two sinks behind state, of which one has sums over eight records each, and one without any."""
    env.set_parallelism(2)
    env.get_checkpoint_config().set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
    source = DataGeneratorSource(lambda i: (f"k{i % 5}", i % 5 + 1), RECORDS, records_per_second=200.0)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    totals = numbers.key_by(lambda v: v[0]).process(Totals()).name("totals")
    totals.sink_to(CollectSink()).name("totals")
    eights = totals.key_by(lambda v: v[0]).count_window(8).reduce(lambda a, b: (a[0], a[1] + b[1]))
    eights.sink_to(CollectSink()).name("eights")
    numbers.map(lambda v: v).name("same").sink_to(CollectSink()).name("plain")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("runs")
    expected = run_in_process(folder / "undisturbed", build)
    return expected, run_in_process(folder / "round 1", build, COUNTED_TWICE)


def by_name(verdict: Verdict) -> dict[str, SinkVerdict]:
    return {sink.name.removeprefix("Sink: "): sink for sink in verdict.sinks}


def test_what_state_has_counted_twice_is_said_and_held(runs: tuple[Run, Run]) -> None:
    expected, run = runs
    verdict = compare(expected, run)
    sinks = by_name(verdict)
    assert sinks["plain"].doubled > 0
    assert sinks["eights"].changed > 0  # sums that no undisturbed run has
    assert sum(sink.lost for sink in verdict.sinks) == 0
    assert verdict.recounted
    assert verdict.held
    assert verdict.state == verdict.suspects == []
    run.faults.append({"kind": "kill", "at_ms": 0.0})
    report = Report(Wishes(program="job.py"), expected, compare(expected, expected, undisturbed=True), [verdict])
    assert report.outcome is Outcome.HELD
    assert any(one.startswith("at least once has counted records twice: state '") for one in report.findings)


def test_without_faults_the_same_difference_is_no_determinism(runs: tuple[Run, Run]) -> None:
    verdict = compare(*runs, undisturbed=True)
    assert not verdict.same
    assert verdict.state


def copied(run: Run, folder: Path) -> Run:
    shutil.copytree(run.folder, folder)
    return Run("round 1", str(folder), run.segments, run.faults)


def test_a_sink_that_has_nothing_of_a_worker_has_lost_it(runs: tuple[Run, Run], tmp_path: Path) -> None:
    expected, run = runs
    for name in ("plain", "totals"):
        short = copied(run, tmp_path / name)
        sink = next(o for o in run.segments[-1].operators if o.name == f"Sink: {name}")
        for file in (tmp_path / name / "sinks" / sink.operator_id).glob("*-0001-*"):
            file.unlink()
        verdict = compare(expected, short)
        assert by_name(verdict)[name].lost > 0
        assert not verdict.held


def test_a_source_that_has_given_less_has_lost_it(runs: tuple[Run, Run], tmp_path: Path) -> None:
    expected, run = runs
    short = copied(run, tmp_path / "short")
    source = next(o for o in run.segments[-1].operators if o.kind == "source")
    for file in (tmp_path / "short" / "totals").glob(f"{source.operator_id}-*"):
        _WriteTotals().commit([(str(file), 49, 7)])
    verdict = compare(expected, short)
    assert verdict.state == [f"'Source: numbers' has given 98 records instead of {RECORDS}"]
    assert not verdict.held
    assert "is the source replayable?" in verdict.suspects[0]


def records(*pairs: tuple[str, int]) -> Iterator[Recorded]:
    return (Recorded(repr(pair).encode(), pair[0].encode(), repr(pair)) for pair in pairs)


TOTALS = [("a", 5), ("a", 12), ("b", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("found", "lost", "changed"),
    [
        (TOTALS, 0, 0),
        ([("a", 5), ("a", 10), ("a", 17), ("b", 1), ("b", 2)], 0, 2),  # the 5 counted twice
        ([("a", 5), ("b", 1), ("b", 2), ("b", 3)], 1, 1),  # what one key has too many does not stand for another's
        ([("a", 5), ("a", 12), ("b", 1)], 1, 0),
        ([("a", 5), ("a", 12)], 2, 0),
    ],
)
def test_behind_state_a_key_must_not_have_fewer_records(found: Any, lost: int, changed: int) -> None:
    verdict = compare_records("Out", "at least once", list(records(*TOTALS)), list(records(*found)), False, True)
    assert (verdict.lost, verdict.changed) == (lost, changed)
    assert verdict.held == (lost == 0)
    assert all("fewer)" in one for one in verdict.examples if one.startswith("lost"))


def test_a_first_field_that_is_no_key_is_not_taken_for_one() -> None:
    wanted, found = list(records(("5", 0), ("12", 0))), list(records(("5", 0), ("10", 0), ("17", 0)))
    assert compare_records("Out", "at least once", wanted, found, False, True).held
    assert compare_records("Out", "at least once", wanted, found[:1] + found[1:2], False, True).held
    assert not compare_records("Out", "at least once", wanted, found[1:2], False, True).held


def test_without_state_before_it_a_record_of_no_undisturbed_run_breaks_a_round() -> None:
    wanted, found = list(records(("a", 5))), list(records(("a", 5), ("a", 6)))
    assert not compare_records("Out", "at least once", wanted, found, False).held
    assert compare_records("Out", "at least once", wanted, found, False, True).held


def test_only_what_lasts_can_have_lost_a_key() -> None:
    want = {("o", "total"): {"'a'": "1", "'b'": "2"}, ("o", "waiting"): {"'a'": "1"}}
    have = {("o", "total"): {"'a'": "7"}}
    assert lost_keys(want, have, {("o", "total")}) == [
        "state 'total' of 'o' has lost 1 of 2 keys, for example key 'b': 2 undisturbed"
    ]
    assert not lost_keys(want, want, {("o", "total")})
