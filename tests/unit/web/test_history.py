"""Jobs that have ended, and the server over them and the running ones."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.web.web_kit import FakeJobs, sample_view
from tidegate.common.configuration import Configuration
from tidegate.common.errors import TidegateError
from tidegate.jobmanager.job_view import JobView
from tidegate.storage.files import open_files
from tidegate.storage.location import StorageLocation
from tidegate.web import documents
from tidegate.web.all_jobs import AllJobs
from tidegate.web.history import History
from tidegate.web.job_port import JobPort
from tidegate.web.jobs import NotThereError


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def ended(job_id: str, at: float = 1000.0, name: str = "done") -> JobView:
    return msgspec.structs.replace(sample_view(), job_id=job_id, name=name, status_name="FINISHED", ended_ms=at)


def test_the_last_view_comes_back_and_only_its_user_can_read_it(state_home: Path) -> None:
    view = ended("a" * 32)
    History().keep(view)
    assert History().job_ids() == ["a" * 32]
    assert History().view("a" * 32) == view
    assert History().view("b" * 32) is None
    files = list((state_home / "state" / "tidegate" / "history").iterdir())
    assert sorted(file.suffix for file in files) == [".json", ".summary"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_the_newest_are_kept_and_one_run_of_each_job(tmp_path: Path) -> None:
    history = History(str(tmp_path / "h"), 3)
    for n in range(6):
        history.keep(ended(f"{n:032d}", 1000.0 + n))
    history.keep(ended(f"{4:032d}", 2000.0, "again"))
    assert history.job_ids() == [f"{n:032d}" for n in (4, 5, 3)]
    again = history.view(f"{4:032d}")
    assert again is not None
    assert again.name == "again"
    assert len(list((tmp_path / "h").glob("*.summary"))) == 3


def test_the_folder_and_the_size_come_from_the_configuration(tmp_path: Path) -> None:
    keys = {"tidegate.history.dir": str(tmp_path / "there"), "tidegate.history.size": 1}
    history = History.from_configuration(Configuration.from_dict(keys))
    history.keep(ended("a" * 32))
    history.keep(ended("b" * 32, 2000.0))
    assert [file.name[14:] for file in (tmp_path / "there").glob("*.json")] == [f"{'b' * 32}.json"]
    off = Configuration.from_dict({**keys, "tidegate.history.dir": str(tmp_path / "off"), "tidegate.history.size": 0})
    History.from_configuration(off).keep(ended("a" * 32))
    assert not (tmp_path / "off").exists()


def test_a_job_that_never_came_to_its_end_is_not_kept() -> None:
    History().keep(msgspec.structs.replace(sample_view(), ended_ms=None))
    assert History().job_ids() == []


def test_what_cannot_be_kept_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    History(str(tmp_path / "file" / "below")).keep(ended("a" * 32))
    assert "could not be kept" in caplog.text


def test_damaged_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    (tmp_path / f"{5:013d}-{'c' * 32}.json").write_text("{")
    (tmp_path / "notes.json").write_text("{}")
    history.keep(ended("a" * 32))
    assert [job["job_id"] for job in AllJobs(history).summaries()] == ["a" * 32]
    with pytest.raises(NotThereError):
        AllJobs(history).view("c" * 32)


@pytest.mark.parametrize("content", [b"{}", b"[]", b"1", b"{", b'{"job_id":7}', b"\xff", b"[" * 100_000])
def test_of_a_damaged_summary_the_list_says_what_the_view_says(tmp_path: Path, content: bytes) -> None:
    history = History(str(tmp_path))
    for job in "ab":
        history.keep(ended(job * 32))
    expected = AllJobs(history).summaries()
    (damaged,) = tmp_path.glob(f"*{'a' * 32}.summary")
    whole = msgspec.json.decode(damaged.read_bytes(), type=dict[str, Any])
    damaged.write_bytes(content)
    assert AllJobs(history).summaries() == expected
    for left_out in whole:  # as a version may have written it that did not know of it
        damaged.write_bytes(msgspec.json.encode({k: v for k, v in whole.items() if k != left_out}))
        assert AllJobs(history).summaries() == expected
    damaged.write_bytes(content)
    (view,) = tmp_path.glob(f"*{'a' * 32}.json")
    view.write_bytes(content)  # then nothing is known of the job, and the others are listed
    assert [job["job_id"] for job in AllJobs(history).summaries()] == ["b" * 32]
    with pytest.raises(NotThereError):
        AllJobs(history).view("a" * 32)


def test_a_kept_summary_has_all_that_a_summary_says() -> None:
    said = documents.summary(ended("a" * 32), 1.0)
    assert documents.kept_summary(msgspec.json.encode(said)) == said
    assert list(said) == list(documents.Summary.__annotations__)


def test_a_job_that_leaves_checkpoints_has_its_view_beside_them(tmp_path: Path) -> None:
    folders = {name: tmp_path / "checkpoints" / name for name in ("a" * 32, "b" * 32 + "-e2", "b" * 32 + "-e10")}
    for at, (name, folder) in enumerate(folders.items()):
        (folder / "chk-7").mkdir(parents=True)
        files = open_files(StorageLocation.parse(str(folder)))
        History().keep(ended(name[:32], 1000.0 + at, f"in {name[32:]}"), files)
    (nothing_left := tmp_path / "checkpoints" / ("c" * 32)).mkdir()
    History().keep(ended("c" * 32), open_files(StorageLocation.parse(str(nothing_left))))
    assert list(nothing_left.iterdir()) == []
    there = AllJobs(History(str(tmp_path / "checkpoints")))
    assert [(job["job_id"], job["job_name"]) for job in there.summaries()] == [("b" * 32, "in -e10"), ("a" * 32, "in ")]
    assert there.view("a" * 32).name == "in "
    (folders["a" * 32] / "_view.json").write_bytes(b"{ not what the list needs")
    assert [job["job_name"] for job in there.summaries()] == ["in -e10", "in "]
    assert [job["job_name"] for job in AllJobs(History(str(tmp_path / "checkpoints"))).summaries()] == [
        "in -e10",
        "in ",
    ]
    assert History().job_ids() == ["b" * 32, "c" * 32, "a" * 32]  # and in the user's own
    kept = [file.read_bytes() for file in tmp_path.rglob("*") if file.suffix in (".json", ".summary")]
    assert sum(b"s3://******@bucket/there" in data for data in kept) == 5  # two beside checkpoints, three of the user's
    assert not any(b"hunter2" in data for data in kept)  # that the configuration has


@pytest.fixture
def running() -> Iterator[FakeJobs]:
    jobs = FakeJobs()
    port = JobPort(jobs, jobs.shown.job_id, jobs.shown.name, 1.0)
    port.open()
    port._thread.join()
    yield jobs
    jobs.over.set()
    port.close()


def test_running_jobs_are_shown_and_changed_through_their_own_port(running: FakeJobs) -> None:
    History().keep(ended("a" * 32))
    History().keep(ended(running.shown.job_id, 5.0, "an earlier run"))
    jobs = AllJobs(History())
    assert [(job["job_id"], job["job_name"]) for job in jobs.summaries()] == [
        ("abcd" * 8, "my job"),
        ("a" * 32, "done"),
    ]
    assert jobs.view("abcd" * 8) == running.shown
    assert jobs.savepoint("abcd" * 8, "/d") == "/d/savepoint-1"
    assert jobs.stop("abcd" * 8, True, "/d") == "there"
    assert running.calls == [("savepoint", "/d"), ("stop", True, "/d")]
    with pytest.raises(TidegateError, match="no folder was given"):
        jobs.savepoint("abcd" * 8, None)
    running.over.set()
    assert jobs.cancel("abcd" * 8) == "CANCELED"


def test_a_job_that_has_ended_cannot_be_changed() -> None:
    History().keep(ended("a" * 32))
    with pytest.raises(TidegateError, match="has ended"):
        AllJobs(History()).cancel("a" * 32)
    with pytest.raises(NotThereError):
        AllJobs(History()).cancel("b" * 32)


def test_a_storage_that_hangs_does_not_hold_up_the_end_of_a_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hang = threading.Event()
    monkeypatch.setattr("tidegate.web.history._PATIENCE_S", 0.05)
    monkeypatch.setattr(History, "_keep", lambda self, view, beside: hang.wait(10))
    History().keep(ended("a" * 32))
    hang.set()
    assert "does not answer" in caplog.text
