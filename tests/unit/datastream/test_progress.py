"""The line of progress: what it says, where it is shown, and that it gives way to others."""

from __future__ import annotations

import io
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common.configuration import Configuration
from tidegate.common.ids import AttemptNumber
from tidegate.common.terminal_line import TerminalLine
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.connectors.datagen import DataGeneratorSource
from tidegate.connectors.number_sequence import NumberSequenceSource
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.progress import Pace, line_of, records_in, share_done, shown_progress, summary
from tidegate.fault_tolerance.checkpoint_view import CheckpointsView
from tidegate.jobmanager.job_publisher import JobPublisher, MasterPublisher
from tidegate.jobmanager.job_view import JobView, StageView
from tidegate.testing.in_process_job import InProcessJob


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def view_after(ms: float, source: Any) -> JobView:
    """Of a job that reads the source with two subtasks."""
    env = environment({}, 2)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").sink_to(CollectSink())
    with InProcessJob(env) as job:
        publisher = JobPublisher(job.graph, "STREAMING", 2, job.clock.now, job.prepared.configuration)
        published = MasterPublisher(publisher, job.graph, job.master)
        job.advance(ms)
        published.publish(job.clock.now)
        return publisher.view


def rated(count: int | None) -> DataGeneratorSource:
    return DataGeneratorSource(lambda i: i, count, records_per_second=100.0)


def test_the_share_is_what_the_sources_have_read() -> None:
    view = view_after(3_500, rated(1_000))
    share = share_done(view)
    assert share is not None
    assert 0.2 < share < 0.4
    assert 200 < records_in(view) < 400
    line = line_of(view, 12.3, 200)
    assert line.startswith(f"[{'=' * int(24 * share)}>")
    assert f"{share:.0%} · {records_in(view):,} records · 100/s · 12 s left" in line
    assert len(line_of(view, 12.3, 40)) == 40


def test_a_source_that_never_ends_has_no_share() -> None:
    view = view_after(3_500, rated(None))
    assert share_done(view) is None
    assert not view.bounded
    assert "%" not in line_of(view, None, 200)


def test_a_source_that_is_read_is_done() -> None:
    assert share_done(view_after(5_000, NumberSequenceSource(1, 100))) == 1.0


def test_restarts_checkpoints_and_another_status_are_told() -> None:
    view = msgspec.structs.replace(
        view_after(100, rated(10)),
        status_name="RESTARTING",
        attempt=AttemptNumber(2),
        checkpoints=CheckpointsView(completed=1, failed=3),
    )
    line = line_of(view, None, 200)
    assert "RESTARTING" in line
    assert line.endswith("1 checkpoint · 3 failed checkpoints · 2 restarts")


def test_a_batch_job_shows_its_stages() -> None:
    stages = (
        StageView(stage=1, name="Source", tasks=4, completed=4, active=0, failed=0),
        StageView(stage=2, name="Count\x1b[2J", tasks=4, completed=1, active=3, failed=0),
    )
    view = msgspec.structs.replace(view_after(100, rated(10)), mode="BATCH", status_name="RUNNING", stages=stages)
    line = line_of(view, None, 200)
    assert line == f"[{'=' * 15}>{' ' * 8}] 62% · 1/4 tasks of 'Count?[2J', 1/2 stages done"


def test_the_time_that_is_left_follows_the_pace_and_begins_anew_when_the_job_goes_back() -> None:
    pace = Pace()
    assert pace.left_s(0.0, 0.0) is None
    assert pace.left_s(0.25, 5.0) == pytest.approx(15.0)
    assert pace.left_s(0.5, 10.0) == pytest.approx(10.0)
    assert pace.left_s(0.1, 11.0) is None
    assert pace.left_s(0.2, 13.0) == pytest.approx(16.0)
    assert pace.left_s(None, 14.0) is None
    for second in range(200):  # what is long ago does not count
        pace.left_s(0.2 + second / 1000, 15.0 + second)
    assert len(pace._seen) < 40


def test_it_is_drawn_and_says_at_the_end_what_was_done() -> None:
    terminal = Terminal()
    view = msgspec.structs.replace(view_after(3_500, rated(1_000)), name="my \x1b[2J job")
    ended = msgspec.structs.replace(view, status_name="FINISHED", ended_ms=view.started_ms + 61_000)
    shown = [view]
    with shown_progress(lambda: shown[0], Configuration(), TerminalLine(terminal)):
        end = time.monotonic() + 10
        while "records" not in terminal.getvalue() and time.monotonic() < end:
            time.sleep(0.02)
        shown[0] = ended
    text = terminal.getvalue()
    assert text.startswith("\r\x1b[K[")
    assert text.endswith(f"\r\x1b[Kmy ?[2J job is FINISHED: {records_in(view):,} records in 1 min 1 s\n")
    assert summary(ended) in text


