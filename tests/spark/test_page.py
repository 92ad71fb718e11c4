"""The page in a browser against a real job on Spark: reached by a link of Spark's own page, each view, a failure and
its recovery seen live, keys looked up, a savepoint and a stop by button; names that are markup. The pictures of the
docs are taken by `page_pictures.py`."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.programs import Program, running, wait_until
from tests.unit.web.conftest import browser  # noqa: F401
from tests.unit.web.page_kit import Page
from tidegate.web.all_jobs import AllJobs
from tidegate.web.history import History
from tidegate.web.registry import running_jobs
from tidegate.web.rest import RestServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PROGRAM = """
    import json, os, sys, time
    from tidegate.common import Configuration, Types, WatermarkStrategy
    from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource
    from tidegate.datastream.state import ValueStateDescriptor
    from pyspark.sql import SparkSession

    class Count(KeyedProcessFunction):
        def open(self, runtime_context):
            card = ValueStateDescriptor("card", Types.STRING())
            card.hide_from_queries()
            self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
            self.card = runtime_context.get_state(card)
            self.orders = runtime_context.get_metrics_group().add_group("orders").counter("seen")

        def process_element(self, value, ctx):
            if os.path.exists("fail") and ctx.get_current_key() == 'customer 3':
                os.unlink("fail")
                raise ValueError(f"no amount in <order {value}>")
            self.orders.inc()
            n = (self.count.value() or 0) + 1
            self.count.update(n)
            if n == 1:
                self.card.update("4111 1111")
            yield value, n

    spark = (SparkSession.builder.master("local[{slots}]").config("spark.ui.enabled", "true")
             .config("spark.ui.port", "0").config("spark.ui.showConsoleProgress", "false").getOrCreate())
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({
        "execution.checkpointing.interval": "300 ms",
        "execution.checkpointing.dir": os.path.abspath("checkpoints"),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "5",
        "restart-strategy.fixed-delay.delay": "1 s",
        "tidegate.slot.start-timeout": "10 min",
        "heartbeat.timeout": "60 s",
    }), spark=spark)
    env.set_parallelism({parallelism})
    source = DataGeneratorSource(lambda i: i, None, records_per_second=4000.0)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda *_: int(time.time() * 1000))
    stream = env.from_source(source, times, "orders").map(lambda i: i * 7919 % 10_000).name("parse")
    keyed = stream.key_by(lambda i: f"customer {i % 100}", Types.STRING())
    counted = keyed.process(Count()).name("count by <u>customer</u>").uid("count")
    counted.filter(lambda pair: False).name("only odd ones").print()
    client = env.execute_async("orders per <u>customer</u> & day <script>alert(1)</script>")
    print("REPORT " + json.dumps(spark.sparkContext.uiWebUrl), flush=True)
    client.get_job_execution_result().result()
    print("REPORT " + json.dumps("done"), flush=True)
    spark.stop()
"""

BATCH_PROGRAM = """
    import json, os, time
    from tidegate.common import Types
    from tidegate.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
    from tidegate.datastream.connectors import CollectSink

    def patient(pair):
        end = time.monotonic() + 120  # the page is looked at meanwhile
        while pair[0] == "customer 5" and not os.path.exists(go) and time.monotonic() < end:
            time.sleep(0.05)
        return pair

    def revenue(year):
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_runtime_mode(RuntimeExecutionMode.BATCH).set_parallelism(2)
        orders = env.from_collection([(f"customer {i % 20}", i) for i in range(4_000)]).name("orders")
        parsed = orders.map(lambda pair: pair).name("parse")
        summed = parsed.key_by(lambda pair: pair[0], Types.STRING()).reduce(lambda a, b: (a[0], a[1] + b[1]))
        looked_up = summed.name("sum by customer").map(patient if year == 2026 else lambda pair: pair)
        looked_up.name("look up").sink_to(CollectSink())
        return env.execute_async(f"revenue of {year}")

    go = os.path.abspath("go")
    revenue(2025).get_job_execution_result().result()
    client = revenue(2026)
    print("REPORT " + json.dumps("runs"), flush=True)
    client.get_job_execution_result().result()
    print("REPORT " + json.dumps("done"), flush=True)
