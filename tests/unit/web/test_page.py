"""The page in a browser: each view, names with markup, live changes, buttons with their question, the keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.web.page_kit import FakePage
from tests.unit.web.web_kit import MARKUP, FakeJobs, sample_view
from tidegate.common.ids import AttemptNumber, CheckpointId
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind
from tidegate.fault_tolerance.barriers.statistics import CheckpointRecord, CheckpointStats
from tidegate.fault_tolerance.checkpoint_view import CheckpointViews
from tidegate.jobmanager.job_view import StateView
from tidegate.jobmanager.recent_warnings import WarningView
from tidegate.web import documents

pytestmark = pytest.mark.timeout(300)

STATIC = Path(__file__).parents[3] / "tidegate" / "web" / "static"

TRANSFERRED = """
    const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    return { files: all.length, bytes: all.reduce((sum, entry) => sum + entry.transferSize, 0) };
"""
"""What came over the network since the page was opened."""


@pytest.fixture
def page(browser: Any) -> Iterator[FakePage]:
    yield from FakePage.over(browser, FakeJobs(sample_view()))


def test_the_first_load_is_small_and_asks_no_other_host() -> None:
    files = list(STATIC.iterdir())
    assert sum(file.stat().st_size for file in files) < 300_000
    for file in files:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text.replace("no innerHTML anywhere", "")


def contrast(one: str, other: str) -> float:
    """As WCAG has it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_what_is_pressed_stand_out_from_what_is_behind_them(scheme: str) -> None:
    light, dark = re.findall(r":root \{(.*?)\}", (STATIC / "style.css").read_text(encoding="utf-8"), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", light if scheme == "light" else dark))
    for name in ("ink", "soft", "link", "good", "warn", "bad"):  # text
        assert min(contrast(colours[name], colours[behind]) for behind in ("card", "back")) >= 4.5, name
    for name in ("control", "idle", "busy", "blocked", "accent"):  # borders of controls, bars, the focus
        assert min(contrast(colours[name], colours[behind]) for behind in ("card", "back")) >= 3, name


def test_controls_have_the_border_that_stands_out(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.tab("metrics")
    page.wait(lambda: page.all("#filter"))
    control = page.script("return getComputedStyle(document.documentElement).getPropertyValue('--control').trim()")
    expected = f"rgb({', '.join(str(int(control[i : i + 2], 16)) for i in (1, 3, 5))})"
    borders = page.script(
        "const all = [...document.querySelectorAll('button:not(.danger), input, select')];"
        "return all.map((e) => getComputedStyle(e).borderTopColor)"
    )
    assert len(borders) > 2
    assert set(borders) == {expected}


def test_the_page_asks_for_a_token_and_keeps_none_where_scripts_can_read_it(page: FakePage) -> None:
    page.browser.get(f"{page.url}/")
    field = page.wait(lambda: page.all("#token"))[0]
    field.send_keys("wrong\n")
    page.wait(lambda: "not the token" in page.text)
    page.all("#token")[0].clear()
    page.all("#token")[0].send_keys(page.rest.token + "\n")
    page.wait(lambda: "Jobs" in page.text)
    assert page.script("return document.cookie") == ""
    assert page.script("return Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0
    page.open()
    assert page.rest.token not in page.script("return location.href")
    page.press("#logout")
    page.wait(lambda: page.all("#token"))


def test_jobs_and_the_graph_with_names_that_are_markup(page: FakePage) -> None:
    page.open()
    page.wait(lambda: MARKUP in page.text)
    assert "RUNNING" in page.text
    page.to_job()
    assert page.script("return document.title").startswith(MARKUP)
    assert len(page.all("svg.graph .vertex")) == 2
    assert "hash" in page.script("return document.querySelector('svg.graph').textContent")
    assert len(page.all("main script")) == 0
    page.press('[data-key="vertex-1"]')
    page.wait(lambda: page.all("section[aria-label=subtasks] tbody tr"))
    assert "here:100" in page.text
    assert "parser.seen" in page.text
    assert page.complaints == []


def test_checkpoints_with_a_plot_and_the_details_of_one(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.tab("checkpoints")
    page.wait(lambda: page.all("svg.plot .time"))
    last = page.jobs.shown.checkpoints.history[-2].checkpoint_id
    page.press(f'[data-key="cp-{last}"]')
    page.wait(lambda: page.all("section[aria-label=checkpoint] tbody tr"))
    foot = page.script(
        "return [...document.querySelectorAll('section[aria-label=checkpoint] tfoot')].map((foot) =>"
        " [...foot.rows].map((row) => [...row.cells].slice(0, 2).map((cell) => cell.innerText)))"
    )
    assert len(foot) == 2
    for rows in foot:
        assert [row[0] for row in rows] == ["minimum", "median", "maximum"]
        assert all(row[1].endswith("s") for row in rows)
    assert "Median of the latest" in page.text
    assert "Restores" in page.text
    assert "execution.checkpointing.interval" in page.text
    assert page.complaints == []


def test_failures_and_the_configuration(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.tab("failures")
    page.wait(lambda: "ValueError" in page.text)
    assert f"{MARKUP} in a record" in page.text
    assert "down for" in page.text
    assert "restart after 0.01 s" in page.text
    warning = WarningView(text=f"{MARKUP}: a commit failed", first_ms=1e12, latest_ms=1e12 + 5, times=17)
    page.jobs.shown = msgspec.structs.replace(page.jobs.shown, warnings=(warning,))
    page.wait(lambda: f"{MARKUP}: a commit failed" in page.text and "Warnings" in page.text)
    page.tab("config")
    page.wait(lambda: "execution.checkpointing.interval" in page.text)
    assert "******" in page.text
    assert "hunter2" not in page.text
    assert "tidegate run" not in page.text
    assert {row.split()[-1] for row in page.texts("main tbody tr")} == {"default", "program", "configuration"}
    assert page.complaints == []


def test_metrics_are_searched_as_one_types(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.tab("metrics")
    page.wait(lambda: "numRecordsIn" in page.text)
    box = page.all("#filter")[0]
    box.click()
    for letter in "SEEN":
        box.send_keys(letter)
    page.wait(lambda: len(page.all("main tbody tr")) == 2)
    assert "parser.seen" in page.text
    assert page.script("return document.activeElement.id") == "filter"  # it keeps the keyboard
    assert page.script("return document.activeElement.value") == "SEEN"
    assert page.complaints == []


def test_a_change_of_the_job_is_seen_live_and_its_end_too(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.jobs.shown = msgspec.structs.replace(page.jobs.shown, status_name="RESTARTING", attempt=7)
    page.wait(lambda: "RESTARTING" in page.text)
    page.press('[data-key="vertex-1"]')
    page.wait(lambda: page.all("section[aria-label=subtasks]"))
    ended = page.jobs.shown.started_ms + 60_000
    page.jobs.shown = msgspec.structs.replace(page.jobs.shown, status_name="FINISHED", ended_ms=ended)
    page.wait(lambda: "the job has ended" in page.text)
    page.wait(lambda: "FINISHED" in page.text)
    assert page.all('[data-key="cancel"]') == []
    # A job's own port closes then. What was seen stays, and what was not is somewhere else.
    page.rest.close()
    page.wait(lambda: not page.rest._server.socket or page.rest._server.socket.fileno() < 0)
    page.tab("checkpoints")
    page.wait(lambda: "The command tidegate ui shows all of it" in page.text)
    page.tab("")
    page.wait(lambda: page.all("section[aria-label=subtasks]"))
    assert "the job has ended" in page.text
    page.press("#logout")  # nobody is there to be told
    page.wait(lambda: page.all("#token"))
    assert "its port is closed" in page.text
    assert MARKUP not in page.text
    assert not [complaint for complaint in page.complaints if "Uncaught" in complaint]


def test_who_cannot_be_logged_out_is_told(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.rest.close()
    page.press("#logout")
    page.wait(lambda: "Not logged out: the server does not answer" in page.text)
    assert MARKUP in page.text


def test_buttons_ask_first(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.key("savepoint").click()
    page.wait(lambda: page.all("#question[open]"))
    assert f"Take a savepoint of {MARKUP}?" in page.text
    page.all("#question-no")[0].click()
    page.wait(lambda: not page.all("#question[open]"))
    assert page.jobs.calls == []
    page.press('[data-key="savepoint"]')
    page.all("#folder")[0].send_keys("/there")
    page.all("#question-yes")[0].click()
    page.wait(lambda: "/there/savepoint-1" in page.text)
    assert page.jobs.calls == [("savepoint", "/there")]
    page.press('[data-key="savepoint"]')
    page.all("#question-yes")[0].click()
    page.wait(lambda: "no folder was given" in page.text)  # what the job refuses is told
    page.jobs.over.set()
    page.press('[data-key="cancel"]')
    page.all("#question-yes")[0].click()
    page.wait(lambda: "The job is CANCELED" in page.text)


def test_who_may_only_look_has_no_buttons(page: FakePage) -> None:
    page.open(page.rest.gate.read_token)
    page.to_job()
    assert page.all('[data-key="savepoint"]') == []
    assert page.all('[data-key="cancel"]') == []


def test_the_keyboard_opens_a_vertex_and_keeps_its_place(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.script("document.querySelector('[data-key=\"vertex-0\"]').focus()")
    page.browser.switch_to.active_element.send_keys("\n")
    page.wait(lambda: page.all("section[aria-label=subtasks]"))
    assert page.script("return document.activeElement.dataset.key") == "vertex-0"


NAMELESS = """
    const named = (e) => (e.getAttribute("aria-label") || (e.labels?.[0] ?? e).textContent).trim();
    const roles = ["button", "img", "region", "group"].map((role) => `, [role=${role}]`).join("");
    const wanted = `th, a, button, input, select, progress, nav, section${roles}`;
    const shown = (e) => !e.closest("[hidden]") && !e.closest("dialog:not([open])");
    return [...document.querySelectorAll(wanted)].filter((e) => shown(e) && !named(e)).map((e) => e.outerHTML);
"""


def test_everything_has_a_name_that_is_read_out_and_is_reached_by_keyboard(page: FakePage) -> None:
    page.open()
    page.to_job()
    of_state = StateView(
        operator_id="o", operator="count", state="sum", kind="value", per_window=False, type="", key_type="",
        key_types=("str",), entries=1, exact=True, bytes=1, hidden=False,
    )  # fmt: skip
    page.jobs.shown = msgspec.structs.replace(page.jobs.shown, states=(of_state,))
    signs = {"checkpoints": "History", "failures": "attempt 0", "state": "Look up a key", "metrics": "Search"}
    for tab, sign in {"": "Status", **signs, "config": "only those that were set"}.items():
        page.tab(tab)
        page.wait(lambda sign=sign: sign in page.text)
        assert page.script(NAMELESS) == []
        scrolled = page.script("return [...document.querySelectorAll('main .scroll, main pre')].map((e) => e.tabIndex)")
        assert set(scrolled) == {0}
    page.tab("")
    page.press('[data-key="savepoint"]')
    page.wait(lambda: page.all("#question[open]"))
    assert page.script(NAMELESS) == []
    assert page.script("return document.activeElement.closest('#question') !== null")  # the question has the keyboard
    page.browser.switch_to.active_element.send_keys("\ue00c")  # Escape
    page.wait(lambda: not page.all("#question[open]"))
    assert page.jobs.calls == []
    page.press("#logout")
    page.wait(lambda: page.all("#token"))
    assert page.script(NAMELESS) == []
    assert page.script("return document.activeElement.id") == "token"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_on_a_phone_in_light_and_dark(page: FakePage, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open()
        page.to_job()
        assert page.script("return document.documentElement.scrollWidth") <= 390
        back = page.script("return getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(16, 22, 29)") == (scheme == "dark")
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_64_subtasks_are_shown(page: FakePage) -> None:
    page.jobs.shown = sample_view("wide", 64)
    page.job_id = page.jobs.shown.job_id
    page.browser.execute_cdp_cmd("Network.enable", {})
    page.browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    try:
        page.open()
        page.to_job()
        page.press('[data-key="vertex-1"]')
        page.wait(lambda: len(page.all("section[aria-label=subtasks] tbody tr")) >= 64)
        loaded = page.script(TRANSFERRED)
    finally:
        page.browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})
        page.browser.execute_cdp_cmd("Network.disable", {})
    event = len(msgspec.json.encode(documents.job(page.jobs.shown, 0.0)))  # is told of when the stream has ended
    assert loaded["files"] >= len(list(STATIC.iterdir())) - 1
    assert 20_000 < loaded["bytes"] + event < 300_000, (loaded, event)


def test_10_000_checkpoints_are_counted_and_only_the_newest_are_kept(page: FakePage) -> None:
    stats, views = CheckpointStats(history_size=100), CheckpointViews()
    for number in range(1, 10_001):
        kind = CheckpointKind.PERIODIC
        stats.on_triggered(CheckpointRecord(CheckpointId(number), kind, AttemptNumber(0), number * 50.0, 2))
        stats.on_completed(CheckpointId(number), number * 50.0 + 7)
        if number % 1_000 == 0:
            page.jobs.shown = msgspec.structs.replace(page.jobs.shown, checkpoints=views.of(stats))
    assert len(page.jobs.shown.checkpoints.history) == len(views._ended) == 100
    assert len(page.jobs.shown.to_json()) < 200_000
    page.open()
    page.to_job()
    page.wait(lambda: "10,000 done" in page.text)
    page.tab("checkpoints")
    page.wait(lambda: page.all('[data-key="cp-10000"]'))
    assert page.all('[data-key="cp-9901"]')
    assert not page.all('[data-key="cp-9900"]')
