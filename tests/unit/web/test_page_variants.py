"""The page of jobs that are not the usual one: other runtime modes, checkpoints that failed, jobs that have ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.unit.web.page_kit import FakePage
from tests.unit.web.web_kit import FakeJobs, sample_view
from tidegate.common.ids import CheckpointId
from tidegate.common.metric_values import INPUT_WATERMARK, GaugeValue, MetricReport
from tidegate.fault_tolerance.barriers.statistics import CheckpointStatus
from tidegate.fault_tolerance.checkpoint_view import CheckpointView, Restore
from tidegate.jobmanager.catch_up import Lag, RecoveryView
from tidegate.jobmanager.job_view import JobView, StageView

pytestmark = pytest.mark.timeout(300)

NOTHING = "\N{EN DASH}"


@pytest.fixture
def page(browser: Any) -> Iterator[FakePage]:
    yield from FakePage.over(browser, FakeJobs(sample_view()))


def changed(page: FakePage, **fields: Any) -> JobView:
    page.jobs.shown = msgspec.structs.replace(page.jobs.shown, **fields)
    return page.jobs.shown


def with_checkpoints(page: FakePage, **fields: Any) -> None:
    changed(page, checkpoints=msgspec.structs.replace(page.jobs.shown.checkpoints, **fields))


def latest(page: FakePage) -> CheckpointView:
    return next(c for c in reversed(page.jobs.shown.checkpoints.history) if c.status is CheckpointStatus.COMPLETED)


def cells(page: FakePage, where: str, column: str) -> list[str]:
    """What the body of the first table there says in a column."""
    code = """
        const table = document.querySelector(arguments[0]), heads = [...table.querySelectorAll("thead th")];
        const at = heads.findIndex((head) => head.textContent === arguments[1]);
        return [...table.querySelectorAll("tbody tr")].map((row) => row.cells[at].textContent);
    """
    return list(page.script(code, where, column))


def test_a_batch_job_has_stages(page: FakePage) -> None:
    stages = (
        StageView(stage=3, name="shuffle by customer", tasks=8, completed=8, active=0, failed=1),
        StageView(stage=4, name="collect at /home/me/job.py:7", tasks=8, completed=2, active=4, failed=0),
    )
    changed(page, mode="BATCH", stages=stages, metrics=())
    page.open()
    page.to_job()
    page.wait(lambda: "Spark's stages" in page.text)
    assert cells(page, "main .scroll:has(progress) table", "Tasks") == ["8 of 8", "2 of 8"]
    assert cells(page, "main .scroll:has(progress) table", "Name") == ["shuffle by customer", "collect at job.py:7"]
    assert page.script("return [...document.querySelectorAll('progress')].map((p) => p.value / p.max)") == [1, 0.25]
    assert page.all('[data-key="savepoint"]') == []
    assert page.all('[data-key="cancel"]')
    assert "Checkpoints\n28" not in page.text
    assert "Checkpoints" not in page.texts("nav.tabs a")
    assert "back-pressured" not in page.text


def test_a_micro_batch_job_has_batches(page: FakePage) -> None:
    changed(page, mode="MICRO_BATCH")
    page.open()
    page.to_job()
    assert "Batches" in page.texts("nav.tabs a")
    assert "28 done, 1 failed" in page.texts(".card b")
    assert page.texts(".card span").count("Batches") == 1


def test_a_checkpoint_that_failed_names_who_did_not_answer(page: FakePage) -> None:
    whole = latest(page)
    failed = msgspec.structs.replace(
        whole,
        checkpoint_id=CheckpointId(whole.checkpoint_id + 100),
        status=CheckpointStatus.FAILED,
        reason_name="EXPIRED",
        detail="it took too long",
        acknowledged=tuple(p for p in whole.acknowledged if (p.vertex, p.subtask) != (1, 1)),
    )
    with_checkpoints(page, history=(*page.jobs.shown.checkpoints.history, failed))
    page.open()
    page.to_job()
    page.tab("checkpoints")
    page.wait(lambda: page.all(f'[data-key="cp-{failed.checkpoint_id}"]'))
    page.press(f'[data-key="cp-{failed.checkpoint_id}"]')
    page.wait(lambda: "no answer from subtask 1" in page.text)
    assert "expired: it took too long" in page.text
    assert page.all("svg.plot rect.failed")


def test_a_checkpoint_in_progress_shows_no_figures_yet(page: FakePage) -> None:
    whole = latest(page)
    begun = msgspec.structs.replace(
        whole,
        checkpoint_id=CheckpointId(whole.checkpoint_id + 100),
        status=CheckpointStatus.IN_PROGRESS,
        ended_ms=None,
        duration_ms=None,
        acknowledged=(),
        state_bytes=0,
        full_bytes=0,
    )
    with_checkpoints(page, history=(*page.jobs.shown.checkpoints.history, begun))
    page.open()
    page.to_job()
    page.tab("checkpoints")
    page.wait(lambda: page.all(f'[data-key="cp-{begun.checkpoint_id}"]'))
    for column in ("Duration", "Written", "Full", "In flight", "Start delay", "Alignment", "Sync", "Async"):
        assert cells(page, ".scroll:has([data-key^=cp-]) table", column)[0] == NOTHING, column
    triggered = cells(page, ".scroll:has([data-key^=cp-]) table", "Triggered")[0]
    assert "Jan" in triggered  # 1970: a day that is not today is told


def test_a_checkpoint_that_was_fallen_back_from_is_told(page: FakePage) -> None:
    view = page.jobs.shown
    failure = view.failures[0]
    damaged = dataclasses.replace(
        failure, failure=msgspec.structs.replace(failure.failure, corrupt_checkpoint=7), at_ms=failure.at_ms + 1
    )
    changed(page, failures=(failure, damaged))
    with_checkpoints(page, restores=(Restore(checkpoint_id=CheckpointId(6), at_ms=failure.at_ms + 5),))
    page.open()
    page.to_job()
    page.tab("checkpoints")
    page.wait(lambda: "fell back: checkpoint 7 is damaged" in page.text)


def test_the_plot_has_axes_and_stands_on_time(page: FakePage) -> None:
    whole, start = latest(page), 1_700_000_000_000.0
    history = tuple(
        msgspec.structs.replace(
            whole,
            checkpoint_id=CheckpointId(n),
            triggered_ms=start + at * 60_000.0,
            ended_ms=start + at * 60_000.0 + ms,
            duration_ms=float(ms),
            state_bytes=size,
        )
        for n, (at, ms, size) in enumerate(((0, 100, 1024), (1, 300, 2048), (10, 200, 4096)), 1)
    )
    with_checkpoints(page, history=history)
    page.open()
    page.to_job()
    page.tab("checkpoints")
    page.wait(lambda: page.all("svg.plot .time"))
    assert page.texts(".scale.left span") == ["300 ms", "150 ms", "0"]
    assert page.texts(".scale.right span") == ["4.0 KB", "2.0 KB", "0"]
    first, last = page.texts(".times span")
    assert "Nov" in first
    assert first != last
    (points,) = page.script("return [document.querySelector('svg.plot .time').getAttribute('points')]")
    x = [float(point.split(",")[0]) for point in points.split()]
    assert (x[1] - x[0]) / (x[2] - x[0]) == pytest.approx(0.1)  # a minute of ten


def test_stopping_may_drain(page: FakePage) -> None:
    page.open()
    page.to_job()
    for drain in (True, False):
        page.press('[data-key="stop"]')
        page.wait(lambda: page.all("#question[open]"))
        assert not page.script("return document.getElementById('drain').checked")
        if drain:
            page.all("#drain")[0].click()
        page.all("#folder")[0].send_keys("/there")
        page.all("#question-yes")[0].click()
        page.wait(lambda drain=drain: page.jobs.calls[-1:] == [("stop", drain, "/there")])


def test_how_far_subtasks_are_behind_their_source(page: FakePage) -> None:
    marks = {(0, 0): 1_700_000_060_000.0, (1, 0): 1_700_000_060_000.0, (1, 1): 1_700_000_057_500.0}
    told = (MetricReport(*place, INPUT_WATERMARK, GaugeValue(mark)) for place, mark in marks.items())
    changed(page, metrics=(*page.jobs.shown.metrics, *told))
    page.open()
    page.to_job()
    page.press('[data-key="vertex-1"]')
    where = "section[aria-label=subtasks] table"
    page.wait(lambda: page.all(where))
    assert cells(page, where, "Behind source") == ["0 ms", "2.5 s"]
    titles = page.texts(f"{where} th")
    assert "In" in titles
    assert "Out" not in titles  # a sink sends nothing on
    assert all(text.endswith(" %") and text.count("/") == 2 for text in cells(page, where, "Busy / blocked / idle"))
    label = page.script("return document.querySelector('.spent [role=img]').getAttribute('aria-label')")
    assert "busy" in label
    assert "back-pressured" in label
    assert "idle" in label
    functions = "section[aria-label=subtasks] h2 ~ h2 ~ .scroll table"
    assert "parser.seen" in cells(page, functions, "Metric")
    assert "<script>alert(1)</script> count" in cells(page, functions, "Operator")


def test_a_job_that_has_ended_says_when_and_leads_back_to_the_list(page: FakePage) -> None:
    changed(page, status_name="FINISHED", ended_ms=page.jobs.shown.started_ms + 60_000)
    page.open()
    page.to_job()
    titles = page.texts(".card span")
    assert "Duration" in titles
    assert "Ended" in titles
    assert "Running for" not in titles
    page.press("a.back")
    page.wait(lambda: page.all(f'[data-key="job-{page.job_id}"]'))


def test_a_job_that_has_ended_is_not_catching_up(page: FakePage) -> None:
    before = Lag(measure="pendingRecords", value=1.0, slack=1.0)
    view = page.jobs.shown
    recovery = RecoveryView(attempt=view.failures[0].attempt, failed_ms=1.0, running_ms=2_000.0, lag_before=before)
    changed(page, recoveries=(recovery,))
    page.open()
    page.to_job()
    page.tab("failures")
    page.wait(lambda: "catching up" in page.text)
    changed(page, status_name="CANCELED", ended_ms=view.started_ms + 60_000)
    page.wait(lambda: "had not caught up when the job ended" in page.text)
    assert "catching up" not in page.text


def test_failures_that_are_not_kept_are_counted(page: FakePage) -> None:
    changed(page, attempt=150)
    page.open()
    page.to_job()
    page.tab("failures")
    page.wait(lambda: "1 of 150 failures are kept" in page.text)


def test_settings_are_searched_and_those_that_were_set_are_told_apart(page: FakePage) -> None:
    page.open()
    page.to_job()
    page.tab("config")
    page.wait(lambda: len(page.texts("main tbody tr")) > 50)
    page.all("#given")[0].click()
    page.wait(lambda: "default" not in cells(page, "main table", "From"))
    page.all("#filter")[0].send_keys("RESTART")
    page.wait(lambda: len(page.texts("main tbody tr")) == 2)
    assert all("restart-strategy" in key for key in cells(page, "main table", "Key"))


def test_a_silent_job_is_listed_with_its_reason(page: FakePage, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"job_id": "f" * 32, "job_name": "frozen", "status": "?", "started_ms": 5, "error": "it does not answer"}
    monkeypatch.setattr(page.jobs, "summaries", lambda: [silent])
    page.open()
    page.wait(lambda: "it does not answer" in page.text)
    assert page.complaints == []


def test_a_phone_shows_the_graph_first_and_tables_as_cards(page: FakePage) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open()
        page.to_job()
        page.press('[data-key="vertex-1"]')
        page.wait(lambda: page.all("section[aria-label=subtasks]"))
        places = page.script(
            "return ['svg.graph', '.cards', 'section[aria-label=subtasks]'].map("
            "(what) => document.querySelector(what).getBoundingClientRect().top)"
        )
        assert places == sorted(places)
        assert page.script("return document.querySelector('svg.graph').getBoundingClientRect().right") <= 390
        for tab in ("", "checkpoints", "failures", "metrics", "config"):
            page.tab(tab)
            page.wait(lambda tab=tab: page.all(f"main .view.{tab or 'overview'}"))
            wide = (
                "return [...document.querySelectorAll('main table')].filter((t) => t.scrollWidth > innerWidth).length"
            )
            assert page.script(wide) == 0, tab
            assert page.script("return document.documentElement.scrollWidth") <= 390, tab
        label = "return getComputedStyle(document.querySelector('main td'), '::before').content"
        assert page.script(label) == '"Key"'
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_failed_checkpoints_stand_out_among_the_figures(page: FakePage) -> None:
    with_checkpoints(page, failed=3)
    page.open()
    page.to_job()
    page.wait(lambda: "3 failed" in page.text)
    colour = "return getComputedStyle(document.querySelector(arguments[0])).color"
    assert page.script(colour, ".card b .bad") != page.script(colour, ".card > span")
