"""Lines that functions log: where they come from, where they go, and how they look."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.log_lines import JsonFormatter, LogLine, LogSettings, Place, show_line
from tidegate.common.time import Time
from tidegate.datastream import AsyncDataStream, AsyncFunction, KeyedProcessFunction
from tidegate.datastream.connectors import CollectSink
from tidegate.spark.event_loop import EventLoop
from tidegate.spark.streaming.printing import DriverPrinter, WorkerPrinter
from tidegate.spark.worker_logs import WorkerLogs, worker_logging
from tidegate.testing.in_process_job import InProcessJob
from tidegate.testing.in_process_slot import InProcessSlot

log = logging.getLogger("tests.functions")


def settings(values: dict[str, Any]) -> LogSettings:
    return LogSettings.from_configuration(Configuration.from_dict(values))


def told(value: int) -> int:
    log.warning("saw %d", value)
    return value


class _Keyed(KeyedProcessFunction):
    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        told(value)
        yield value


class Lookup(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        await asyncio.sleep(0)
        log.warning("asked for %d", value)
        return [value]


@pytest.fixture
def lines() -> Iterator[list[LogLine]]:
    """What a worker sends while it works for a job."""
    found: list[LogLine] = []
    with worker_logging(WorkerLogs("a" * 32, "my job", LogSettings({"root": logging.WARNING})), 2, _taking(found)):
        yield found


def _taking(found: list[LogLine]) -> Any:
    def take(line: LogLine) -> bool:
        found.append(line)
        return True

    return take


def test_each_line_says_job_operator_and_subtask(lines: list[LogLine]) -> None:
    env = environment({}, 2)
    stream = env.from_collection([1, 2, 3, 4]).map(lambda v: v).name("first").map(told).name("second")
    stream.key_by(lambda v: v).process(_Keyed()).name("third").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
    mine = [line for line in lines if line.logger == "tests.functions"]
    by_operator = {line.place.operator for line in mine}
    assert by_operator == {"second", "third"}  # the chain's other operators are above it on the stack
    assert {line.place.subtask for line in mine if line.place.operator == "third"} <= {0, 1}
    assert {(line.place.job, line.place.attempt) for line in mine} == {("my job", 2)}
    assert str(mine[0].place) == f"[my job | second (subtask {mine[0].place.subtask})]"


def test_a_coroutine_belongs_to_the_operator_that_started_it(
    lines: list[LogLine], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, ended = EventLoop(), threading.Event()

    def on_the_real_loop(self: Any, call: Any, done: Any) -> Any:
        return loop.run(call, lambda result, error: ended.set())

    monkeypatch.setattr(InProcessSlot, "run_coroutine", on_the_real_loop)
    env = environment({}, 1)
    stream = env.from_collection([1])
    AsyncDataStream.unordered_wait(stream, Lookup(), Time.seconds(10)).name("lookup").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run()
        assert ended.wait(10)
    loop.stop()
    assert [line.place.operator for line in lines if line.text.startswith("asked")] == ["lookup"]


def test_levels_hold_while_the_job_runs_and_are_given_back() -> None:
    found: list[LogLine] = []
    chosen = settings({"tidegate.logging.level": "root:ERROR,tests.functions:DEBUG"})
    before = logging.root.level, log.level
    with worker_logging(WorkerLogs("a" * 32, "j", chosen), 0, _taking(found)):
        log.debug("fine")
        logging.getLogger("tests.others").warning("not wanted")
    log.warning("afterwards")
    assert [line.text for line in found] == ["fine"]
    assert (logging.root.level, log.level) == before


def test_tasks_within_each_other_log_once() -> None:
    found: list[LogLine] = []
    logs = WorkerLogs("a" * 32, "j", LogSettings())
    with worker_logging(logs, 0, _taking(found)), worker_logging(logs, 0, _taking(found)):
        log.warning("once")
    assert [line.text for line in found] == ["once"]


def test_levels_that_are_not_given_are_those_of_the_program() -> None:
    log.setLevel(logging.INFO)
    try:
        assert settings({}).levels["tests.functions"] == logging.INFO
        assert settings({}).levels["root"] == logging.root.level
        assert settings({"tidegate.logging.level": "tests.functions:critical"}).levels["tests.functions"] == 50
    finally:
        log.setLevel(logging.NOTSET)


def test_an_unknown_level_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"tidegate\.logging\.level: 'LOUD' of logger 'a\.b' is no level"):
        settings({"tidegate.logging.level": "a.b:LOUD"})


def test_without_a_driver_that_takes_them_lines_go_to_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logs = WorkerLogs("a" * 32, "my job", settings({"tidegate.logging.format": "json"}))
    with worker_logging(logs, 1):
        try:
            raise ValueError("of a record")
        except ValueError:
            log.exception("not %s", "this one")
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert line["message"] == "not this one"
    assert (line["job"], line["level"], line["logger"], line["attempt"]) == ("my job", "ERROR", "tests.functions", 1)
    assert "ValueError" in line["exception"]
    with worker_logging(WorkerLogs("a" * 32, "my job", settings({})), 1):
        log.warning("as text")
    assert capsys.readouterr().err.endswith(" WARNING tests.functions [my job] as text\n")


def test_a_lone_surrogate_breaks_no_line() -> None:
    """Made by hand: pytest itself could not carry such a line from one of its processes to another."""
    try:
        raise ValueError("\ud800 of a record")
    except ValueError:
        record = logging.LogRecord("a", 40, "/x/y.py", 7, "\ud800", (), sys.exc_info())
    line = LogLine.of(record, _PLACE)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(line), type=LogLine) == line
    assert "ValueError" in line.story


def test_arguments_that_do_not_fit_are_part_of_the_text() -> None:
    record = logging.LogRecord("a", 30, "/x/y.py", 7, "%d of %d", ("one",), None)
    assert LogLine.of(record, _PLACE).text.startswith("%d of %d ('one',) (TypeError")


def test_lines_pass_the_control_connection_to_the_loggers_of_the_program(caplog: pytest.LogCaptureFixture) -> None:
    driver = DriverPrinter(lambda sender, count: worker.written(count))
    worker = WorkerPrinter(lambda payload: driver.take(b"me", payload))
    line = LogLine(logger="tests.shown", level=40, text="hello", created=1.5, place=_PLACE, story="Traceback ...")
    assert worker.log(line)
    assert worker.log(msgspec.structs.replace(line, logger="tests.quiet", level=10))
    driver.close()
    (record,) = [r for r in caplog.records if r.name.startswith("tests.")]
    assert record.getMessage() == "[j | Map (subtask 1)] hello"
    assert (record.operator, record.subtask, record.exc_text) == ("Map", 1, "Traceback ...")  # type: ignore[attr-defined]
    assert worker._under_way == 0
    worker.close()
    assert not worker.log(line)


def test_lines_that_find_too_much_under_way_are_dropped_and_counted() -> None:
    sent: list[bytes] = []
    worker = WorkerPrinter(sent.append)
    line = LogLine(logger="a", level=30, text="x" * 10_000, created=0.0, place=_PLACE)
    for _ in range(200):
        assert worker.log(line)
    count = len(sent)
    assert 100 < count < 120  # a megabyte
    worker.written(str(sum(map(len, sent))).encode())
    assert worker.log(line)
    assert f"[{200 - count} lines before it were dropped]".encode() in sent[-1]


def test_a_program_without_handlers_gets_lines_when_the_configuration_speaks_of_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    level = logging.root.level
    settings({}).apply_to_driver()
    assert logging.root.handlers == []
    try:
        settings({"tidegate.logging.format": "json", "tidegate.logging.level": "root:INFO"}).apply_to_driver()
        show_line(LogLine(logger="tests.a", level=20, text="hello", created=0.0, place=_PLACE))
        shown = json.loads(capsys.readouterr().err)
        assert (shown["message"], shown["operator"], shown["subtask"]) == ("hello", "Map", 1)
        (handler,) = logging.root.handlers
        settings({"tidegate.logging.format": "json"}).apply_to_driver()
        assert logging.root.handlers == [handler]
    finally:
        logging.root.setLevel(level)


def test_json_lines_of_a_programs_own_records() -> None:
    record = logging.LogRecord("a", 30, "/x/y.py", 7, "%s \ud800", ("hi",), None)
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "hi \\ud800"
    assert line["at"] == "y.py:7"
    assert "operator" not in line


_PLACE = Place(job="j", job_id="a" * 32, operator="Map", subtask=1)


def test_a_line_takes_the_place_of_the_progress_that_is_drawn_on_the_same_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for on_terminal in (False, True):
        logs = WorkerLogs("a" * 32, "my job", LogSettings({"root": logging.WARNING}), on_terminal=on_terminal)
        with worker_logging(logs, 0):
            log.warning("seen")
    plain, on_it, _ = capsys.readouterr().err.split("\n")
    assert not plain.startswith("\r")
    assert on_it.startswith("\r\x1b[K")
    assert on_it.endswith(plain.split(" ", 2)[2])
