"""What the report concludes: on the terminal, in HTML and as an exit code the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tidegate.chaos.comparison import Verdict
from tidegate.chaos.differences import SinkVerdict
from tidegate.chaos.figures import downtimes
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


# ---------------------------------------------------------------- figures, and their picture

SEGMENTS = (
    SegmentResult(
        job_id="x",
        operators=(SINK,),
        notes=(),
        started_ms=1000.0,
        ended_ms=9000.0,
        statuses=(
            ("CREATED", 1000.0),
            ("RUNNING", 2000.0),
            ("FAILING", 5000.0),
            ("RESTARTING", 5500.0),
            ("RUNNING", 7000.0),
        ),
        restarts=1,
        records=80,
        checkpoints_completed=7,
        checkpoints_failed=2,
    ),  # then its driver was killed
    SegmentResult(
        job_id="x",
        operators=(SINK,),
        notes=(),
        started_ms=10_000.0,
        ended_ms=14_000.0,
        statuses=(("CREATED", 10_000.0), ("RUNNING", 12_500.0)),
        records=70,
        checkpoints_completed=3,
    ),
)
FAULTS: list[dict[str, object]] = [
    {"kind": "kill", "at_ms": 5000.0, "detail": "SIGKILL of the worker of slot 1"},
    {"kind": "driver", "at_ms": 9000.0, "detail": "SIGKILL of the <driver>"},
]


def two_segments(name: str = "round 1") -> Run:
    return Run(name, "/nowhere", list(SEGMENTS), list(FAULTS))


def test_downtime_is_from_a_failure_or_the_end_of_a_driver_until_the_job_runs_again() -> None:
    assert downtimes(two_segments()) == [2.0, 3.5]
    died_while_it_failed = a_run("round 1", statuses=(("RUNNING", 0.0), ("FAILING", 1000.0)), ended_ms=3000.0)
    died_while_it_failed.segments += a_run("", statuses=(("CREATED", 4000.0), ("RUNNING", 6000.0))).segments
    assert downtimes(died_while_it_failed) == [5.0]  # one, not one for each of the two
    never_again = a_run("round 1", statuses=(("RUNNING", 0.0), ("RESTARTING", 1000.0)), ended_ms=3000.0)
    assert downtimes(never_again) == []
    assert downtimes(Run("round 1", "/nowhere")) == []


def test_the_figures_are_those_of_all_rounds() -> None:
    cut_off = a_run("round 3", records=500)
    cut_off.problem = "it did not end within 10 s"
    report = a_report(a_verdict(two_segments()), a_verdict(a_run("round 2", records=90), lost=2), Verdict(cut_off))
    report.expected.segments = a_run("undisturbed 2", records=100).segments
    numbers = report.figures
    assert numbers.processed_again == 50  # 80 + 70 - 100; nothing of a round that had fewer, or has not ended
    assert (numbers.median_downtime_s, numbers.worst_downtime_s) == (2.75, 3.5)
    assert numbers.restarts == 2  # of the job, and of the driver
    assert (numbers.checkpoints_completed, numbers.checkpoints_failed) == (10, 2)
    assert (numbers.rounds, numbers.held, numbers.lost) == (3, 1, 2)
    assert dict(numbers.faults) == {"kill": 1, "driver": 1}
    lines = "\n".join(text(report))
    assert "recoveries           2, downtime median 2.8 s, worst 3.5 s" in lines
    assert "records again        about 50" in lines
    assert "checkpoints          10 completed, 2 failed" in lines
    page = html(report)
    for name, value in (
        ("recoveries", "2"),
        ("downtime, median", "2.8 s"),
        ("downtime, worst", "3.5 s"),
        ("records processed again, about", "50"),
        ("checkpoints completed", "10"),
        ("checkpoints failed", "2"),
    ):
        assert f"<td>{name}</td><td class='n'>{value}</td>" in page


def picture(report: Report) -> ElementTree.Element:
    (found,) = re.findall(r"<svg.*</svg>", html(report), re.DOTALL)
    return ElementTree.fromstring(found)


def test_the_time_line_shows_when_the_job_ran_and_when_faults_came() -> None:
    colours = {"RUNNING": "#3b8f5e", "FAILING": "#c0392b", "RESTARTING": "#e0a030", "CREATED": "#9aa5b1"}
    short = a_run("round <2>", statuses=(("RUNNING", 50_000.0),), started_ms=50_000.0, ended_ms=56_500.0)
    svg = picture(a_report(a_verdict(two_segments()), a_verdict(short)))
    legend = [one.get("fill") for one in svg.iter("rect") if one.find("title") is None]
    assert legend == [colours["RUNNING"], colours["FAILING"], colours["RESTARTING"], colours["CREATED"]]
    bars = [
        (one.get("y"), one.get("fill"), float(one.get("x", "")), float(one.get("width", "")), one.findtext("title"))
        for one in svg.iter("rect")
        if one.find("title") is not None
    ]
    scale = (1000 - 130 - 10) / 13  # of the longest round, which fills the width: 1 s to 14 s
    expected = [
        (0.0, 1.0, "CREATED"),
        (1.0, 4.0, "RUNNING"),
        (4.0, 4.5, "FAILING"),
        (4.5, 6.0, "RESTARTING"),
        (6.0, 8.0, "RUNNING"),
        (9.0, 11.5, "CREATED"),  # nothing while there was no driver
        (11.5, 13.0, "RUNNING"),
    ]
    first_y, second_y = bars[0][0], bars[-1][0]
    assert first_y != second_y
    for bar, (begin, end, status) in zip(bars[:-1], expected, strict=True):
        y, fill, x, width, title = bar
        assert (y, fill, title) == (first_y, colours[status], f"{status.lower()} {end - begin:.1f} s")
        assert (x, width) == (
            pytest.approx(130 + begin * scale, abs=0.06),
            pytest.approx((end - begin) * scale, abs=0.06),
        )
    # Every round begins at the left: the second one took half as long as the first.
    assert bars[-1][1:3] == (colours["RUNNING"], 130.0)
    assert bars[-1][3] == pytest.approx(6.5 * scale, abs=0.06)
    marks = [(one.get("d", ""), one.findtext("title")) for one in svg.iter("path")]
    assert [title for _, title in marks] == [
        "kill: SIGKILL of the worker of slot 1 (4.0 s)",
        "driver: SIGKILL of the <driver> (8.0 s)",
    ]
    for (path, _), seconds in zip(marks, (4.0, 8.0), strict=True):
        begins = float(re.findall(r"M([\d.]+),", path)[0])
        assert begins + 5 == pytest.approx(130 + seconds * scale, abs=0.06)  # its point
    names = [one.text for one in svg.iter("text")]
    assert {"round 1", "round <2>", "13 s"} <= set(names)


def test_a_round_that_left_nothing_has_an_empty_line() -> None:
    gone = Run("round 1", "/nowhere", problem="the program ended with exit code 1")
    svg = picture(a_report(Verdict(gone)))
    assert [one for one in svg.iter("rect") if one.find("title") is not None] == []
    assert "round 1" in [one.text for one in svg.iter("text")]


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
