"""A lost worker is named: how it ended, and what it ran."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidegate.common.ids import SlotIndex
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.gang import Member
from tidegate.spark import exit_codes
from tidegate.spark.streaming.lost_workers import name_lost

# As in the daemon: forks children that end in their ways, and takes them in.
DAEMON = """
import os, signal, sys, time
from tidegate.spark.exit_codes import noted_work, reap
signal.signal(signal.SIGCHLD, reap)
pids = []
def leave():
    with noted_work("job-1", "'Ended before' (subtask 0)"):
        pass
    with noted_work("job-1", "'Map' (subtask 0)"):
        os._exit(3)
def be_killed():
    with noted_work("job-2", "'Größe' (subtask 7)"):
        os.kill(os.getpid(), signal.SIGKILL)
def end_idle():
    with noted_work("job-1", "'Done' (subtask 1)"):
        pass
    os._exit(4)
def end_well():
    with noted_work("job-1", "'Well' (subtask 2)"):
        os._exit(0)
for end in (leave, be_killed, end_idle, end_well):
    pid = os.fork()
    if pid == 0:
        end()
    pids.append(pid)
for pid in pids:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.01)
print(*pids)
"""


def test_the_daemon_notes_how_its_workers_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(exit_codes.VARIABLE, str(tmp_path))
    done = subprocess.run([sys.executable, "-c", DAEMON], capture_output=True, text=True, timeout=60, check=True)
    left, killed, idle, well = map(int, done.stdout.split())
    assert exit_codes.how_it_ended(left, 0) == "ended with exit code 3"
    assert exit_codes.how_it_ended(killed, 0) == "was killed by SIGKILL (9), perhaps because memory ran out"
    assert exit_codes.how_it_ended(idle, 0) == "ended with exit code 4"
    assert exit_codes.how_it_ended(well, 0) is None
    # Two jobs at once: each hears of its own workers, and of none that had nothing to do.
    assert exit_codes.ended_badly("job-1", 0) == [
        f"the worker with process id {left} ended with exit code 3; it ran 'Map' (subtask 0)"
    ]
    assert exit_codes.ended_badly("job-2", 0) == [
        f"the worker with process id {killed} was killed by SIGKILL (9), perhaps because memory ran out; "
        "it ran 'Größe' (subtask 7)"
    ]
    assert exit_codes.ended_badly("job-3", 0) == []
    assert exit_codes.ended_badly("job-1", time.time() + 1) == []
    monkeypatch.delenv(exit_codes.VARIABLE)
    assert exit_codes.how_it_ended(left, 0) is None


@pytest.fixture
def graph() -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    stream = env.from_collection([1]).name("Numbers").rebalance().map(abs).name("Size")
    stream.key_by(lambda n: n).sum().name("Sum").print()
    return build_job_graph(env._operators, env._graph_settings(), "job", env._job_id()).job_graph


def member(slot: int, pid: int, host: str | None = None) -> Member:
    return Member(SlotIndex(slot), "i", host or socket.gethostname(), pid, "", 0.0)


def test_it_is_named_with_what_it_ran(graph: JobGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(exit_codes.VARIABLE, str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    members = [member(0, os.getpid()), member(1, gone.pid), member(1, gone.pid, "elsewhere")]
    names = [f"'{graph.vertices[vertex].name}'" for vertex, _ in graph.tasks_of_slot(SlotIndex(1))]
    worker = f"the worker of slot 1 ({socket.gethostname()}, pid {gone.pid})"
    assert name_lost("it crashed", members, graph, 0) == f"it crashed: {worker} is gone; it ran {', '.join(names)}"
    (tmp_path / str(gone.pid)).write_text("3")
    assert f"{worker} ended with exit code 3; it ran" in str(name_lost("it crashed", members, graph, 0))
    assert name_lost("it crashed", members[:1], graph, 0) == "it crashed"
    assert name_lost(None, members, graph, 0) is None


def test_a_note_from_before_the_attempt_is_of_another_process(
    graph: JobGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of processes are used again: the living one that has the id now did not end that way."""
    monkeypatch.setenv(exit_codes.VARIABLE, str(tmp_path))
    note = tmp_path / str(os.getpid())
    note.write_text("3")
    os.utime(note, (1000.0, 1000.0))
    assert name_lost("it crashed", [member(0, os.getpid())], graph, 2000.0) == "it crashed"
    assert "ended with exit code 3" in str(name_lost("it crashed", [member(0, os.getpid())], graph, 500.0))
