"""The soak itself (`make soak-kills`): what it counts, and that its table is never lost."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark import soak_kills
from tests.spark.soak_targets import Targets
from tests.unit.chaos.test_report import a_run, a_verdict
from tidegate.chaos.comparison import Verdict
from tidegate.chaos.draws import DRIVER_KINDS, KINDS
from tidegate.chaos.rewriting import ChaosError
from tidegate.chaos.rounds import Rounds, Run
from tidegate.chaos.segment import DamagedRunError

Outcome = Run | Exception


class NoTargets(Targets):
    kinds = ()

    def make(self, kind: str, folder: str) -> None: ...


def unended() -> Run:
    run = a_run("undisturbed 1", status="FAILED")
    run.problem = "the job ended as FAILED: no room on the disk"
    return run


def a_soak(
    monkeypatch: pytest.MonkeyPatch,
    measured: Callable[[int], Outcome],
    judged: Callable[[Run], Verdict] = a_verdict,
    **arguments: Any,
) -> soak_kills.Soak:
    """`measured`: what comes of the undisturbed run of the n-th job. Every round has two faults, and is `judged`."""
    turns: list[int] = []

    def undisturbed(self: Rounds) -> Run:
        outcome = measured(len(turns))
        turns.append(1)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def disturbed(self: Rounds) -> Iterator[Run]:
        yield a_run("round 1", faults=2)

    monkeypatch.setattr(Rounds, "measured", undisturbed)
    monkeypatch.setattr(Rounds, "disturbed", disturbed)
    monkeypatch.setattr(soak_kills, "compare", lambda expected, run, ordered: judged(run))
    monkeypatch.setattr(soak_kills, "ordered_sinks", lambda first, second: frozenset())
    told = argparse.Namespace(
        seed=7, first=0, pause_while=None, faults=4, minutes=None, rounds=1, per_round=3, every=1.0, stretch=1.0,
        kinds=",".join(KINDS), drivers=0.0,
    )  # fmt: skip
    vars(told).update(arguments)
    return soak_kills.Soak(told, NoTargets())


@pytest.mark.parametrize("error", [ChaosError("the program does not run undisturbed"), DamagedRunError("is damaged")])
def test_a_job_that_cannot_be_judged_is_counted_and_the_soak_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    soak = a_soak(monkeypatch, lambda turn: error if turn == 1 else a_run("undisturbed 1"))
    assert soak.run_and_tell() == 0
    said = capsys.readouterr().out
    assert "2 rounds, 0 of them broken; records 20, lost 0" in said
    assert [line for line in said.splitlines() if line.startswith("NOT JUDGED: windows hashmap aligned, seed ")]
    assert len(soak.unjudged) == 1


def test_no_round_is_held_against_a_run_that_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    soak = a_soak(monkeypatch, lambda turn: unended() if turn == 0 else a_run("undisturbed 1"))
    assert soak.run_and_tell() == 0
    assert soak.rounds.total() == 2
    assert ["timers hashmap aligned" in one and "no room on the disk" in one for one in soak.unjudged] == [True]


def test_it_ends_when_no_job_can_be_judged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    soak = a_soak(monkeypatch, lambda turn: unended())
    with pytest.raises(ChaosError, match="no room on the disk"):
        soak.run_and_tell()
    assert capsys.readouterr().out.splitlines()[-soak_kills.MOST_UNJUDGED - 1].startswith("0 rounds, 0 of them broken")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no room")])
def test_the_table_is_printed_whatever_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    def judged(run: Run) -> Verdict:
        if soak.rounds.total() == 1:
            raise error
        return a_verdict(run)

    soak = a_soak(monkeypatch, lambda turn: a_run("undisturbed 1"), judged)
    if isinstance(error, KeyboardInterrupt):
        assert soak.run_and_tell() == 0
    else:
        with pytest.raises(OSError, match="no room"):
            soak.run_and_tell()
    assert "1 rounds, 0 of them broken; records 10" in capsys.readouterr().out


def test_a_round_whose_state_cannot_be_compared_is_named_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def judged(run: Run) -> Verdict:
        verdict = a_verdict(run)
        verdict.uncompared = ["keyed state at the end is not compared: round 1 has left no checkpoint"]
        return verdict

    soak = a_soak(monkeypatch, lambda turn: a_run("undisturbed 1"), judged)
    assert soak.run_and_tell() == 0
    said = capsys.readouterr().out
    assert said.count("NOT COMPARED: keyed state at the end is not compared: round 1 has left no checkpoint") == 2
    assert "held, the state at the end NOT COMPARED, 2 faults" in said
    assert "the state at the end was not compared in 2 of them" in said


def test_a_broken_round_ends_with_1_and_its_folder_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made: list[Path] = []

    def mkdtemp(prefix: str) -> str:
        made.append(tmp_path / f"{prefix}{len(made)}")
        made[-1].mkdir()
        return str(made[-1])

    monkeypatch.setattr(soak_kills.tempfile, "mkdtemp", mkdtemp)
    soak = a_soak(monkeypatch, lambda turn: a_run("undisturbed 1"), lambda run: a_verdict(run, lost=len(made) - 1))
    assert soak.run_and_tell() == 1
    assert [folder.exists() for folder in made] == [False, True]
    said = capsys.readouterr().out
    assert f"is kept in {made[1]}" in said
    assert "--round 1" in said


def test_turns_with_faults_of_the_driver_alone_are_drawn_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[tuple[str, ...]] = []

    def watched(soak: soak_kills.Soak, job: tuple[str, str, str], seed: int, of: tuple[str, ...]) -> None:
        kinds.append(of)
        soak.faults["kill"] += 1

    monkeypatch.setattr(soak_kills.Soak, "_job", watched)
    for _ in range(2):
        a_soak(monkeypatch, lambda turn: a_run("undisturbed 1"), faults=30, drivers=0.5).run()
    assert kinds[:30] == kinds[30:]
    assert set(kinds) == {tuple(KINDS), tuple(DRIVER_KINDS)}
