"""`tidegate chaos` on a real Spark, with real kills: what is right holds, what is wrong is found and named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.cli.main import main

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

JOB = str(Path(__file__).parent / "chaos_jobs" / "right_and_wrong.py")


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
