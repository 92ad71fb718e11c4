"""Chaos in parts: what is drawn, what is compared, what is refused, what is reported."""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chaos.kit import run_in_process
from tidegate.chaos.canonical import canonical, order_key
from tidegate.chaos.comparison import Verdict, compare
from tidegate.chaos.draws import KINDS, WORKER_KINDS, driver_fault, worker_faults
from tidegate.chaos.html_report import html
from tidegate.chaos.instrument import cut_connections
from tidegate.chaos.process_groups import ProcessGroups
from tidegate.chaos.recording import recorded, totals
from tidegate.chaos.report import Report
from tidegate.chaos.rewriting import ChaosError, rewrite
from tidegate.chaos.rounds import Rounds, Run, latest_state
from tidegate.chaos.segment import (
    OperatorSeen,
    Segment,
    SegmentResult,
    note_fault,
    write_result,
)
from tidegate.chaos.storage_faults import BadTime
from tidegate.chaos.wishes import Wishes
from tidegate.cli.main import main
from tidegate.common import Configuration, Row, WatermarkStrategy
from tidegate.common.errors import StorageUnavailableError
from tidegate.connectors.record_cache import CacheSink
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.jobmanager.leadership.settings import HighAvailability
from tidegate.jobmanager.runtime import Submission
from tidegate.storage.job_directory import METADATA_NAME
from tidegate.storage.location import StorageLocation
from tidegate.testing import FailAt, InProcessJob, Record, Wait, scripted


@dataclasses.dataclass
class Point:
    x: int
    y: set[str]


def test_equal_values_have_the_same_text() -> None:
    assert canonical({"b": 1, "a": {3, 1, 2}}) == canonical({"a": {2, 3, 1}, "b": 1})
    assert canonical(Point(1, {"a", "b"})) == canonical(Point(1, {"b", "a"})) != canonical(Point(2, {"a", "b"}))
    assert canonical(1) != canonical(1.0) != canonical("1")
    assert canonical((1, 2)) != canonical([1, 2])
    assert canonical(Row(a=1)) == canonical(Row(a=1)) != canonical(Row(a=2))


def test_the_field_with_an_order() -> None:
    assert order_key(("a", 1), "auto") == order_key(("a", 2), "auto") != order_key(("b", 1), "auto")
    assert order_key({"user": 1, "n": 2}, "user") == order_key({"user": 1, "n": 3}, "user") != b""
    assert order_key("text", "auto") == order_key(("a",), "none") == order_key(("a",), "7") == b""


def test_every_worker_draws_the_same_and_a_seed_replays() -> None:
    segment = Segment(folder="", seed="5/1", kinds=tuple(KINDS), faults_left=50)
    attempts = [worker_faults(segment, attempt, 4) for attempt in range(50)]
    assert attempts == [worker_faults(segment, attempt, 4) for attempt in range(50)]
    drawn = [fault for faults in attempts for fault in faults]
    assert {fault.kind for fault in drawn} == set(WORKER_KINDS)
    assert {fault.slot for fault in drawn} == {0, 1, 2, 3}
    assert len(drawn) == 50  # the round has had its share
    for faults in attempts:
        assert not {fault.kind for fault in faults[:-1]} & {"kill", "freeze"}
        assert list(faults) == sorted(faults, key=lambda fault: fault.after_s)
    others = [driver_fault(dataclasses_replace(segment, number=n)) for n in range(40)]
    assert {None if f is None else f.kind for f in others} == {None, "driver", "rescale"}
    assert worker_faults(Segment(folder="", seed="5/1", kinds=("rescale",), faults_left=9), 0, 4) == ()


def dataclasses_replace(struct: Any, **changes: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(struct, **changes)


def counting(env: StreamExecutionEnvironment, endless: bool = True) -> Any:
    source = DataGeneratorSource(lambda i: (i % 2, i), count=None if endless else 100)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")


def test_an_unbounded_source_is_read_as_far_as_it_is_said(tmp_path: Path) -> None:
    run = run_in_process(tmp_path / "run", lambda env: counting(env).sink_to(CollectSink()), records=37)
    assert len(list(recorded(run.folder, run.segments[0].operators[-1].operator_id))) == 37
    assert [total.count for total in totals(run.folder).values()] == [37]


def test_an_unbounded_source_without_a_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChaosError, match=r"never ends: 'Source: numbers' is unbounded.*--records N, or --duration S"):
        run_in_process(tmp_path / "run", lambda env: counting(env).sink_to(CollectSink()))


