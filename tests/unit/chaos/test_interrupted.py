"""`tidegate chaos` that is stopped, or cannot go on, in the middle of its rounds: a report of those that were run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.recovery_kit import is_alive, until
from tests.unit.chaos.test_report import a_run
from tidegate.chaos.interrupts import Interrupts
from tidegate.chaos.process_groups import ProcessGroups
from tidegate.chaos.rewriting import ChaosError
from tidegate.chaos.rounds import Rounds, Run, _verify
from tidegate.chaos.segment import DamagedRunError
from tidegate.cli.main import main


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whose undisturbed runs are equal."""
    monkeypatch.setattr(Rounds, "undisturbed", lambda self: [a_run("undisturbed 1"), a_run("undisturbed 2")])
    program = tmp_path / "job.py"
    program.touch()
    return program


def chaos(program: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object], str]:
    """Exit code, answer and page."""
    page = program.parent / "report.html"
    code = main(["chaos", "--json", "--report", str(page), str(program)])
    return code, json.loads(capsys.readouterr().out), page.read_text()


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (DamagedRunError("faults.jsonl is damaged."), "faults.jsonl is damaged. The guarantee held in the 1 rounds"),
        (ChaosError("the program has no job"), "the program has no job"),
        (KeyboardInterrupt(), "it was stopped (SIGINT)"),
    ],
)
def test_the_rounds_so_far_are_reported(
    cause: BaseException,
    said: str,
    program: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def disturbed(self: Rounds) -> Iterator[Run]:
        yield a_run("round 1", 2)
        raise cause

    monkeypatch.setattr(Rounds, "disturbed", disturbed)
    code, answer, page = chaos(program, capsys)
    assert code == 1
    assert (answer["outcome"], answer["rounds"], answer["faults"]) == ("CUT SHORT", 1, {"kill": 2})
    assert said in str(answer["problems"])
    assert said in page


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_programs_and_leaves_a_report(
    number: signal.Signals, program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def disturbed(self: Rounds) -> Iterator[Run]:
        yield a_run("round 1", 2)
        with ProcessGroups() as processes:
            write_pid = [
                sys.executable,
                "-c",
                f"import os, time; print(os.getpid(), flush=True); {stop}time.sleep(600)",
            ]
            processes.run(write_pid, os.environ, log, 600)

    log = program.parent / "log"
    stop = f"os.kill(os.getppid(), {int(number)}); " * 2  # the second one does not disturb the cleaning up
    monkeypatch.setattr(Rounds, "disturbed", disturbed)
    before = signal.signal(number, signal.default_int_handler)  # also where the shell has it ignored
    try:
        code, answer, page = chaos(program, capsys)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert code == 1
    assert (answer["outcome"], answer["rounds"]) == ("CUT SHORT", 1)
    assert f"it was stopped ({number.name})" in page
    until(lambda: not is_alive(int(log.read_text())), "the end of the program", 60)


def test_a_signal_while_a_program_is_started_does_not_leave_it_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGTERM)

    started: list[int] = []
    monkeypatch.setattr("tidegate.chaos.process_groups.subprocess.Popen", Started)
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), ProcessGroups() as processes:
            processes.run(["sleep", "600"], os.environ, tmp_path / "log", 600)
        assert interrupts.by == "SIGTERM"
    (pid,) = started
    until(lambda: not is_alive(pid), "the end of the program", 60)


def test_a_signal_that_is_ignored_stays_so_and_other_threads_are_left_alone() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.by is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    found = []
    thread = threading.Thread(target=lambda: found.append(Interrupts().__enter__()))
    thread.start()
    thread.join()
    assert found


@pytest.mark.parametrize(
    ("name", "said"),
    [("", "is a folder: name a file"), ("nowhere/report.html", "there is no folder"), ("kept", "cannot be written")],
)
def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(
    name: str, said: str, program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Rounds, "undisturbed", lambda self: pytest.fail("the program was run"))
    monkeypatch.setattr(os, "access", lambda path, mode: "kept" not in str(path))  # tests may run as root
    (program.parent / "kept").touch()
    assert main(["chaos", "--report", f"{program.parent}/{name}", str(program)]) == 1
    assert said in capsys.readouterr().err


def test_a_disk_that_fills_up_costs_the_page_and_not_the_answer(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, text: str, encoding: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Rounds, "disturbed", lambda self: iter([a_run("round 1", 2)]))
    monkeypatch.setattr(Path, "write_text", full)
    assert main(["chaos", "--json", "--report", str(program.parent / "report.html"), str(program)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["faults"] == {"kill": 2}
    assert "could not be written: [Errno 28] No space left" in answer["problems"][-1]


def test_what_a_command_says_need_be_no_text_and_it_has_to_end(tmp_path: Path) -> None:
    say = "import os, sys; os.write(2, b'\\xff\\xfe no'); sys.exit(4)"
    said = _verify(shlex.join([sys.executable, "-c", say]), str(tmp_path))
    assert said is not None
    assert said.endswith('ended with 4: "\ufffd\ufffd no"')
    assert "did not end within 0 s" in (_verify("sleep 600 & sleep 600", str(tmp_path), 0.2) or "")
    assert _verify("true", str(tmp_path)) is None
