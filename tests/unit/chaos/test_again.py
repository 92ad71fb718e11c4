"""The command that a failed round prints injects the same faults as that round had."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chaos.test_report import SINK
from tidegate.chaos.draws import driver_fault, worker_faults
from tidegate.chaos.process_groups import ProcessGroups
from tidegate.chaos.segment import VARIABLE, SegmentResult, faults_of, note_fault, read_segment, write_result
from tidegate.cli.main import main

FAILS = "/2"  # the end of the seed of the round whose program ends badly


def child(
    self: ProcessGroups, command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float
) -> int:
    """What `tidegate.chaos.child` does without its job: draws the faults, by the functions that every worker and the
    driver call, and says how it ended."""
    segment = read_segment(environment[VARIABLE])
    log.write_text("")
    result = SegmentResult(job_id="x", operators=(SINK,), notes=(), status="FINISHED", scalable=3)
    for attempt in range(3):
        for fault in worker_faults(segment, attempt, slots=4):
            note_fault(segment.folder, fault.kind, segment=segment.number, attempt=attempt, drawn=repr(fault))
    last = driver_fault(segment)
    if last is not None:
        note_fault(segment.folder, last.kind, segment=segment.number, to=segment.parallelism, drawn=repr(last))
        if last.kind == "driver":
            return -signal.SIGKILL
        savepoint = f"{segment.folder}/savepoints/{segment.number}"
        result = SegmentResult(
            job_id="x", operators=(SINK,), notes=(), status="FINISHED", scalable=3, savepoint=savepoint
        )
    write_result(segment.folder, segment.number, result)
    return 1 if last is None and segment.seed.endswith(FAILS) else 0


def run(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> dict[str, Any]:
    assert main(["chaos", "--json", *arguments]) == 1
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def injected(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in fault.items() if name != "at_ms"} for fault in faults_of(str(folder))]


@pytest.mark.parametrize(
    "options",
    [
        ["--seed", "11"],
        ["--seed", "12", "--every", "0.7", "--faults-per-round", "9", "--faults", "kill,cut,driver,rescale"],
        ["--seed", "13", "--faults", "driver,rescale", "--stretch", "3", "-D", "heartbeat.timeout=2 s"],
    ],
    ids=lambda options: " ".join(options),
)
def test_the_command_of_a_failed_round_repeats_its_faults(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProcessGroups, "run", child)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a job.py").touch()
    answer = run(capsys, ["--folder", "first", "--rounds", "3", *options, "a job.py", "--its", "own option"])
    assert answer["outcome"] == "BROKEN"
    (again,) = [line.strip().removeprefix("again: ") for line in answer["lines"] if line.strip().startswith("again: ")]
    words = shlex.split(again)
    assert words[:2] == ["tidegate", "chaos"]
    assert run(capsys, ["--folder", "again", *words[2:]])["outcome"] == "BROKEN"
    assert [name for name in sorted(os.listdir("again")) if name.startswith("round")] == ["round-2"]
    had = injected(tmp_path / "first" / "round-2")
    assert had == injected(tmp_path / "again" / "round-2")
    assert len(had) > 2
    assert had not in (injected(tmp_path / "first" / "round-1"), injected(tmp_path / "first" / "round-3"))
