"""`--keep-sinks` and `--verify`: nothing holds that nobody has looked at; where a command looks, it decides."""

from __future__ import annotations

import dataclasses
import random
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chaos.kit import run_in_process
from tidegate.chaos.comparison import Verdict, compare
from tidegate.chaos.process_groups import ProcessGroups
from tidegate.chaos.report import Report, text
from tidegate.chaos.rewriting import ChaosError
from tidegate.chaos.rounds import Rounds, Run
from tidegate.chaos.segment import Segment, SegmentResult, write_result
from tidegate.chaos.wishes import Wishes
from tidegate.cli.chaos import _wishes, add_command
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DiscardingSink
from tidegate.testing import Record, Wait, scripted

KEPT = {"keep_sinks": True, "looked_at": True}


def into_a_sink(env: StreamExecutionEnvironment, values: list[Any]) -> None:
    steps = [step for i, value in enumerate(values) for step in (Record(value, i), Wait(5))]
    scripted(env, steps).map(lambda v: v).name("same").sink_to(DiscardingSink()).name("own")


def test_kept_sinks_that_nobody_looks_at_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ChaosError, match=r"with --keep-sinks nobody looks .*--verify CMD"):
        run_in_process(tmp_path / "run", lambda env: into_a_sink(env, [1, 2]), keep_sinks=True)

    def collects_too(env: StreamExecutionEnvironment) -> None:
        stream = scripted(env, [Record(1, 1)]).map(lambda v: v)
        stream.sink_to(DiscardingSink())
        stream.sink_to(CollectSink())

    run_in_process(tmp_path / "collects", collects_too, keep_sinks=True)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1, 2, 3], (0, 0, 0)),
        ([1, 2], (1, 0, 0)),
        ([1, 2, 3, 3], (0, 1, 0)),
        ([1, 2, 4], (0, 0, 1)),
    ],
)
def test_what_a_kept_sink_was_handed_is_compared(
    tmp_path: Path, values: list[int], found: tuple[int, int, int]
) -> None:
    expected = run_in_process(tmp_path / "undisturbed", lambda env: into_a_sink(env, [1, 2, 3]), **KEPT)
    run = run_in_process(tmp_path / "round", lambda env: into_a_sink(env, values), **KEPT)
    verdict = compare(expected, run)
    (sink,) = verdict.sinks
    assert sink.name == "into Sink: own"
    assert (sink.lost, sink.doubled, sink.changed) == found
    # The sink is at least once: what it was handed twice is no breach.
    assert verdict.held == (found in ((0, 0, 0), (0, 1, 0)))


def test_with_a_command_output_and_state_may_differ_from_run_to_run(tmp_path: Path) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        into_a_sink(env, [random.random()])

    first, second, third = (run_in_process(tmp_path / name, build, **KEPT) for name in ("first", "second", "round 1"))
    for run in (first, second, third):
        run.decided = True
    third.faults = [{"kind": "kill", "at_ms": 5.0}]
    report = Report(Wishes(program="job.py", verify="true"), second, compare(first, second), [Verdict(third)])
    assert not report.deterministic
    assert report.held
    compared = compare(second, third)
    assert (compared.same, compared.held) == (False, True)
    assert any(line.startswith("HELD") for line in text(report))
    third.verified = "the command ended with 3"
    assert not report.held
    assert any("again: tidegate chaos" in line and "--round 1" in line for line in text(report))
    for run in (first, second):
        run.decided = False
    undecided = Report(Wishes(program="job.py"), second, compare(first, second))
    assert not undecided.held
    assert any(line.startswith("NOT DETERMINISTIC") for line in text(undecided))


def test_a_round_that_did_not_end_does_not_hold_whatever_the_command_says() -> None:
    assert not Verdict(Run("round 1", "/nowhere", problem="it hangs", decided=True)).held


class WithoutPrograms(Rounds):
    """Whose jobs finish at once."""

    def _start(self, processes: ProcessGroups, segment: Segment, seconds: float) -> tuple[int | None, str]:
        result = SegmentResult(
            job_id="x", operators=(), notes=(), status="FINISHED", statuses=(("RUNNING", 0.0),), ended_ms=1e6
        )
        write_result(segment.folder, segment.number, result)
        return 0, ""


def test_a_command_that_rejects_an_undisturbed_run_is_refused(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-c", "import sys; sys.exit('nothing there')"])
    rounds = WithoutPrograms(Wishes(program="job.py", keep_sinks=True, verify=command), str(tmp_path))
    with pytest.raises(ChaosError, match=r"--verify rejects a run without any fault.*nothing there.*FOLDER"):
        rounds.undisturbed()


def test_a_command_that_rejects_a_round_breaks_it(tmp_path: Path) -> None:
    check = "import os, sys; sys.exit('round' in os.environ['TIDEGATE_CHAOS_FOLDER'].rpartition('/')[2])"
    wishes = Wishes(program="job.py", rounds=1, keep_sinks=True, verify=shlex.join([sys.executable, "-c", check]))
    rounds = WithoutPrograms(wishes, str(tmp_path))
    first, second = rounds.undisturbed()
    (run,) = rounds.disturbed()
    assert (first.verified, second.verified) == (None, None)
    assert "ended with 1" in (run.verified or "")
    assert not Verdict(run).held


# ---------------------------------------------------------------- the command that repeats a round


def parsed(command: str) -> Wishes:
    import argparse

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()

    def make(subparsers: Any, name: str, summary: str, run: Callable[..., Any], show: Any) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = subparsers.add_parser(name)
        return made

    add_command(commands, make)
    words = shlex.split(command)
    assert words[0] == "tidegate"
    return _wishes(parser.parse_args(words[1:]))


@pytest.mark.parametrize("plain", [True, False])
def test_the_command_of_a_failed_round_asks_for_the_same(tmp_path: Path, plain: bool) -> None:
    program = tmp_path / "a job's.py"
    program.touch()
    wishes = Wishes(program=str(program), seed=17)
    if not plain:
        wishes = Wishes(
            program=str(program),
            arguments=("--folder", "of the program", "-D", "x=y", "it's; echo $HOME"),
            kinds=("kill", "driver"),
            seed=2**31 - 1,
            every_s=0.1,
            faults_per_round=9,
            stretch_s=1.25,
            records=1000,
            duration_s=2.5,
            keep_sinks=True,
            verify="grep -q 'all right' \"$TIDEGATE_CHAOS_FOLDER/out\"",
            order_by="user id",
            settings=(("heartbeat.timeout", "2 s"), ("heartbeat.interval", "200 ms")),
        )
        for field in dataclasses.fields(Wishes):  # one that is new has to be in the command too
            if field.name not in ("rounds", "looked_at", "only_round"):
                assert getattr(wishes, field.name) != field.default, field.name
    assert parsed(wishes.command(3)) == dataclasses.replace(wishes, only_round=3)
