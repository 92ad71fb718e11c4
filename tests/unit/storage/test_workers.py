"""Work that hangs holds up nothing else, is told of, and does not keep a program from ending."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tidegate.storage import workers
from tidegate.storage.workers import Closed, StorageThreads


class Recorder:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = threading.Event()
        self.changed = threading.Condition()

    def do(self, name: str, hang: bool = False):
        def work() -> None:
            if hang:
                self.gate.wait(30)
            with self.changed:
                self.done.append(name)
                self.changed.notify_all()

        return work

    def wait_for(self, *names: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: set(names) <= set(self.done), 10), self.done


@pytest.fixture
def recorder():
    recorder = Recorder()
    yield recorder
    recorder.gate.set()


@pytest.fixture
def threads():
    return StorageThreads("s3://bucket/job", warn_after_s=0.05)


def test_a_deletion_that_hangs_stops_no_write_and_no_look(threads, recorder):
    threads.delete("deleting", recorder.do("delete", hang=True), ["chk-1"])
    for n in range(3):
        threads.write("writing", recorder.do(f"write {n}"), f"chk-{n}")
        threads.look("looking", recorder.do(f"look {n}"))
    recorder.wait_for("write 0", "write 1", "write 2", "look 0", "look 1", "look 2")
    assert "delete" not in recorder.done


def test_a_write_that_hangs_stops_only_the_deletions_that_concern_it(threads, recorder):
    threads.write("writing", recorder.do("write 1", hang=True), "chk-1")
    threads.delete("deleting", recorder.do("delete 1"), ["chk-1"])
    threads.delete("deleting", recorder.do("delete 0"), ["chk-0"])
    recorder.wait_for("delete 0")
    threads.delete("deleting", recorder.do("orphans"), None)
    threads.delete("deleting", recorder.do("after the orphans"), ["chk-0"])
    time.sleep(0.1)
    assert recorder.done == ["delete 0"]
    recorder.gate.set()
    recorder.wait_for("after the orphans")
    assert recorder.done == ["delete 0", "write 1", "delete 1", "orphans", "after the orphans"]


@pytest.fixture
def impatient():
    """Threads that leave one behind as soon as `watch` looks."""
    return StorageThreads("s3://bucket/job", warn_after_s=0.0, leave_after_s=0.0)


def until_begun(threads, what):
    """Has a thread at `what`, so that `watch` finds it there."""
    end = time.monotonic() + 10
    while not any(running.work.what == what for running in threads._running) and time.monotonic() < end:
        time.sleep(0.01)


def test_a_write_that_hangs_is_left_behind_and_the_next_ones_go_on(impatient, recorder):
    impatient.write("the first", recorder.do("first", hang=True), "chk-1")
    until_begun(impatient, "the first")
    for n in (2, 3):
        impatient.write("writing", recorder.do(f"write {n}"), f"chk-{n}")
    impatient.write("into the same folder", recorder.do("same folder"), "chk-1")
    impatient.write("writing", recorder.do("write 4"), "chk-4")
    impatient.watch()
    recorder.wait_for("write 2", "write 3", "write 4")
    assert "same folder" not in recorder.done
    recorder.gate.set()
    recorder.wait_for("first", "same folder")
    assert recorder.done.index("first") < recorder.done.index("same folder")
    assert impatient.close(recorder.do("last"), 10) is Closed.ALL_DONE


def test_a_store_in_which_everything_hangs_gets_only_a_few_threads(impatient, recorder):
    for n in range(20):
        impatient.write(f"write {n}", recorder.do(f"{n}", hang=True), f"chk-{n}")
    for n in range(8):
        until_begun(impatient, f"write {n}") if n < 5 else None
        impatient.watch()
    assert [running.work.what for running in impatient._running] == [f"write {n}" for n in range(5)]
    recorder.gate.set()
    assert impatient.close(recorder.do("last"), 10) is Closed.ALL_DONE
    assert len(recorder.done) == 21


def test_deletions_are_never_done_by_two(impatient, recorder):
    impatient.delete("the first", recorder.do("first", hang=True), ["chk-1"])
    until_begun(impatient, "the first")
    impatient.delete("deleting", recorder.do("second"), ["chk-2"])
    impatient.watch()
    time.sleep(0.1)
    assert recorder.done == []


def test_savepoints_and_checkpoints_do_not_wait_for_each_other(threads, recorder):
    threads.write_savepoint("the savepoint", recorder.do("savepoint", hang=True), "s3://elsewhere/savepoint")
    threads.write("writing", recorder.do("checkpoint"), "chk-1")
    threads.delete("deleting", recorder.do("savepoint deleted"), ["s3://elsewhere/savepoint"])
    recorder.wait_for("checkpoint")
    assert recorder.done == ["checkpoint"]
    recorder.gate.set()
    recorder.wait_for("savepoint deleted")
    assert recorder.done == ["checkpoint", "savepoint", "savepoint deleted"]


def test_each_thread_keeps_the_order(threads, recorder):
    for n in range(50):
        threads.write("writing", recorder.do(f"w{n}"), "chk")
        threads.delete("deleting", recorder.do(f"d{n}"), ["other"])
    assert threads.close(recorder.do("last"), 10) is Closed.ALL_DONE
    assert [name for name in recorder.done if name[0] == "w"] == [f"w{n}" for n in range(50)]
    assert [name for name in recorder.done if name[0] == "d"] == [f"d{n}" for n in range(50)]
    assert recorder.done[-1] == "last"
    assert not threads.write("writing", recorder.do("late"), "chk")


def test_what_hangs_is_told_of_by_name_and_when_it_returns(threads, recorder, caplog):
    threads.write("writing the metadata of checkpoint 7", recorder.do("write", hang=True), "chk-7")
    time.sleep(0.1)
    threads.watch()
    threads.watch()  # not again at once
    (line,) = caplog.messages
    assert line.startswith("s3://bucket/job: writing the metadata of checkpoint 7 has not returned for 0 s")
    recorder.gate.set()
    recorder.wait_for("write")
    assert threads.close(lambda: None, 5) is Closed.ALL_DONE
    assert "writing the metadata of checkpoint 7 took" in caplog.messages[-1]


@pytest.mark.parametrize("lane", ["write", "write_savepoint", "delete", "look"])
def test_the_end_does_not_wait_for_ever(threads, recorder, caplog, lane):
    hanging = recorder.do("it", hang=True)
    {
        "write": lambda: threads.write("writing", hanging, "chk-1"),
        "write_savepoint": lambda: threads.write_savepoint("writing", hanging, "elsewhere"),
        "delete": lambda: threads.delete("deleting", hanging, ["chk-1"]),
        "look": lambda: threads.look("looking", hanging),
    }[lane]()
    assert threads.close(recorder.do("last"), 0.2) is Closed.GIVEN_UP
    assert "is not waited for any longer" in caplog.text


def test_the_end_waits_as_long_as_something_is_done(threads, recorder):
    for _ in range(10):
        threads.delete("deleting", lambda: time.sleep(0.1), ["chk"])
    assert threads.close(recorder.do("last"), 0.5) is Closed.ALL_DONE
    assert recorder.done == ["last"]


def test_work_that_raises_ends_nothing(threads, recorder, caplog):
    threads.write("writing", lambda: 1 / 0, "chk")
    threads.write("writing", recorder.do("next"), "chk")
    recorder.wait_for("next")
    assert "ZeroDivisionError" in caplog.text


def test_a_program_ends_while_a_call_hangs():
    script = """
import time
from tidegate.storage.workers import StorageThreads
threads = StorageThreads("here", warn_after_s=5)
hang = lambda: time.sleep(1000)
threads.write("writing", hang, "folder")
threads.delete("deleting", hang, [])
threads.look("looking", hang)
time.sleep(0.2)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=False).returncode == 0


def test_a_deletion_in_pieces_is_taken_on_as_a_whole_or_not_at_all(threads, recorder, monkeypatch):
    monkeypatch.setattr(workers, "MAX_WAITING", 2)
    threads.delete("deleting", recorder.do("first", hang=True), [])
    until_begun(threads, "deleting")
    threads.delete("deleting", recorder.do("second"), [])
    for name in ("taken", "left out"):
        pieces = [("deleting", recorder.do(f"{name} {n}")) for n in range(3)]
        assert threads.delete_pieces(pieces, ["chk-1"]) == (name == "taken")
    recorder.gate.set()
    assert threads.close(recorder.do("last"), 30) is Closed.ALL_DONE
    assert recorder.done == ["first", "second", "taken 0", "taken 1", "taken 2", "last"]