def test_a_sink_that_cannot_be_replaced_is_named(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        counting(env, endless=False).sink_to(CacheSink(StorageLocation.parse(str(tmp_path / "cache")))).name("kept")

    with pytest.raises(ChaosError, match=r"'Sink: kept' cannot be replaced by a recorder: it is what cache\(\) stores"):
        run_in_process(tmp_path / "run", build)
    run_in_process(tmp_path / "kept", build, keep_sinks=True, looked_at=True)


def test_a_driver_that_is_started_again_leads_the_job_of_its_round(tmp_path: Path) -> None:
    """And not the one that the program leads when it runs for real."""
    env = StreamExecutionEnvironment.get_execution_environment()
    counting(env, endless=False).sink_to(CollectSink())
    own = Configuration.from_dict({"high-availability.type": "zookeeper", "high-availability.cluster-id": "orders"})
    submission = Submission(InProcessJob(env).graph, own)
    first, rescaled = (
        rewrite(submission, Segment(folder=str(tmp_path), number=3, job_since=since)) for since in (0, 3)
    )
    found = [HighAvailability.from_configuration(one.submission.configuration) for one in (first, rescaled)]
    assert [(one.kind, one.storage_dir, one.cluster_id) for one in found if one is not None] == [
        ("filesystem", str(tmp_path / "leases"), "from-segment-0"),
        ("filesystem", str(tmp_path / "leases"), "from-segment-3"),
    ]
    assert any("the program's cluster id is not used" in note for note in first.notes)


def test_how_a_round_goes_on_after_its_driver_has_ended(tmp_path: Path) -> None:
    rounds = Rounds(Wishes(program="job.py"), str(tmp_path))
    now = Segment(folder=str(tmp_path), number=2, faults_left=9, restore="first", job_since=1, parallelism=2)
    result = SegmentResult(job_id="x", operators=(), notes=(), scalable=2)
    suspended, finished = (dataclasses_replace(result, status=status) for status in ("SUSPENDED", "FINISHED"))
    saved = dataclasses_replace(finished, savepoint="second")

    def after(code: int, result: SegmentResult | None) -> Segment | None:
        return rounds._next_segment(now, result, code, random.Random(1), 4)

    assert after(0, finished) is None
    assert after(1, None) is None
    same_job = dataclasses_replace(now, number=3, faults_left=5)
    for one in (after(-signal.SIGKILL, result), after(-signal.SIGKILL, None), after(1, suspended)):
        assert one == same_job  # it finds its newest checkpoint by itself
    rescaled = after(0, saved)
    assert rescaled is not None
    assert (rescaled.restore, rescaled.job_since) == ("second", 3)
    assert rescaled.parallelism in (1, 3)


class DriversThatAreKilled(Rounds):
    """A program of which each start has up to three faults and is killed, until its round may have no more."""

    def _start(self, processes: ProcessGroups, segment: Segment, seconds: float) -> tuple[int | None, str]:
        result = SegmentResult(job_id="x", operators=(), notes=(), status="FINISHED")
        if not segment.faults_left:
            write_result(segment.folder, segment.number, result)
            return 0, ""
        for kind in ("cut", "kill", "driver")[-segment.faults_left :]:
            note_fault(segment.folder, kind)
        return -signal.SIGKILL, ""


def test_a_round_with_killed_drivers_has_as_many_faults_as_it_may(tmp_path: Path) -> None:
    wishes = Wishes(program="job.py", rounds=1, kinds=("driver",), faults_per_round=7)
    (run,) = DriversThatAreKilled(wishes, str(tmp_path)).disturbed()
    assert len(run.faults) == 7
    assert run.ended


def test_the_state_at_the_end_is_that_of_the_last_leader(tmp_path: Path) -> None:
    result = SegmentResult(job_id="ab", operators=(), notes=())
    for name in ("ab-e9/chk-12", "ab-e10/chk-11", "ab-e10/chk-10", "other-e11/chk-99"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / METADATA_NAME).touch()
    assert latest_state(Run("round 1", str(tmp_path), [result])) == str(tmp_path / "checkpoints" / "ab-e10" / "chk-11")


@pytest.mark.parametrize("mode", ["BATCH", "AUTOMATIC", "MICRO_BATCH", "STREAMING"])
def test_a_program_of_another_mode_runs_as_streaming_and_the_report_says_so(tmp_path: Path, mode: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    counting(env, endless=False).sink_to(CollectSink())
    graph = InProcessJob(env).graph
    submission = Submission(graph, Configuration.from_dict({"execution.runtime-mode": mode}))
    found = rewrite(submission, Segment(folder=str(tmp_path)))
    assert found.submission.configuration.get_string("execution.runtime-mode", "") == "STREAMING"
    said = [note for note in found.notes if f"asks for {mode}; it runs as STREAMING" in note]
    assert len(said) == (mode != "STREAMING"), found.notes
    own = rewrite(submission, Segment(folder=str(tmp_path), settings={"execution.runtime-mode": mode}))
    assert not any("asks for" in note for note in own.notes)


def test_what_runs_in_parallel_is_rescaled_and_nothing_else(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        env.set_parallelism(2)
        stream = counting(env, endless=False).set_parallelism(1)
        stream.key_by(lambda v: v[0]).map(lambda v: v).name("keyed").sink_to(CollectSink())

    run = run_in_process(tmp_path / "run", build, parallelism=3)
    assert {o.name: o.parallelism for o in run.segments[0].operators}["Source: numbers"] == 1
    names = {file.name.rpartition("-")[2] for file in (tmp_path / "run" / "totals").iterdir()}
    assert names == {"0000", "0001", "0002"}


def test_a_recorder_in_two_phases_shows_nothing_twice(tmp_path: Path) -> None:
    """And the same for the probe: exact, though the job was set back."""
    steps = [step for i in range(50) for step in (Record(i, i), Wait(5))]

    def build(env: StreamExecutionEnvironment) -> None:
        scripted(env, steps).map(lambda v: v).name("same").sink_to(CollectSink())

    run = run_in_process(tmp_path / "run", build, [FailAt("same", 20), FailAt("same", 45)])
    sink = run.segments[0].operators[-1]
    assert sorted(int(r.text) for r in recorded(run.folder, sink.operator_id)) == list(range(50))
    assert {total.count for total in totals(run.folder).values()} == {50}


def test_a_bad_time_strikes_once_begun_until_it_ends() -> None:
    told: list[int] = []
    now = time.monotonic()
    bad = BadTime(now - 1, now + 60, "is full", lambda: told.append(1))
    for _ in range(2):
        with pytest.raises(StorageUnavailableError, match="No space left"):
            bad.strike()
    assert told == [1]
    BadTime(now + 60, now + 61, "fails", lambda: told.append(2)).strike()
    BadTime(now - 2, now - 1, "fails", lambda: told.append(3)).strike()
    assert told == [1]


def test_only_connections_of_the_ports_are_cut() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        one = socket.create_connection(server.getsockname())
        two = socket.create_connection(other.getsockname())
        accepted, spared = server.accept()[0], other.accept()[0]
        with one, two, accepted, spared:
            assert cut_connections({server.getsockname()[1]}) == 2  # both ends are in this process
            assert accepted.recv(1) == b""
            two.sendall(b"x")
            assert spared.recv(1) == b"x"


def test_the_report_escapes_what_comes_from_the_program() -> None:
    evil = "<script>alert(1)</script>"
    sink = OperatorSeen(operator_id="a", name=evil, kind="sink", inputs=(), guarantee="none", recorded=True)
    result = SegmentResult(job_id="x", operators=(sink,), notes=(), statuses=(("RUNNING", 0.0),), ended_ms=1000.0)
    run = Run("round 1", "/nowhere", [result], [{"kind": "kill", "at_ms": 5.0, "detail": evil}], problem=evil)
    page = html(Report(Wishes(program=evil), run, Verdict(run), [Verdict(run)]))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_run_that_did_not_end_does_not_hold(tmp_path: Path) -> None:
    run = Run("round 1", str(tmp_path), problem="it did not end")
    assert not compare(run, run).held


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "there is no file 'missing.py'"),
        (["--faults", "meteor", __file__], "--faults meteor: there is no such fault; there are kill, exception"),
        (["--faults", " , ", __file__], "--faults ' , ': name at least one of kill, exception"),
        (["--rounds", "0", __file__], "--rounds: has to be more than 0"),
        (["--round", "0", __file__], "--round: has to be more than 0"),
        (["--records", "0", __file__], "--records: has to be more than 0, and not 0"),
        (["--records", "-5", __file__], "--records: has to be more than 0, and not -5"),
        (["--duration", "0", __file__], "--duration: has to be more than 0"),
        (["--every", "nan", __file__], "--every: has to be more than 0"),
        (["--stretch", "inf", __file__], "--stretch: has to be more than 0, and not inf"),
        (["--verify", "true", __file__], "--verify needs --keep-sinks"),
        (["-D", "nonsense", __file__], "-D nonsense: write key=value"),
        (["-D", "high-availability.type=NONE", __file__], "chaos has a high availability of its own"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", *arguments]) == 1
    assert said in capsys.readouterr().err
