"""The mistakes that `tidegate chaos` is there to find: each is seen, and the report names who it was."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chaos.kit import run_in_process
from tidegate.chaos.comparison import Verdict, compare, ordered_sinks
from tidegate.chaos.report import Report, text
from tidegate.chaos.rounds import Rounds
from tidegate.chaos.segment import FailureSeen, OperatorSeen, Segment, SegmentResult, write_result
from tidegate.chaos.wishes import Wishes
from tidegate.cli.main import main
from tidegate.common import Types
from tidegate.contracts.collect_sink import CollectSink
from tidegate.contracts.connectors import Sink, SinkContext, SinkWriter, Source, SourceContext, SourceSplit, SplitReader
from tidegate.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.testing import FailAt, Record, Wait, scripted

RECORDS = 60
STEPS = [step for i in range(RECORDS) for step in (Record((f"k{i % 3}", i), 1_000 + i), Wait(5))]


class Totals(KeyedProcessFunction):
    """As it should be."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value[1])
        yield value[0], self.total.value()


class TotalsInAttributes(KeyedProcessFunction):
    def __init__(self) -> None:
        self.totals: dict[str, int] = {}

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.totals[value[0]] = self.totals.get(value[0], 0) + value[1]
        yield value[0], self.totals[value[0]]


class Baskets(KeyedProcessFunction):
    """Changes the list that state gave it, and does not write it back: what a snapshot holds then is chance."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.items = runtime_context.get_state(ValueStateDescriptor("items", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        items = self.items.value()
        if items is None:
            self.items.update([value[1]])
        else:
            items.append(value[1])
        yield value[0], len(items or [1])


class Fails(MapFunction):
    def map(self, value: Any) -> Any:
        return value[0], 1 / (value[1] - 17)


class Draws(MapFunction):
    def map(self, value: Any) -> Any:
        return value[0], value[1] + random.random()


class ForgetfulSource(Source[Any]):
    """Begins anew wherever it is asked to go on: not replayable."""

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit("all")]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return _FromTheBeginning(context)


class _FromTheBeginning(SplitReader[Any]):
    def __init__(self, context: SourceContext) -> None:
        self._next, self._clock, self._at = 0, context.clock, 0.0

    def poll(self, max_records: int) -> list[Any] | None:
        if self._next == RECORDS:
            return None
        now = self._clock.now_ms()
        if now < self._at:
            return []
        self._at = now + 5
        self._next += 1
        return [(f"k{self._next % 3}", self._next)]

    def offset(self) -> int:
        return self._next


class PlainSink(Sink[Any, None]):
    """Writes at once, in one phase."""

    def create_writer(self, context: SinkContext) -> SinkWriter[Any, None]:
        raise AssertionError("its place is taken by a recorder")


def totals(env: StreamExecutionEnvironment) -> None:
    scripted(env, STEPS).key_by(lambda v: v[0]).process(Totals()).name("totals").sink_to(CollectSink())


def report_of(folder: Path, build: Any, fails: str, record: int = 40) -> Report:
    first = run_in_process(folder / "undisturbed 1", build)
    second = run_in_process(folder / "undisturbed 2", build)
    report = Report(Wishes(program="job.py"), second, compare(first, second))
    disturbed = run_in_process(folder / "round 1", build, [FailAt(fails, record)])
    assert disturbed.segments[-1].restarts == 1
    report.rounds.append(compare(second, disturbed, ordered_sinks(first, second)))
    return report


def test_a_job_as_it_should_be_holds(tmp_path: Path) -> None:
    report = report_of(tmp_path, totals, "totals")
    assert report.held
    assert not report.findings
    assert report.rounds[0].sinks[0].records == RECORDS
    assert any("HELD" in line for line in text(report))


def test_state_in_attributes_is_found_and_named(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = scripted(env, STEPS).key_by(lambda v: v[0]).process(TotalsInAttributes())
        stream.name("in attributes").map(lambda v: v).sink_to(CollectSink())

    report = report_of(tmp_path, build, "in attributes")
    assert report.deterministic
    assert not report.held
    assert len(report.findings) == 1
    assert "'in attributes'" in report.findings[0]
    assert "totals" in report.findings[0]


def test_a_function_that_draws_is_found_before_any_fault(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        scripted(env, STEPS).map(Draws()).name("draws").map(lambda v: v).sink_to(CollectSink())

    report = report_of(tmp_path, build, "draws")
    assert not report.deterministic
    assert any("'draws'" in finding for finding in report.findings)
    assert any("NOT DETERMINISTIC" in line for line in text(report))


def test_state_that_is_changed_without_update_ends_the_first_run_with_its_name(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = scripted(env, STEPS).key_by(lambda v: v[0]).process(Baskets()).name("baskets")
        stream.sink_to(CollectSink())

    with pytest.raises(AssertionError, match=r"MutationError: state 'items' of operator 'baskets', key"):
        run_in_process(tmp_path / "undisturbed 1", build)


def test_a_job_that_fails_by_itself_gets_a_report_that_names_who_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one does whose state is changed without `update`: not only a sentence that chaos cannot begin."""
    said = "MutationError: state 'items' of operator 'baskets', key 'k0': was changed in place"

    def fails(self: Rounds, processes: Any, segment: Segment, seconds: float) -> tuple[int, str]:
        failure = FailureSeen(attempt=0, at_ms=1.0, summary=said)
        sink = OperatorSeen(operator_id="s", name="Sink", kind="sink", inputs=(), guarantee="exactly once")
        result = SegmentResult(job_id="x", operators=(sink,), notes=(), status="FAILED", failures=(failure,))
        write_result(segment.folder, segment.number, result)
        return 1, "Traceback"

    monkeypatch.setattr(Rounds, "_start", fails)
    page = tmp_path / "report.html"
    program = tmp_path / "job.py"
    program.touch()
    assert main(["chaos", "--report", str(page), str(program)]) == 1
    shown = capsys.readouterr().out
    assert f"finding: the job fails without any fault: {said}" in shown
    assert "FAILS BY ITSELF" in shown
    assert "baskets" in page.read_text()