"""


@contextmanager
def on_a_phone(page: Page) -> Iterator[None]:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@contextmanager
def watched_job(browser: Any, folder: Path, parallelism: int) -> Iterator[tuple[Page, str, Program]]:  # noqa: F811
    """A page that is logged in to a job that runs, the address of Spark's own page, and the job's program."""
    script = folder / "orders.py"
    program = PROGRAM.replace("{slots}", str(parallelism + 1)).replace("{parallelism}", str(parallelism))
    script.write_text(textwrap.dedent(program))
    with running(script, folder, XDG_STATE_HOME=str(folder / "state")) as started:
        spark = started.wait_for_report(1)
        wait_until(running_jobs, 120)
        (job,) = running_jobs()
        page = Page(browser, job.url, job.token, job.job_id)
        browser.get_log("browser")
        try:
            page.open()
            page.wait(lambda: "RUNNING" in page.text, 120 if parallelism < 10 else 500)
            yield page, spark, started
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
            browser.get("about:blank")


NAME = "orders per <u>customer</u> & day <script>alert(1)</script>"


def press_and_confirm(page: Page, button: str, folder: Path) -> None:
    page.press(f'[data-key="{button}"]')
    page.wait(lambda: page.all("#question[open]"))
    page.all("#folder")[0].send_keys(str(folder))
    page.all("#question-yes")[0].click()


def test_a_job_is_seen_through_a_failure_and_its_recovery_until_it_is_stopped(
    browser: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with watched_job(browser, tmp_path, 2) as (page, spark, program):
        assert page.all("main script") == page.all("main u") == []
        browser.get(f"{spark}/jobs/")
        (link,) = page.wait(lambda: [a for a in page.all("a") if a.text == page.url])
        assert f"{NAME} (attempt 0) · " in page.text
        link.click()
        page.wait(lambda: page.all("svg.graph .vertex"))
        assert page.script("return document.title").startswith(f"{NAME} ")
        assert page.texts("h1") == [NAME]
        page.wait(lambda: "/s" in "".join(page.texts("svg.graph")), 120)
        page.press('[data-key="vertex-1"]')
        page.wait(lambda: len(page.all("section[aria-label=subtasks] tbody tr")) >= 2)
        page.wait(lambda: "orders.seen" in page.text, 120)

        page.tab("checkpoints")
        page.wait(lambda: len(page.all("[data-key^=cp-]")) >= 6, 60)
        page.press("[data-key^=cp-]")
        page.wait(lambda: page.all("section[aria-label=checkpoint]"))

        page.tab("state")
        page.wait(lambda: "hidden" in page.text, 120)
        page.type("state-key", "customer 3")
        page.press('[data-key="state-look"]')
        page.wait(lambda: "watermark" in page.script("return document.getElementById('state-found').innerText"))
        assert page.texts("#state-found td")[0] == "customer 3"

        press_and_confirm(page, "savepoint", tmp_path / "savepoints")
        page.wait(lambda: "Savepoint " in page.script("return document.getElementById('message').innerText"), 60)
        (savepoint,) = (tmp_path / "savepoints").iterdir()
        assert (savepoint / "_metadata").exists()

        (tmp_path / "fail").touch()
        page.tab("failures")
        page.wait(lambda: "ValueError: no amount in <order" in page.text, 60)
        page.wait(lambda: "down for" in page.text, 60)
        assert "restart after 1 s" in page.text
        assert "count by <u>customer</u>, subtask" in page.text
        page.wait(lambda: "caught up after" in page.text, 60)
        page.tab("checkpoints")
        page.wait(lambda: "Restored\n1" in page.text, 120)

        page.tab("metrics")
        page.wait(lambda: "watermarkLag" in page.text, 120)
        page.tab("config")
        page.wait(lambda: "restart-strategy.fixed-delay.attempts" in page.text)
        with on_a_phone(page):
            page.tab("")
            page.wait(lambda: "/s" in "".join(page.texts("svg.graph")), 120)

        for tab in ("", "checkpoints", "failures", "state", "metrics", "config"):
            page.tab(tab)
            page.wait(lambda tab=tab: page.all(f"main .view.{tab or 'overview'}"))
            assert page.all("main script") == page.all("main u") == [], "names are text"

        press_and_confirm(page, "stop", tmp_path / "savepoints")
        page.wait(lambda: "the job has ended" in page.text, 60)
        page.wait(lambda: "FINISHED" in page.text)
        page.wait(lambda: "Stopped. Savepoint " in page.text)
        assert page.all('[data-key="cancel"]') == []
        assert program.wait_for_report(2) == "done"
        assert AllJobs(History()).view(page.job_id).status_name == "FINISHED"


def test_a_batch_job_is_seen_by_its_stages_and_all_jobs_in_one_list(
    browser: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    script = tmp_path / "history.py"
    script.write_text(textwrap.dedent(BATCH_PROGRAM))
    with running(script, tmp_path, XDG_STATE_HOME=str(tmp_path / "state")) as program:
        program.wait_for_report(1)
        wait_until(running_jobs, 60)
        (job,) = running_jobs()
        server = RestServer(AllJobs(History()))
        page = Page(browser, server.start(), server.token, job.job_id)
        try:
            page.open()
            page.wait(lambda: {"RUNNING", "FINISHED"} <= {text.upper() for text in page.texts("td .badge")}, 120)
            assert {"revenue of 2025", "revenue of 2026"} <= set(page.texts("td a"))
            page.to_job()
            page.wait(lambda: len(page.all("progress")) >= 2, 60)
            assert "Spark's stages" in page.text
            assert page.texts("nav.tabs a")[0] == "Overview"
            page.wait(lambda: "1 of 2" in page.text, 60)  # one subtask waits for us
            (tmp_path / "go").touch()
            page.wait(lambda: "FINISHED" in page.text and "Running for" not in page.text, 120)
            assert program.wait_for_report(2) == "done"
        finally:
            browser.get("about:blank")
            server.close()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_64_subtasks_on_spark(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with watched_job(browser, tmp_path, 64) as (page, _, _):
        page.to_job()
        page.press('[data-key="vertex-1"]')
        page.wait(lambda: len(page.all("section[aria-label=subtasks] tbody tr")) >= 64, 120)
        page.wait(lambda: "orders.seen" in page.text, 120)
        page.tab("checkpoints")
        page.wait(lambda: page.all("[data-key^=cp-]"), 300)
        page.press("[data-key^=cp-]")
        page.wait(lambda: len(page.all("section[aria-label=checkpoint] tbody tr")) >= 64, 60)
        page.tab("state")
        page.wait(lambda: "hidden" in page.text, 60)
        page.type("state-key", "customer 3")
        page.press('[data-key="state-look"]')
        page.wait(lambda: page.all("#state-found td"), 60)
        assert page.complaints == []
        page.press('[data-key="cancel"]')
        page.all("#question-yes")[0].click()
        page.wait(lambda: "CANCELED" in page.text, 120)


MANY_CHECKPOINTS = """
    from tidegate.common import Configuration, Types, WatermarkStrategy
    from tidegate.datastream import StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource, DiscardingSink

    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({
        "execution.checkpointing.interval": "1 ms",
    }))
    source = DataGeneratorSource(lambda i: i, None, records_per_second=100.0)
    numbers = env.set_parallelism(1).from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    numbers.key_by(lambda i: i % 10, Types.LONG()).reduce(max).sink_to(DiscardingSink())
    env.execute("many checkpoints")