def test_it_is_shown_only_where_it_is_wanted() -> None:
    bounded, endless = view_after(10, rated(10)), view_after(10, rated(None))
    off = Configuration.from_dict({"tidegate.progress.enabled": "false"})
    for view, configuration, stream in (
        (endless, Configuration(), Terminal()),
        (bounded, off, Terminal()),
        (bounded, Configuration(), io.StringIO()),
    ):
        with shown_progress(lambda view=view: view, configuration, TerminalLine(stream)):  # type: ignore[misc]
            pass
        assert stream.getvalue() == ""


class Notebook:
    """IPython as a kernel has it. `outputs`: of the cell, by their ids; `writers`: the threads that have made one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: Any = "kernel") -> None:
        self.outputs: list[list[str]] = []
        self.makers: list[int] = []
        ipython: Any = ModuleType("IPython")
        ipython.get_ipython = lambda: SimpleNamespace(kernel=kernel) if kernel else SimpleNamespace()
        ipython.display = ModuleType("IPython.display")
        ipython.display.display = self.display
        for name, module in {"IPython": ipython, "IPython.display": ipython.display, "ipykernel": ipython}.items():
            monkeypatch.setitem(sys.modules, name, module)

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert (raw, display_id) == (True, True)
        texts = [data["text/plain"]]
        self.outputs.append(texts)
        self.makers.append(threading.get_ident())
        return SimpleNamespace(update=lambda data, raw: texts.append(data["text/plain"]))


def test_in_a_notebook_it_is_one_output_of_the_cell_that_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, stream = Notebook(monkeypatch), io.StringIO()
    view = msgspec.structs.replace(view_after(3_500, rated(1_000)), name="my job")
    ended = msgspec.structs.replace(view, status_name="FINISHED", ended_ms=view.started_ms + 61_000)
    shown = [view]
    with shown_progress(lambda: shown[0], Configuration(), TerminalLine(stream)):
        end = time.monotonic() + 60
        while len(notebook.outputs[0]) < 3 and time.monotonic() < end:
            time.sleep(0.02)
        shown[0] = ended
    (texts,) = notebook.outputs
    assert notebook.makers == [threading.get_ident()]
    assert texts[0] == ""
    assert texts[1].startswith("[===")
    assert texts[-1] == f"my job is FINISHED: {records_in(view):,} records in 1 min 1 s"
    assert stream.getvalue() == ""


def test_in_a_notebook_nothing_stays_of_it_when_the_job_fails_and_it_can_be_turned_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notebook, view = Notebook(monkeypatch), view_after(10, rated(10))
    line = TerminalLine(io.StringIO())
    with pytest.raises(ValueError, match="it failed"), shown_progress(lambda: view, Configuration(), line):
        raise ValueError("it failed")
    assert [texts[-1] for texts in notebook.outputs] == [""]
    with shown_progress(lambda: view, Configuration.from_dict({"tidegate.progress.enabled": "false"}), line):
        pass
    assert len(notebook.outputs) == 1


def test_ipython_on_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, terminal = Notebook(monkeypatch, kernel=None), Terminal()
    for stream in (io.StringIO(), terminal):
        with shown_progress(lambda: view_after(10, rated(10)), Configuration(), TerminalLine(stream)):
            pass
    assert notebook.outputs == []
    assert terminal.getvalue()


def test_nothing_stays_of_it_when_the_job_fails() -> None:
    terminal = Terminal()
    line = TerminalLine(terminal)
    view = view_after(10, rated(10))

    def fail() -> None:
        with shown_progress(lambda: view, Configuration(), line):
            line.show("half way")
            raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        fail()
    assert terminal.getvalue() == "\r\x1b[Khalf way\r\x1b[K"


def test_whoever_writes_takes_the_line_away_once() -> None:
    terminal = Terminal()
    line = TerminalLine(terminal)
    line.erase()
    assert terminal.getvalue() == ""
    line.show("x")
    line.erase()
    line.erase()
    assert terminal.getvalue() == "\r\x1b[Kx\r\x1b[K"
    terminal.close()
    line.show("nobody sees it")
