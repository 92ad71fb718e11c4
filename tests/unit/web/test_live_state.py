"""Keyed state over HTTP, at the command line, on the page: keys and values as JSON, who may look, wrong questions."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.unit.taskmanager.small_jobs import environment, ticks
from tests.unit.web.page_kit import Page
from tests.unit.web.test_rest import ask, request
from tests.unit.web.web_kit import MARKUP, FakeJobs, check_described
from tidegate.cli import state as state_command
from tidegate.common import Row, Time, Types
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import KeyedProcessFunction, RuntimeContext
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tidegate.datastream.window import TumblingProcessingTimeWindows
from tidegate.jobmanager.job_view import JobView
from tidegate.testing.in_process_job import InProcessJob
from tidegate.web import live_state
from tidegate.web.live_state import StateQuestion, key_of_text, path_of, shown
from tidegate.web.rest import RestServer


class Users(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.card = runtime_context.get_state(ValueStateDescriptor("card"))
        self.pages = runtime_context.get_map_state(MapStateDescriptor("pages seen/by day"))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.card.update("4111-1111")
        self.pages.put(datetime.date(2026, 1, 1), MARKUP)
        yield value


class JobOverRest(FakeJobs):
    """A job in this process behind a real server: one thread asks, and waits for the answer."""

    def __init__(self, keys: dict[str, Any] | None = None) -> None:
        settings = {
            "pipeline.name": MARKUP,
            "tidegate.queryable-state.hidden": ["users/card"],
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "1 s",
            **(keys or {}),
        }
        env = environment(settings, 2)
        env.enable_checkpointing(100)
        stream = ticks(env, burst=40, every_ms=1e9).key_by(lambda i: f"user {i % 5}", Types.STRING())
        stream.process(Users()).name(f"{MARKUP} users").uid("users").sink_to(CollectSink())
        self.job = InProcessJob(env)
        self.job.__enter__()
        self.job.advance(2500)
        super().__init__(self._view())

    def _view(self) -> JobView:
        self.job._published.publish(self.job.clock.now)
        return self.job._states._publisher.view

    def read_state(self, job_id: str, operator: str, state: str, question: StateQuestion) -> dict[str, Any]:
        self.view(job_id)
        return live_state.answer(self.job.get_state(operator, state), question)


@pytest.fixture
def jobs() -> Iterator[JobOverRest]:
    made = JobOverRest()
    yield made
    made.job.__exit__()


@pytest.fixture
def server(jobs: JobOverRest) -> Iterator[tuple[RestServer, str]]:
    rest = RestServer(jobs)
    yield rest, rest.start()
    rest.close()


def at(jobs: FakeJobs, path: str) -> str:
    return f"/v1/jobs/{jobs.shown.job_id}{path}"


def test_states_and_keys_over_rest(jobs: JobOverRest, server: Any) -> None:
    status, answer = ask(server, "GET", at(jobs, "/state"))
    assert status == 200
    states = {s["state"]: s for s in answer["states"]}
    assert states.keys() == {"count", "card", "pages seen/by day"}
    assert (states["count"]["entries"], states["count"]["exact"], states["count"]["key_type"]) == (5, True, "String")
    assert states["card"]["hidden"]
    query = StateQuestion(("user 1", "nobody"))
    status, answer = ask(server, "GET", at(jobs, path_of("users", "count", query)))
    assert status == 200
    first, second = answer["answers"]
    assert (first["found"], first["value"], first["type"], first["attempt"]) == (True, 8, "int", 0)
    assert (second["key"]["value"], second["found"]) == ("nobody", False)
    committed = at(jobs, path_of("users", "count", StateQuestion(("user 1",), "committed")))
    (one,) = ask(server, "GET", committed)[1]["answers"]
    assert (one["value"], one["checkpoint"] > 1) == (8, True)
    (one, *_), scanned = [
        ask(server, "GET", at(jobs, "/state/users/pages%20seen%2Fby%20day?limit=3"))[1]["answers"]
    ] * 2
    assert len(scanned) == 3
    assert one["value"] == [["2026-01-01", MARKUP]]


def test_what_is_answered_is_what_its_description_says(jobs: JobOverRest, server: Any) -> None:
    check_described("states", ask(server, "GET", at(jobs, "/state"))[1])
    for state in ("count", "pages seen/by day"):
        for level in ("live", "committed"):
            for keys in ((), ("user 1", "nobody")):
                question = StateQuestion(keys, level)
                status, answer = ask(server, "GET", at(jobs, path_of("users", state, question)))
                assert (status, answer["level"], len(answer["answers"])) == (200, level, len(keys) or 5)
                check_described("state", answer)


def test_what_windows_have_is_answered_as_its_description_says() -> None:
    env = environment({})
    keyed = ticks(env, burst=40, every_ms=10.0).key_by(lambda i: i % 3, Types.LONG())
    windows = keyed.window(TumblingProcessingTimeWindows.of(Time.milliseconds(500)))
    windows.reduce(lambda a, b: a + b).uid("sums").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(300)
        handle = job.get_state("sums", "window-contents")
        for question in (
            StateQuestion(("0", "1", "5")),
            StateQuestion(),
            StateQuestion(("0", "5"), window="[0, 500]"),
        ):
            found = live_state.answer(handle, question)
            check_described("state", json.loads(msgspec.json.encode(found)))
            assert len(found["answers"]) == (len(question.keys) or 3)
            first = found["answers"][0]
            assert ("windows" in first) == (bool(question.keys) and not question.window)


def test_who_may_look_may_not_change_and_nobody_looks_without_a_token(jobs: JobOverRest, server: Any) -> None:
    path, reader = at(jobs, "/state/users/count?key=user%201"), server[0].gate.read_token
    assert ask(server, "GET", path, token=reader)[0] == 200
    assert ask(server, "POST", at(jobs, "/savepoint"), {"directory": "x"}, token=reader)[0] == 403
    for token in ("", "wrong"):
        assert ask(server, "GET", path, token=token)[0] == 401
        assert ask(server, "GET", at(jobs, "/state"), token=token)[0] == 401


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/state/users/card?key=user%201", 403, "'card' of operator 'users' is hidden"),
        ("/state/users/card", 403, "hidden by tidegate.queryable-state.hidden"),
        ("/state/nobody/count?key=a", 404, "no operator 'nobody'"),
        ("/state/users/sum?key=a", 404, "it has: 'count', 'pages seen/by day'"),
        ("/state/users/count?level=yesterday&key=a", 400, "'live' or 'committed'"),
        ("/state/users/count?limit=0", 400, "limit of 1 to 1,000"),
        ("/state/users/count?limit=many", 400, "'limit' is a number"),
        ("/state/users/count?limit=1&limit=2", 400, "'limit' was given twice"),
        ("/state/users/count?depth=3", 400, "there is no depth here"),
        ("/state/users/count?key", 400, "the query is not"),
        ("/state/users/count?key=%ff", 400, "the query is not"),
        ("/state/users/%ff", 400, "not UTF-8"),
        ("/state/users/count?key=a&window=3", 400, "a window is a list"),
        ("/state/users/count?" + "&".join(f"key=k{i}" for i in range(1001)), 400, "at most 1,000 keys"),
    ],
)
def test_wrong_questions(jobs: JobOverRest, server: Any, path: str, status: int, text: str) -> None:
    got, answer = ask(server, "GET", at(jobs, path))
    assert (got, text in answer["error"]) == (status, True), answer
    assert ask(server, "GET", "/v1/jobs/nix/state/users/count")[0] == 404
    assert jobs.job.restarts == 0


def test_a_job_that_restarts_says_when_to_come_again(jobs: JobOverRest, server: Any) -> None:
    jobs.job.kill_worker()
    headers = {"Authorization": f"Bearer {server[0].token}"}
    response, data = request(server, "GET", at(jobs, "/state/users/count?key=a"), None, headers)
    assert (response.status, response.getheader("Retry-After")) == (409, "1")
    assert "RESTARTING" in json.loads(data)["error"]
    # What is committed can be read all the same.
    path = at(jobs, path_of("users", "count", StateQuestion(("user 1",), "committed")))
    assert ask(server, "GET", path)[1]["answers"][0]["value"] == 8


def test_looks_that_hang_leave_calls_for_others() -> None:
    class Hanging(FakeJobs):
        begun, goes_on = threading.Semaphore(0), threading.Event()

        def read_state(self, job_id: str, operator: str, state: str, question: StateQuestion) -> dict[str, Any]:
            self.begun.release()
            self.goes_on.wait(60)
            return super().read_state(job_id, operator, state, question)

    jobs = Hanging()
    jobs.over.set()
    rest = RestServer(jobs)
    server = rest, rest.start()
    path = at(jobs, "/state/count/seen?key=a")
    told: list[int] = []
    looking = [threading.Thread(target=lambda: told.append(ask(server, "GET", path)[0])) for _ in range(8)]
    try:
        for look in looking:
            look.start()
            assert jobs.begun.acquire(timeout=60)
        headers = {"Authorization": f"Bearer {server[0].gate.read_token}"}
        for _ in range(30):  # one more would take each call that there is
            response, data = request(server, "GET", path, None, headers)
            assert (response.status, response.getheader("Retry-After")) == (409, "1")
            assert "8 looks at state are under way" in json.loads(data)["error"]
        assert ask(server, "POST", at(jobs, "/cancel"))[0] == 200
        jobs.goes_on.set()
        for look in looking:
            look.join(60)
        assert told == [200] * 8
        assert ask(server, "GET", path)[0] == 200
    finally:
        jobs.goes_on.set()
        rest.close()


def test_switched_off_it_is_refused() -> None:
    jobs = JobOverRest({"queryable-state.enable": False})
    rest = RestServer(jobs)
    server = rest, rest.start()
    try:
        status, answer = ask(server, "GET", at(jobs, "/state/users/count"))
        assert (status, "queryable-state.enable is false" in answer["error"]) == (403, True)
        assert all(s["hidden"] for s in ask(server, "GET", at(jobs, "/state"))[1]["states"])
    finally:
        rest.close()
        jobs.job.__exit__()


# ---------------------------------------------------------------- keys and values


@pytest.mark.parametrize(
    ("text", "declared", "observed", "key"),
    [
        ("ann", Types.STRING(), (), "ann"),
        ('"ann"', Types.STRING(), (), "ann"),
        ("5", Types.STRING(), (), "5"),
        ('"', Types.STRING(), (), '"'),
        ("5", Types.LONG(), (), 5),
        ("2.5", Types.DOUBLE(), (), 2.5),
        ("true", Types.BOOLEAN(), (), True),
        ("2026-01-02", Types.SQL_DATE(), (), datetime.date(2026, 1, 2)),
        ('[1, "a"]', Types.TUPLE([Types.LONG(), Types.STRING()]), (), (1, "a")),
        ('{"a": 1}', Types.ROW_NAMED(["a"], [Types.LONG()]), (), Row(a=1)),
        ("5", None, ("int",), 5),
        ("5", None, ("str",), "5"),
        ("ann", None, (), "ann"),
        ('[1, ["a"]]', None, ("tuple",), (1, ("a",))),
        (base64.b64encode(b"\x00").decode(), None, ("bytes",), b"\x00"),
        ("2026-01-02", None, ("date",), datetime.date(2026, 1, 2)),
        ("1.50", None, ("Decimal",), decimal.Decimal("1.50")),
        ("12345678123456781234567812345678", None, ("UUID",), uuid.UUID("12345678123456781234567812345678")),
    ],
)
def test_keys_of_text(text: str, declared: Any, observed: tuple[str, ...], key: Any) -> None:
    found = key_of_text(text, declared, observed)
    assert (found, type(found)) == (key, type(key))


@pytest.mark.parametrize(
    ("text", "declared"),
    [("ann", Types.LONG()), ("1.5", Types.LONG()), ("[1]", Types.TUPLE([Types.LONG(), Types.LONG()])), ("{}", None)],
)
def test_texts_that_are_no_keys(text: str, declared: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        key_of_text(text, declared, ())


def test_a_wrong_key_says_which_type_it_has_to_be(tmp_path: Path) -> None:
    env = environment({})
    ticks(env, burst=4).key_by(lambda i: i, Types.LONG()).process(Users()).uid("u").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run()
        with pytest.raises(TypeError, match="'count' of operator 'u' are Long: 'ann' is none"):
            live_state.answer(job.get_state("u", "count"), StateQuestion(("ann",)))


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int
    y: Any = None


class Odd:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (2.5, 2.5),
        ("a\ud800", "a\\ud800"),
        ([1, ("a", None)], [1, ["a", None]]),
        ({"a": 1}, {"a": 1}),
        ({1: "a"}, [[1, "a"]]),
        (Row(a=1, b="x"), {"a": 1, "b": "x"}),
        (Row(1, 2), [1, 2]),
        (Point(1, decimal.Decimal("2.50")), {"x": 1, "y": "2.50"}),
        (Colour.RED, "RED"),
        (b"\x00", "AA=="),
        (datetime.datetime(2026, 1, 2, 3), "2026-01-02T03:00:00"),
    ],
)
def test_values_as_json(value: Any, document: Any) -> None:
    found = shown(value)
    assert found["value"] == document
    assert found["type"].endswith(type(value).__name__)
    json.dumps(found)


@pytest.mark.parametrize("value", [float("nan"), 1 << 70, {1, 2}, Odd(), [Odd()], object(), Point(1, 1j)])
def test_what_json_cannot_say_is_shown_as_text(value: Any) -> None:
    found = shown(value)
    assert "value" not in found
    assert found["text"]
    assert found["type"]
    json.dumps(found)


def test_long_texts_are_cut() -> None:
    assert len(shown("x" * 10_000)["text"]) < 2_100


@pytest.mark.parametrize("question", [StateQuestion(), StateQuestion(("a", "ü&="), "committed", "[0, 5]", 7)])
def test_a_question_comes_back_from_its_address(question: StateQuestion) -> None:
    assert StateQuestion.parse(question.query()) == question
    assert path_of("a/b", "c?d", question).startswith(f"/state/{quote('a/b', safe='')}/c%3Fd?")
    with pytest.raises(ConfigurationError):
        StateQuestion.parse("x=1")


# ---------------------------------------------------------------- at the command line


def test_what_the_command_prints(jobs: JobOverRest, capsys: pytest.CaptureFixture[str]) -> None:
    state_command.print_state(live_state.states(jobs.shown))
    text = capsys.readouterr().out
    assert "users     count" in text
    assert "hidden" in text
    question = StateQuestion(("user 1", "nobody"), "committed")
    state_command.print_state(jobs.read_state(jobs.shown.job_id, "users", "count", question))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "TYPE", "AS", "OF"]
    assert lines[1].split()[:4] == ["user", "1", "8", "int"]
    assert "checkpoint" in lines[1]
    assert lines[2].split()[:2] == ["nobody", "-"]
    state_command.print_state({"states": []})
    assert "no keyed state" in capsys.readouterr().out


# ---------------------------------------------------------------- on the page


def test_the_page_lists_states_and_looks_keys_up(jobs: JobOverRest, server: Any, browser: Any) -> None:
    page = Page(browser, server[1], server[0].token, jobs.shown.job_id)
    page.open(server[0].gate.read_token)
    page.to_job()
    page.tab("state")
    page.wait(lambda: "pages seen/by day" in page.text)
    assert "hidden" in page.text
    assert page.texts("#state-choice option") == ["users / count", "users / pages seen/by day"]
    box = page.key("state-key")
    box.send_keys("user 1")
    page.press('[data-key="state-look"]')
    page.wait(lambda: "attempt 0, now" in page.text)
    assert page.texts("#state-found td")[:3] == ["user 1", "8", "int"]
    page.script("document.getElementById('state-level').value = 'committed'")
    page.script("document.getElementById('state-choice').selectedIndex = 1")
    page.press('[data-key="state-look"]')
    page.wait(lambda: "checkpoint" in page.script("return document.getElementById('state-found').innerText"))
    assert MARKUP in page.text  # as text
    assert not page.all("main script")
    # A drawing of the page leaves what was typed and found.
    jobs.shown = jobs._view()
    page.script("window.dispatchEvent(new HashChangeEvent('hashchange'))")
    page.wait(lambda: page.all("#state-found td"))
    assert page.key("state-key").get_property("value") == "user 1"
    page.key("state-key").clear()
    page.script("document.getElementById('state-choice').selectedIndex = 0")
    page.press('[data-key="state-look"]')
    page.wait(lambda: len(page.all("#state-found tbody tr")) == 5)
    jobs.job.kill_worker()
    page.script("document.getElementById('state-level').value = 'live'")
    page.press('[data-key="state-look"]')
    page.wait(lambda: page.all("#state-found .bad"))
    assert "RESTARTING" in page.text