"""


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_more_than_10_000_checkpoints_of_a_real_job_leave_page_and_driver_as_large_as_some_hundreds_do(
    browser: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    script = tmp_path / "many.py"
    script.write_text(textwrap.dedent(MANY_CHECKPOINTS))
    with running(script, tmp_path, XDG_STATE_HOME=str(tmp_path / "state")) as program:
        wait_until(running_jobs, 120)
        (job,) = running_jobs()
        driver = psutil.Process(program.process.pid)
        page = Page(browser, job.url, job.token, job.job_id)

        def fetched(what: str) -> Any:
            """As the page asks."""
            return page.script(f"return fetch('/v1/jobs/{job.job_id}/{what}').then((answer) => answer.json())")

        def completed() -> int:
            time.sleep(1.0)  # asking takes time from the job
            return int(fetched("checkpoints")["counts"]["completed"])

        def sizes() -> tuple[int, int, int]:
            """Of the driver, of what is answered, of the page."""
            elements = page.script("return document.querySelectorAll('*').length")
            return driver.memory_info().rss, len(json.dumps(fetched("view"))), elements

        try:
            page.open()
            page.to_job()
            page.tab("checkpoints")
            page.wait(lambda: completed() > 500, 300)
            page.wait(lambda: len(page.all("[data-key^=cp-]")) >= 90, 60)
            before = sizes()
            page.wait(lambda: completed() > 10_000, 1200)
            page.browser.get(job.url)  # opened anew
            page.to_job()
            page.tab("checkpoints")
            page.wait(lambda: len(page.all("[data-key^=cp-]")) >= 90, 60)
            after = sizes()
            print(f"driver {before[0] / 1e6:.0f} to {after[0] / 1e6:.0f} MB, view {before[1]} to {after[1]} bytes")
            assert len(page.all("[data-key^=cp-]")) <= 100
            assert after[0] < before[0] + 30e6
            assert after[1] < before[1] * 1.3
            assert after[2] < before[2] * 1.3
            assert page.complaints == []
        finally:
            browser.get("about:blank")
