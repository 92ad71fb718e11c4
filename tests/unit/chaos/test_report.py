"""What the report concludes: on the terminal, in HTML and as an exit code the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.chaos.comparison import Verdict
from tidegate.chaos.differences import SinkVerdict
from tidegate.chaos.html_report import html
from tidegate.chaos.report import Outcome, Report, text
from tidegate.chaos.rounds import Rounds, Run
from tidegate.chaos.segment import FailureSeen, OperatorSeen, SegmentResult
from tidegate.chaos.wishes import Wishes
from tidegate.cli.main import main

SINK = OperatorSeen(operator_id="s", name="Out", kind="sink", inputs=(), guarantee="exactly once", recorded=True)
FAULT: dict[str, object] = {"kind": "kill", "at_ms": 5.0, "detail": "SIGKILL"}


def a_run(name: str, faults: int = 0, **result: Any) -> Run:
    segment = SegmentResult(job_id="x", operators=(SINK,), notes=("checkpoints every 250 ms",), **result)
    return Run(name, "/nowhere", [segment], [FAULT] * faults)


def a_verdict(run: Run, records: int = 10, lost: int = 0) -> Verdict:
    sink = SinkVerdict("Out", "exactly once", records, lost=lost, examples=["lost: ('a', 1)"] if lost else [])
    return Verdict(run, [sink])


def a_report(*rounds: Verdict, records: int = 10, differs: bool = False, **wishes: Any) -> Report:
    undisturbed = a_verdict(a_run("undisturbed 2"), records, lost=int(differs))
    return Report(Wishes(program="job.py", seed=7, **wishes), undisturbed.run, undisturbed, list(rounds))


def cut_short(report: Report) -> Report:
    report.cut_short = "it was stopped (SIGTERM)"
    return report


def fails_by_itself() -> Report:
    run = a_run("undisturbed 1", status="FAILED", failures=(FailureSeen(attempt=0, at_ms=1.0, summary="1/0"),))
    run.problem = "the job ended as FAILED"
    return Report(Wishes(program="job.py"), run, Verdict(run))


@pytest.mark.parametrize(
    ("report", "outcome", "said"),
    [
        (a_report(a_verdict(a_run("round 1", 2))), Outcome.HELD, "held in all 1 rounds under 2 faults"),
        (a_report(a_verdict(a_run("round 1", 2), lost=1)), Outcome.BROKEN, "did not hold in 1 of 1 rounds"),
        (a_report(a_verdict(a_run("round 1"))), Outcome.NOT_TESTED, "no fault was injected. Give them time with"),
        (a_report(a_verdict(a_run("round 1", 2), 0), records=0), Outcome.NOT_TESTED, "no record came out of any sink"),
        (a_report(a_verdict(a_run("round 1"), lost=1)), Outcome.BROKEN, "did not hold in 1 of 1 rounds"),
        (a_report(), Outcome.NOT_TESTED, "no fault was injected"),
        (cut_short(a_report()), Outcome.CUT_SHORT, "it was stopped (SIGTERM). The guarantee held in the 0 rounds"),
        (cut_short(a_report(a_verdict(a_run("round 1", 2)))), Outcome.CUT_SHORT, "under 2 faults; 5 were asked for"),
        (cut_short(a_report(a_verdict(a_run("round 1", 2), lost=1))), Outcome.BROKEN, "did not hold in 1 of 1 rounds"),
        (a_report(differs=True), Outcome.NOT_DETERMINISTIC, "the same in every run, or use --keep-sinks --verify"),
        (fails_by_itself(), Outcome.FAILS_BY_ITSELF, "does not come to its end without any fault"),
        (a_report(a_verdict(a_run("round 1", 1), 0), records=0, verify="x"), Outcome.HELD, "1 faults"),
        (a_report(a_verdict(a_run("round 1")), verify="x"), Outcome.NOT_TESTED, "no fault was injected"),
    ],
)
def test_terminal_and_page_conclude_the_same(report: Report, outcome: Outcome, said: str) -> None:
    assert report.outcome is outcome
    assert report.held == (outcome is Outcome.HELD)
    assert said in report.conclusion
    assert report.conclusion.startswith(f"{outcome.value}: ")
    assert list(text(report))[-1] == report.conclusion
    page = html(report)
    assert f">{outcome.value}</span>" in page
    assert said in page
    assert ("did not hold" in page) == (outcome is Outcome.BROKEN)
    assert ("records processed again" in page) == report.comparable


def test_the_page_has_the_notes_and_the_command_that_repeats_a_round() -> None:
    report = a_report(a_verdict(a_run("round 1", 1)), a_verdict(a_run("round 2", 1), lost=1))
    report.remarks.append("the order of the records of 'Out' is not compared: it is <b>so</b>")
    page, lines = html(report), "\n".join(text(report))
    for said in ("checkpoints every 250 ms", "again: tidegate chaos --seed 7 --round 2 job.py"):
        assert said in page
        assert said in lines
    assert "is not compared: it is &lt;b&gt;so" in page
    assert "--round 1" not in page


def test_rounds_that_had_no_fault_are_named() -> None:
    report = a_report(*(a_verdict(a_run(f"round {n}", faults)) for n, faults in ((1, 0), (2, 3), (3, 0))))
    assert report.outcome is Outcome.HELD
    assert "no fault came in round 1, round 3: the job had ended before" in report.notes
    assert "  note: no fault came in round 1, round 3: the job had ended before" in list(text(report))


def test_rounds_without_any_fault_are_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the exit code, which is what a script looks at."""

    def disturbed(self: Rounds) -> Iterator[Run]:
        yield a_run("round 1")

    monkeypatch.setattr(Rounds, "undisturbed", lambda self: [a_run("undisturbed 1"), a_run("undisturbed 2")])
    monkeypatch.setattr(Rounds, "disturbed", disturbed)
    program = tmp_path / "job.py"
    program.touch()
    assert main(["chaos", "--json", "--report", str(tmp_path / "report.html"), str(program)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["held"], answer["outcome"], answer["faults"]) == (False, "NOT TESTED", {})
    assert "longer job or a higher --stretch" in answer["problems"][0]