def test_a_program_that_fails_by_itself_is_not_started_again_for_ever(tmp_path: Path) -> None:
    """Rounds have as many restarts as faults need; undisturbed, the third failure of the same record is the last."""

    def build(env: StreamExecutionEnvironment) -> None:
        scripted(env, STEPS).map(Fails()).name("divides").sink_to(CollectSink())

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_in_process(tmp_path / "undisturbed 1", build)


def test_a_source_that_does_not_replay_is_named(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        from tidegate.common import WatermarkStrategy

        stream = env.from_source(ForgetfulSource(), WatermarkStrategy.no_watermarks(), "forgetful")
        stream.map(lambda v: v).name("behind").sink_to(CollectSink())

    report = report_of(tmp_path, build, "behind")
    assert not report.held
    assert report.rounds[0].sinks[0].doubled > 0
    assert any("'Source: forgetful'" in finding and "replayable" in finding for finding in report.findings)


def test_a_sink_in_one_phase_is_at_least_once_and_named(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        scripted(env, STEPS).map(lambda v: v).name("behind").sink_to(PlainSink()).name("plain")

    report = report_of(tmp_path, build, "behind")
    (sink,) = report.rounds[0].sinks
    assert sink.guarantee == "at least once"
    assert sink.lost == 0
    assert sink.doubled > 0
    assert report.held  # what it promises
    assert any("'Sink: plain' is not transactional" in finding for finding in report.findings)


def test_other_keyed_state_at_the_end_is_a_difference(tmp_path: Path) -> None:
    class Other(Totals):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
            self.total.update(7)
            yield value[0], 0

    def same_output(env: StreamExecutionEnvironment, function: KeyedProcessFunction) -> None:
        stream = scripted(env, STEPS).key_by(lambda v: v[0]).process(function).name("totals")
        stream.map(lambda v: 1).sink_to(CollectSink())

    one = run_in_process(tmp_path / "one", lambda env: same_output(env, Totals()))
    other = run_in_process(tmp_path / "other", lambda env: same_output(env, Other()))
    verdict: Verdict = compare(one, other)
    assert [sink.held for sink in verdict.sinks] == [True]
    assert "state 'total' of 'totals' differs for 3 of 3 keys" in verdict.state[0]
