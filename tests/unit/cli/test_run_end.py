"""`tidegate run` ends with 3 when it is no use to start the program again, and only then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli.main import main
from tidegate.common import run_end
from tidegate.common.job_status import JobStatus


@pytest.mark.parametrize(
    ("events", "ends_with", "code"),
    [
        ("", 1, 1),
        ("leads('a')", 1, 1),  # it died, or does not lead any more: another start goes on
        ("leads('a'); has_ended('a', FAILED)", 1, 3),
        ("leads('a'); has_ended('a', CANCELED)", 1, 3),
        ("has_ended('a', FAILED)", 1, 3),  # by an earlier program
        ("has_ended('a', CANCELED)", 0, 0),  # the program has dealt with it
        ("leads('a'); has_ended('a', FINISHED)", 1, 1),
        ("leads('a'); leads('b'); has_ended('a', FAILED)", 1, 1),  # b is left
        ("leads('a'); has_ended('a', FAILED); leads('b')", 1, 1),
        ("leads('a'); has_ended('a', FAILED); leads('b'); has_ended('b', FINISHED)", 1, 3),
    ],
)
def test_a_program_whose_job_has_ended_for_good_is_told_from_one_that_has_to_go_on(
    events: str, ends_with: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "job.py"
    program.write_text(
        "import sys\nfrom tidegate.common.run_end import has_ended, leads\n"
        "from tidegate.common.job_status import JobStatus\n"
        f"FAILED, CANCELED, FINISHED = JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED\n"
        f"{events or 'pass'}\nsys.exit({ends_with})\n"
    )
    assert main(["run", str(program)]) == code
    said = capsys.readouterr().err
    assert ("another high-availability.cluster-id begins a new one" in said) == (code == 3)
    if code == 3:
        assert f"its job is recorded as {'CANCELED' if 'CANCELED' in events else 'FAILED'}" in said


def test_a_program_that_was_started_otherwise_tells_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: dict[str, Any] = {}
    monkeypatch.setattr(run_end, "_jobs", jobs)
    monkeypatch.delenv(run_end.VARIABLE, raising=False)
    run_end.has_ended("a", JobStatus.FAILED)
    monkeypatch.setenv(run_end.VARIABLE, str(tmp_path / "no" / "such" / "folder"))
    run_end.has_ended("a", JobStatus.FAILED)  # and does not fail for it
    assert run_end.end_told(tmp_path / "no" / "such" / "folder") is None
    assert sys.exc_info() == (None, None, None)
