"""The commands, in this process: against a fake job, and on checkpoints and savepoints of real ones."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.request
from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.state.snapshot_kit import FORMATS, make_snapshot
from tests.unit.taskmanager.small_jobs import KEYS, counting
from tests.unit.web.web_kit import FakeJobs
from tidegate.cli.main import main
from tidegate.common.run_defaults import VARIABLE, run_defaults
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.jobmanager.recent_warnings import WarningView
from tidegate.state import serialization
from tidegate.testing.in_process_job import InProcessJob
from tidegate.web.history import History
from tidegate.web.job_port import JobPort


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def job() -> Iterator[FakeJobs]:
    control = FakeJobs()
    port = JobPort(control, "abcd" * 8, "my job", time.time() * 1000)
    port.open()
    port._thread.join()
    yield control
    control.over.set()
    port.close()


def tidegate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_list_shows_the_running_jobs(job: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = tidegate(capsys, "list")
    assert code == 0
    assert "RUNNING" in out
    assert json.loads(tidegate(capsys, "list", "--json")[1])["jobs"][0]["status"] == "RUNNING"


@pytest.mark.parametrize(
    ("command", "told", "key"),
    [
        ("show", "BACK-PRESSURED", "vertices"),
        ("checkpoints", "COMPLETED", "checkpoints"),
        ("exceptions", "ValueError", "failures"),
        ("metrics", "numRecordsIn = ", "metrics"),
    ],
)
def test_a_job_is_shown_while_it_runs_and_after(
    job: FakeJobs, capsys: pytest.CaptureFixture[str], command: str, told: str, key: str
) -> None:
    code, out, _ = tidegate(capsys, command, "my job")
    assert code == 0
    assert told in out
    done = msgspec.structs.replace(job.shown, job_id="ef" * 16, name="ended", status_name="FINISHED", ended_ms=9.0)
    History().keep(done)
    for name in ("efef", "ended"):
        assert json.loads(tidegate(capsys, command, "--json", name)[1])[key]
    code, _, err = tidegate(capsys, command, "nothing")
    assert code == 1
    assert "none is in the history" in err
    assert "ended" not in tidegate(capsys, "list")[1]
    assert "ended" in tidegate(capsys, "list", "--all")[1]


def test_warnings_are_told_with_the_failures(job: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    warning = WarningView(text="commit failed\x1b[2J", first_ms=1e12, latest_ms=1e12 + 5, times=17)
    job.shown = msgspec.structs.replace(job.shown, warnings=(warning,))
    assert "warning (17 times): commit failed?[2J" in tidegate(capsys, "exceptions", "my job")[1]
    assert "warnings: 17 lately (tidegate exceptions" in tidegate(capsys, "show", "my job")[1]
    (told,) = json.loads(tidegate(capsys, "exceptions", "--json", "my job")[1])["warnings"]
    assert (told["text"], told["times"]) == ("commit failed\x1b[2J", 17)


def test_watch_goes_on_until_the_job_has_ended(job: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    over = msgspec.structs.replace(job.shown, status_name="FINISHED", ended_ms=job.shown.started_ms + 1)
    threading.Timer(0.5, lambda: setattr(job, "shown", over)).start()
    code, out, _ = tidegate(capsys, "show", "--json", "my job", "--watch", "0.1")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert len(lines) > 1
    assert (lines[0]["status"], lines[-1]["status"]) == ("RUNNING", "FINISHED")


def test_names_cannot_change_the_terminal(job: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    job.shown = msgspec.structs.replace(job.shown, name="a\x1b[2Jb")
    for command in (("list",), ("show", "my job")):
        assert "\x1b" not in tidegate(capsys, *command)[1]


def test_ui_serves_the_page_until_it_is_interrupted(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "tidegate.cli", "ui", "--port"]
    pipe = subprocess.PIPE
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        subprocess.Popen(
            [*command, str(other.getsockname()[1])], stdout=pipe, stderr=pipe, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        url, _, token = process.stdout.readline().strip().partition("/#token=")
        taken, port = other.getsockname()[1], url.rpartition(":")[2]
        assert f"port {taken} is in use, {port} is taken instead" in process.stderr.readline()
        request = urllib.request.Request(f"{url}/v1/jobs", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=10) as response:
            assert json.loads(response.read()) == {"jobs": []}
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_without_jobs_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert tidegate(capsys, "list")[:2] == (0, "no jobs are running\n")


@pytest.mark.parametrize("name", ["abcd" * 8, "abcdab", "my job"])
def test_a_job_is_found_by_id_beginning_or_name(job: FakeJobs, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert tidegate(capsys, "savepoint", name, "/d")[:2] == (0, "/d/savepoint-1\n")
    assert tidegate(capsys, "stop", name, "--drain", "-p", "/d")[0] == 0
    assert job.calls[-1] == ("stop", True, "/d")


def test_a_relative_folder_is_meant_from_where_the_command_is_given(
    job: FakeJobs, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tidegate(capsys, "savepoint", "my job", "sp")[1] == f"{tmp_path}/sp/savepoint-1\n"
    tidegate(capsys, "stop", "my job", "-p", "../sp")
    assert job.calls[-1] == ("stop", False, str(tmp_path.parent / "sp"))
    with_secrets = "s3://name:secret@bucket/sp?region=eu"  # the job cannot read elsewhere what is left out here
    tidegate(capsys, "stop", "my job", "-p", with_secrets)
    assert job.calls[-1] == ("stop", False, with_secrets)
    code, _, err = tidegate(capsys, "savepoint", "my job", "s4://bucket")
    assert code == 1
    assert "'s4' is not known" in err


def test_an_empty_name_is_not_the_only_job(job: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = tidegate(capsys, "stop", "")
    assert code == 1
    assert "empty" in err
    assert job.calls == []


@pytest.mark.parametrize("command", ["savepoint", "stop", "cancel"])
def test_an_unknown_or_finished_job_is_a_sentence_and_exit_code_1(
    job: FakeJobs, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, out, err = tidegate(capsys, command, "nobody")
    assert (code, out) == (1, "")
    assert "no job 'nobody' is running" in err
    assert "my job" in err
    code, out, _ = tidegate(capsys, command, "nobody", "--json")
    assert code == 1
    assert "nobody" in json.loads(out)["error"]


def test_what_the_job_refuses_is_told(job: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = tidegate(capsys, "savepoint", "my job")
    assert code == 1
    assert "no folder was given" in err


def test_a_job_that_went_away_is_told(job: FakeJobs, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import msgspec

    from tidegate.web.registry import publish, running_jobs

    (record,) = running_jobs()
    publish(msgspec.structs.replace(record, url="http://127.0.0.1:1"))
    code, _, err = tidegate(capsys, "cancel", "my job")
    assert code == 1
    assert "does not answer" in err


def test_wrong_arguments_are_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["savepoint"])
    assert end.value.code == 2


# ---------------------------------------------------------------- inspect and gc


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A checkpoint directory with one retained checkpoint, and a savepoint beside it."""
    keys = {
        "execution.checkpointing.interval": "50 ms",
        "execution.checkpointing.dir": str(tmp_path / "chk"),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    with InProcessJob(counting(keys, parallelism=2)) as running:
        running.advance(120)
        running.savepoint(tmp_path / "sp").run()
        running.cancel()
    return tmp_path


def checkpoint(directory: Path) -> Path:
    (found,) = (directory / "chk").glob("*/chk-*")
    return found


@pytest.mark.parametrize("kind", ["savepoint", "checkpoint", "job"])
def test_inspect_shows_operators_states_sizes_and_entries(
    directory: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = {"savepoint": directory / "sp", "checkpoint": checkpoint(directory), "job": checkpoint(directory).parent}
    code, out, _ = tidegate(capsys, "inspect", str(path[kind]))
    assert code == 0
    assert "count (uid count; parallelism 2 of 128)" in out
    assert f"count: value of LONG, {KEYS} entries" in out
    answer = json.loads(tidegate(capsys, "inspect", str(path[kind]), "--json")[1])
    state = next(s for o in answer["operators"] for s in o["keyed_states"] if s["name"] == "count")
    assert state["entries"] == KEYS
    assert len(state["examples"]) == 3
    assert state["key_groups"]["average"] == round(KEYS / 128, 1)


def test_inspect_of_nothing_or_of_something_damaged_says_so(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = tidegate(capsys, "inspect", str(directory / "nowhere"))
    assert code == 1
    assert "nowhere" in err
    (part, *_) = (directory / "sp").rglob("keyed-count/*.parquet")
    part.write_bytes(part.read_bytes()[:-1])
    (splits, *_) = (directory / "sp").rglob("list-tidegate.source.splits/*.parquet")
    splits.unlink()
    code, _, err = tidegate(capsys, "inspect", str(directory / "sp"))
    assert code == 1
    assert all("/".join(damaged.parts[-2:]) in err for damaged in (part, splits))


@pytest.mark.parametrize("kind", FORMATS)
def test_inspect_needs_none_of_the_users_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    script = types.ModuleType("script_of_the_test")
    monkeypatch.setitem(sys.modules, script.__name__, script)
    order = script.Order = make_dataclass("Order", [("id", int)], frozen=True)  # type: ignore[attr-defined]
    order.__module__ = script.__name__

    def fill(backend: Any, is_own: Any) -> None:
        states = [backend.get_state(ValueStateDescriptor(name)) for name in ("values", "keys")]
        for i in range(10):
            for state, key, value in zip(states, (i, (order(i), i)), (order(i), i), strict=True):
                if is_own(key):
                    backend.current_key = key
                    state.update(value)

    path = make_snapshot(tmp_path, kind, [fill])
    del script.Order  # type: ignore[attr-defined]
    code, out, err = tidegate(capsys, "inspect", path)
    assert (code, err) == (0, "")
    assert out.count("10 entries") == 2
    assert out.count("per key group") == 1  # nobody can tell the groups of the others
    assert ": Order(id=" in out
    assert pickle.loads is serialization.unpickle


def test_gc_finds_and_deletes_what_crashes_left_and_nothing_else(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_directory = checkpoint(directory).parent
    before = {p.relative_to(job_directory) for p in job_directory.rglob("*") if p.is_file()}
    (job_directory / "shared").mkdir(exist_ok=True)
    left = ["shared/c9-v0-s0-a0-x.state", "chk-99/v0-s0-a0-x.state", "chk-99/y.state.part-1", "shared/z.part-0"]
    left += [f"{checkpoint(directory).name}/v9-s0-a0-x.state"]
    for name in left:
        path = job_directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("12345")
    code, out, _ = tidegate(capsys, "checkpoint", "gc", str(directory / "chk"))
    assert code == 0
    assert "chk-99/" in out
    assert "--delete" in out
    assert all((job_directory / name).exists() for name in left)
    report = json.loads(tidegate(capsys, "checkpoint", "gc", str(job_directory), "--delete", "--json")[1])
    assert report["jobs"][0]["bytes"] >= 20
    after = {p.relative_to(job_directory) for p in job_directory.rglob("*") if p.is_file()}
    assert after == before
    assert tidegate(capsys, "checkpoint", "gc", str(job_directory))[1].startswith("0 left-over")
    assert tidegate(capsys, "inspect", str(job_directory))[0] == 0


def test_gc_leaves_a_running_job_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"execution.checkpointing.interval": "50 ms", "execution.checkpointing.dir": str(tmp_path / "chk")}
    with InProcessJob(counting(keys)) as running:
        running.advance(120)
        (tmp_path / "chk" / running.graph.job_id / "chk-99").mkdir()
        code, _, err = tidegate(capsys, "checkpoint", "gc", str(tmp_path / "chk"), "--delete")
        assert code == 1
        assert "running" in err
        assert (tmp_path / "chk" / running.graph.job_id / "chk-99").exists()
    code, _, err = tidegate(capsys, "checkpoint", "gc", str(tmp_path))
    assert code == 1
    assert "no checkpoints" in err


# ---------------------------------------------------------------- run


def test_run_hands_its_settings_to_the_program(
    directory: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = directory / "job.py"
    program.write_text(
        "import sys\n"
        "from tidegate.common import Configuration\n"
        "from tidegate.datastream import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({'pipeline.name': 'x'}))\n"
        "c = env.get_configuration()\n"
        "print(env.get_parallelism(), c.get_string('execution.state-recovery.path', ''),\n"
        "      c.get_string('execution.state-recovery.ignore-unclaimed-state', ''), sys.argv[1:],\n"
        "      c.get_string('pipeline.name', ''), c.get_string('tidegate.high-availability.standby', ''))\n"
        "env.set_parallelism(2)\n"
        "print(env.get_parallelism())\n"
    )
    savepoint = str(directory / "sp")
    arguments = ["-s", savepoint, "-p", "7", "--allow-non-restored-state", "--standby", "-D", "pipeline.name=y"]
    assert main(["run", *arguments, str(program), "a", "--b"]) == 0
    out = capfd.readouterr().out.splitlines()
    assert out == [f"7 {savepoint} true ['a', '--b'] x true", "2"]  # what the program sets itself wins


def test_run_tells_what_is_wrong_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "job.py"
    program.write_text("raise SystemExit(3)")
    for arguments, expected in (
        (["nothing.py"], "no file 'nothing.py'"),
        (["-s", str(tmp_path / "x"), str(program)], "there is no"),
        (["-p", "0", str(program)], "parallelism.default"),
        (["-D", "no.such.key=1", str(program)], "no.such.key"),
        (["-D", "pipeline.name", str(program)], "key=value"),
        ([str(program)], "exit code 3"),
    ):
        code, _, err = tidegate(capsys, "run", *arguments)
        assert code == 1
        assert expected in err


def test_a_program_that_was_not_started_by_run_has_no_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert run_defaults().to_dict() == {}
    monkeypatch.setenv(VARIABLE, "[")
    with pytest.raises(Exception, match=VARIABLE):
        run_defaults()


def test_answers_are_one_json_object(job: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    job.over.set()
    for arguments in (["list"], ["savepoint", "my job", "/d"], ["stop", "my job"], ["cancel", "my job"]):
        answer: Any = json.loads(tidegate(capsys, *arguments, "--json")[1])
        assert isinstance(answer, dict)
