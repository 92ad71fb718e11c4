"""A call of the storage that hangs is told of, by whoever has a thread to spare."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.storage import calls, files
from tidegate.storage.files import LocalFiles, write_file


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


class Hanging:
    """Reads hang until they are let go."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = LocalFiles(str(folder))
        write_file(self.files, "shared/c7.state", b"0123")
        self.let_go = threading.Event()
        self.begun = threading.Event()
        original = files._read_fully

        def read(file: object, length: int) -> bytes:
            self.begun.set()
            assert self.let_go.wait(60)
            return original(file, length)

        monkeypatch.setattr(files, "_read_fully", read)

    def read(self) -> None:
        with calls.on_behalf_of("operator 'count' (subtask 3), restoring checkpoint 7"):
            self.files.read_range("shared/c7.state", 0, 4)


def test_a_read_that_hangs_is_told_of_by_operator_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = Hanging(tmp_path, monkeypatch)
    worker = threading.Thread(target=hanging.read, daemon=True)
    worker.start()
    assert hanging.begun.wait(20)
    assert calls.overdue(worker.ident) == []  # not yet
    for call in calls._calls.values():
        call.since, call.warn_at = call.since - 6, call.warn_at - 6
    (text,) = calls.overdue(worker.ident)
    assert text == (
        f"operator 'count' (subtask 3), restoring checkpoint 7: read {tmp_path}/shared/c7.state: the storage has not "
        "answered for 6 s"
    )
    assert calls.overdue(worker.ident) == []  # not again at once
    hanging.let_go.set()
    worker.join(20)
    assert all(call.thread != worker.ident for call in calls._calls.values())


def test_who_waits_is_told_of_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "WARN_AFTER_S", 0.05)
    hanging = Hanging(tmp_path, monkeypatch)

    def wait() -> None:
        with calls.told_of_hanging(logging.getLogger("tidegate.jobmanager"), "job 'w1'"):
            hanging.read()

    worker = threading.Thread(target=wait, daemon=True)
    worker.start()
    until(
        lambda: f"job 'w1' waits: operator 'count' (subtask 3), restoring checkpoint 7: read {tmp_path}" in caplog.text
    )
    hanging.let_go.set()
    worker.join(20)


def test_a_call_that_fails_is_over(tmp_path: Path) -> None:
    before = set(calls._calls)
    with pytest.raises(files.StorageUnavailableError):
        LocalFiles(str(tmp_path)).read("nothing")
    assert set(calls._calls) == before
