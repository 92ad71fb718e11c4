"""A page that changes under its reader's hands: what is selected, pressed, focused, typed and scrolled stays."""

from __future__ import annotations

import dataclasses
import http.client
import itertools
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.unit.web.page_kit import FakePage
from tests.unit.web.web_kit import FakeJobs, sample_view
from tidegate.jobmanager.job_view import StateView
from tidegate.web import api
from tidegate.web.rest import RestServer
from tidegate.web.rest_settings import RestSettings

pytestmark = pytest.mark.timeout(300)

_ATTEMPTS = itertools.count(2)


@pytest.fixture
def page(browser: Any) -> Iterator[FakePage]:
    yield from FakePage.over(browser, FakeJobs(sample_view()))


def change(page: FakePage) -> None:
    """An event: the job is in another attempt. Returns when the page shows that."""
    attempt = next(_ATTEMPTS)
    page.jobs.shown = msgspec.structs.replace(page.jobs.shown, attempt=attempt)
    page.wait(lambda: page.script("return window.seen === arguments[0]", attempt))


SEE_EVENTS = """
    const { parse } = JSON;
    JSON.parse = (text) => {
        const found = parse(text);
        if (found?.attempt) setTimeout(() => { window.seen = found.attempt; }, 200);
        return found;
    };
"""


@pytest.fixture
def job(page: FakePage) -> FakePage:
    """The page of a job; it is known which event was drawn last."""
    page.open()
    page.to_job()
    page.script(SEE_EVENTS)
    return page


def test_a_button_that_is_pressed_across_an_event_does_its_work(job: FakePage) -> None:
    from selenium.webdriver import ActionChains  # late: it may not be there

    for key, sign in (("savepoint", "#question[open]"), ("vertex-1", "section[aria-label=subtasks]")):
        ActionChains(job.browser).click_and_hold(job.key(key)).perform()
        change(job)
        change(job)
        ActionChains(job.browser).release().perform()
        job.wait(lambda sign=sign: job.all(sign))
        job.script("document.getElementById('question').close()")


def test_selected_text_survives_events(job: FakePage) -> None:
    job.tab("failures")
    job.wait(lambda: job.all("main pre"))
    job.script("getSelection().selectAllChildren(document.querySelector('main pre'))")
    selected = job.script("return getSelection().toString()")
    assert "ValueError" in selected
    change(job)
    failure = job.jobs.shown.failures[0]
    later = msgspec.structs.replace(
        job.jobs.shown, failures=(failure, dataclasses.replace(failure, attempt=1, at_ms=5e6))
    )
    job.jobs.shown = later
    change(job)
    job.wait(lambda: len(job.all("main pre")) == 2)  # a newer failure stands above it now
    assert job.script("return getSelection().toString()") == selected


def test_focus_scroll_position_and_what_is_typed_stay(job: FakePage) -> None:
    of_state = StateView(
        operator_id="o", operator="count", state="sum", kind="value", per_window=False, type="", key_type="",
        key_types=("str",), entries=1, exact=True, bytes=1, hidden=False,
    )  # fmt: skip
    job.jobs.shown = msgspec.structs.replace(job.jobs.shown, states=(of_state,))
    job.tab("state")
    job.key("state-key").send_keys("customer 3")
    job.script("document.getElementById('state-level').value = 'committed'; window.input = document.activeElement")
    change(job)
    assert job.script("return document.activeElement === window.input && window.input.isConnected")
    assert job.script("return [window.input.value, document.getElementById('state-level').value]") == [
        "customer 3",
        "committed",
    ]
    job.tab("checkpoints")
    job.wait(lambda: job.all("svg.plot .time"))
    job.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 700, "height": 600, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        job.script("window.history_ = document.querySelector('[data-key^=cp-]').closest('.scroll')")
        job.script("window.history_.scrollLeft = 120; window.scrollTo(0, 300)")
        change(job)
        assert job.script("return [window.history_.isConnected, window.history_.scrollLeft, scrollY]") == [
            True,
            120,
            300,
        ]
    finally:
        job.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_what_is_read_out_is_told_once(job: FakePage) -> None:
    job.wait(lambda: job.script("return document.getElementById('live').textContent") == "live")
    job.script(
        "window.told = 0; new MutationObserver((all) => { window.told += all.length; })"
        ".observe(document.getElementById('live'), {childList: true, characterData: true, subtree: true})"
    )
    change(job)
    change(job)
    assert job.script("return window.told") == 0


def test_a_job_that_is_restarting_is_not_said_to_be_over(job: FakePage) -> None:
    shown = job.jobs.shown
    job.jobs.shown = msgspec.structs.replace(shown, status_name="RESTARTING", recoveries=())
    job.tab("failures")
    job.wait(lambda: "restarting" in "".join(job.texts("main section")))
    assert "not running again" not in job.text
    over = msgspec.structs.replace(job.jobs.shown, status_name="FAILED", ended_ms=shown.started_ms + 9_000)
    job.jobs.shown = over
    job.wait(lambda: "not running again" in job.text)


# ---------------------------------------------------------------- events that do not come


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server notices within seconds that a stream has nobody any more."""
    monkeypatch.setattr(api, "_KEEP_ALIVE_S", 1.0)


@pytest.mark.usefixtures("soon")
def test_a_page_that_gets_no_events_says_so_and_looks_by_itself(page: FakePage) -> None:
    parts = urlsplit(page.url)
    streams = []
    for _ in range(16):  # as many as a port has
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        path = f"/v1/jobs/{page.job_id}/events"
        connection.request("GET", path, headers={"Authorization": f"Bearer {page.rest.token}"})
        streams.append((connection, connection.getresponse()))
    page.open()
    page.to_job()
    page.wait(lambda: page.texts("#live") == ["not live"])
    page.jobs.shown = msgspec.structs.replace(page.jobs.shown, attempt=7_777)
    page.wait(lambda: "7,777" in page.text, 60)
    assert page.texts("#live") == ["not live"]
    for connection, response in streams:
        response.close()
        connection.close()
    page.jobs.shown = msgspec.structs.replace(page.jobs.shown, attempt=8_888)  # those that have gone are noticed
    page.wait(lambda: page.texts("#live") == ["live"], 60)


def test_a_session_that_is_over_is_told_by_the_login(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.wait(lambda: page.texts("#live") == ["live"])
    page.rest.gate._sessions.clear()
    page.rest.close()  # the stream ends with the port; another server comes up at its address
    port = urlsplit(page.url).port or 0
    page.wait(lambda: page.rest._server.socket.fileno() < 0)
    again = RestServer(page.jobs, RestSettings(port=port))
    again.start()
    try:
        page.wait(lambda: page.all("#token"), 60)
    finally:
        again.close()


HIDE = """
    Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
"""


@pytest.mark.usefixtures("soon")
def test_a_tab_that_nobody_sees_holds_no_connection(job: FakePage) -> None:
    job.wait(lambda: job.rest._streams == 1)
    job.script(HIDE, True)
    job.jobs.shown = msgspec.structs.replace(job.jobs.shown, attempt=next(_ATTEMPTS))  # the server writes, and notices
    job.wait(lambda: job.rest._streams == 0, 60)
    job.jobs.shown = msgspec.structs.replace(job.jobs.shown, attempt=5_555)
    job.script(HIDE, False)
    job.wait(lambda: "5,555" in job.text)
    job.wait(lambda: job.rest._streams == 1)
