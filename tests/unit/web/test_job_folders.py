"""Archived views beside checkpoints, on a store where each look is a call over the network."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.web.test_history import ended
from tidegate.common.errors import StorageUnavailableError
from tidegate.storage.files import LocalFiles
from tidegate.web import documents, job_folders
from tidegate.web.all_jobs import AllJobs
from tidegate.web.history import History
from tidegate.web.job_folders import JobFolders


class Store(LocalFiles):
    """An object store, as far as it can be seen from here: its calls are counted."""

    remote = True

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), "owner")
        self.calls: list[str] = []
        self.silent = False

    def size(self, path: str) -> int | None:
        self.calls.append(f"size {path}")
        if self.silent:
            raise StorageUnavailableError("the store does not answer")
        return super().size(path)

    def read(self, path: str) -> bytes:
        self.calls.append(f"read {path}")
        return super().read(path)


def leave(folder: Path, job: str, name: str = "done", epoch: int | None = None) -> None:
    view = ended(job, name=name)
    mine = folder / (job if epoch is None else f"{job}-e{epoch}")
    mine.mkdir(parents=True)
    (mine / "_view.json").write_bytes(view.to_json())
    (mine / "_view.summary").write_bytes(msgspec.json.encode(documents.summary(view, 1000.0)))


def job(n: int) -> str:
    return f"{n:032x}"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = Store(tmp_path / "checkpoints")
    monkeypatch.setattr(History, "_files", lambda self: store)
    return store


def test_the_folders_are_looked_into_once_in_a_while_and_not_at_every_poll(store: Store, tmp_path: Path) -> None:
    for n in range(3):
        leave(tmp_path / "checkpoints", job(n))
    clock = Clock()
    found = JobFolders(clock)
    assert found.views(store).keys() == {job(0), job(1), job(2)}
    leave(tmp_path / "checkpoints", job(3))
    store.calls.clear()
    clock.now += 29
    assert len(found.views(store)) == 3
    assert store.calls == []
    assert found.view_of(store, job(3)) is not None  # whoever asks for one sees it at once
    assert store.calls == [f"size {job(3)}/_view.json"]
    clock.now += 2
    assert len(found.views(store)) == 4


def test_a_poll_of_the_list_reads_nothing_twice(store: Store, tmp_path: Path) -> None:
    for n in range(20):
        leave(tmp_path / "checkpoints", job(n))
    jobs = AllJobs(History("s3://there"))
    assert len(jobs.summaries()) == 20
    assert len(store.calls) == 40
    store.calls.clear()
    assert len(jobs.summaries()) == 20
    assert store.calls == []


def test_the_looks_of_one_listing_are_under_way_together(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        leave(tmp_path / "checkpoints", job(n))
    together = threading.Barrier(3, timeout=30)
    look = store.size

    def size(path: str) -> Any:
        together.wait()
        return look(path)

    monkeypatch.setattr(store, "size", size)
    assert len(JobFolders().views(store)) == 3


def test_beyond_a_bound_folders_are_left_out_and_that_is_said_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_folders, "_MOST_FOLDERS", 3)
    monkeypatch.setattr(job_folders, "_KEPT_S", 0.0)
    for n in range(3):
        leave(tmp_path / "checkpoints", job(n))
    history = History("s3://there")
    assert len(history.job_ids()) == 3
    assert caplog.text == ""
    leave(tmp_path / "checkpoints", job(9), "the last of them")
    for _ in range(3):
        assert len(history.job_ids()) == 3
    assert caplog.text.count("the folders of 4 jobs: only 3 of them are looked into") == 1
    found = history.view(job(9))
    assert found is not None
    assert found.name == "the last of them"


def test_of_the_leaders_of_a_job_the_latest_one_counts(store: Store, tmp_path: Path) -> None:
    for epoch in (2, 10):
        leave(tmp_path / "checkpoints", job(1), f"by {epoch}", epoch)
    (tmp_path / "checkpoints" / f"{job(1)}-e11").mkdir()  # killed: it has left none
    history = History("s3://there")
    found = history.view(job(1))
    assert found is not None
    assert found.name == "by 10"
    assert [path for path, _ in history._folders.views(store).values()] == [f"{job(1)}-e10/_view.json"]


def test_a_store_that_does_not_answer_is_asked_again(store: Store, tmp_path: Path) -> None:
    leave(tmp_path / "checkpoints", job(1))
    folders = JobFolders()
    store.silent = True
    with pytest.raises(StorageUnavailableError):
        folders.views(store)
    store.silent = False
    assert len(folders.views(store)) == 1
