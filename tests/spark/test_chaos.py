"""`tidegate chaos` on a real Spark, with real kills: what is right holds, what is wrong is found and named."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tidegate.cli.main import main

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

JOBS = Path(__file__).parent / "chaos_jobs"
JOB = str(JOBS / "right_and_wrong.py")
ENDLESS = str(JOBS / "endless_to_files.py")
MISTAKES = str(JOBS / "mistakes.py")


def test_the_wrong_half_of_a_job_is_found_and_the_right_one_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    folder = tmp_path / "runs"
    chosen = ["--faults", "kill", "--rounds", "1", "--faults-per-round", "2", "--every", "1.5", "--seed", "11"]
    code = main(["chaos", "--json", *chosen, "--stretch", "6", "--report", str(page), "--folder", str(folder), JOB])
    answer = json.loads(capsys.readouterr().out)
    assert code == 1, answer
    assert answer["deterministic"]
    assert answer["faults"] == {"kill": 2}, answer
    right = [line for line in answer["lines"] if "Sink: Collect (exactly once)" in line]
    assert "2000 records, lost 0, doubled 0, changed 0, out of order 0" in right[0]
    assert any("'in an attribute'" in finding and "totals" in finding for finding in answer["findings"])
    assert not any("'in state'" in finding for finding in answer["findings"])
    assert "the guarantee did not hold" in page.read_text()
    assert "--round 1" in page.read_text()  # the command that repeats it


@pytest.mark.soak
def test_an_endless_job_with_its_own_sink_is_read_for_a_while_rescaled_and_looked_at_by_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--faults", "rescale,driver", "--rounds", "1", "--faults-per-round", "3", "--every", "1", "--seed", "8"]
    looked_at = ["--keep-sinks", "--verify", shlex.join([sys.executable, ENDLESS, "check"])]
    kept = ["--report", str(tmp_path / "report.html"), "--folder", str(tmp_path / "runs")]
    code = main(["chaos", "--json", *chosen, "--duration", "6", *looked_at, *kept, ENDLESS])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0, answer
    assert answer["held"]
    assert answer["deterministic"]
    assert set(answer["faults"]) == {"rescale", "driver"}, answer


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mistake", "outcome", "finding"),
    [
        (
            "draws",
            "NOT DETERMINISTIC",
            "'draws' emitted as many records, but with other values, though all that it read",
        ),
        ("in-place", "FAILS BY ITSELF", "MutationError: state 'items' of operator 'baskets', key 'k"),
        ("forgetful", "BROKEN", "'Source: forgetful' gave "),
        ("plain", "HELD", "'Sink: plain' is not transactional (at least once): "),
    ],
)
def test_a_mistake_is_found_and_the_report_names_who_it_was(
    mistake: str, outcome: str, finding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `state in an attribute`, above, these are the five mistakes that docs/chaos.md promises to find."""
    page = tmp_path / "report.html"
    chosen = ["--faults", "kill,exception", "--rounds", "1", "--faults-per-round", "2", "--every", "1.5", "--seed", "3"]
    kept = ["--report", str(page), "--folder", str(tmp_path / "runs")]
    code = main(["chaos", "--json", *chosen, "--stretch", "6", *kept, MISTAKES, mistake])
    answer = json.loads(capsys.readouterr().out)
    assert answer.get("outcome") == outcome, answer
    assert code == (0 if outcome == "HELD" else 1)
    assert [one for one in answer["findings"] if finding in one], answer
    assert answer["lines"][-1].startswith(f"{outcome}: ")
    assert f">{outcome}</span>" in page.read_text()


REJECTS_ROUNDS = 'case "$TIDEGATE_CHAOS_FOLDER" in */round-*) echo wrong; exit 3;; esac'


@pytest.mark.soak
def test_a_command_that_is_not_content_is_a_broken_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--faults", "kill", "--rounds", "1", "--faults-per-round", "1", "--records", "3000"]
    kept = ["--report", str(tmp_path / "report.html"), "--folder", str(tmp_path / "runs")]
    code = main(["chaos", "--json", *chosen, "--keep-sinks", "--verify", REJECTS_ROUNDS, *kept, ENDLESS])
    answer = json.loads(capsys.readouterr().out)
    assert code == 1, answer
    assert any("ended with 3" in line and "wrong" in line for line in answer["lines"]), answer
