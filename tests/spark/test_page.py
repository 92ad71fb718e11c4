"""The page in a browser against a real job on Spark: each view, and a failure and its recovery seen
live. With TIDEGATE_PICTURES set to a folder it leaves pictures there."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.spark.programs import running, wait_until
from tests.unit.web.conftest import browser  # noqa: F401
from tests.unit.web.page_kit import Page
from tidegate.web.registry import running_jobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PROGRAM = """
    import json, os, sys, time
    from tidegate.common import Configuration, WatermarkStrategy
    from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource
    from tidegate.datastream.state import ValueStateDescriptor
    from pyspark.sql import SparkSession

    class Count(KeyedProcessFunction):
        def open(self, runtime_context):
            self.count = runtime_context.get_state(ValueStateDescriptor("count"))
            self.orders = runtime_context.get_metrics_group().add_group("orders").counter("seen")

        def process_element(self, value, ctx):
            if os.path.exists("fail") and ctx.get_current_key() == 3:
                os.unlink("fail")
                raise ValueError(f"no amount in <order {value}>")
            self.orders.inc()
            n = (self.count.value() or 0) + 1
            self.count.update(n)
            yield value, n

    spark = (SparkSession.builder.master("local[3]").config("spark.ui.enabled", "true").config("spark.ui.port", "0")
             .config("spark.ui.showConsoleProgress", "false").getOrCreate())
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({
        "execution.checkpointing.interval": "300 ms",
        "execution.checkpointing.dir": os.path.abspath("checkpoints"),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "5",
        "restart-strategy.fixed-delay.delay": "1 s",
    }), spark=spark)
    env.set_parallelism(2)
    source = DataGeneratorSource(lambda i: i, None, records_per_second=4000.0)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda *_: int(time.time() * 1000))
    stream = env.from_source(source, times, "orders").map(lambda i: i * 7919 % 10_000).name("parse")
    counted = stream.key_by(lambda i: i % 100).process(Count()).name("count by customer").uid("count")
    counted.filter(lambda pair: False).name("only odd ones").print()
    client = env.execute_async("orders <b>per</b> customer")
    print("REPORT " + json.dumps(spark.sparkContext.uiWebUrl), flush=True)
    client.get_job_execution_result().result()
    print("REPORT " + json.dumps("done"), flush=True)
    spark.stop()
"""


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("TIDEGATE_PICTURES")
    if folder:
        height = page.script("return document.documentElement.scrollHeight")
        width = page.script("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 1500), "scale": 1}
        taken = page.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        import base64

        Path(folder, f"{name}.png").write_bytes(base64.b64decode(taken["data"]))


def colours(page: Page, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def test_a_job_is_seen_through_a_failure_and_its_recovery(
    browser: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    script = tmp_path / "orders.py"
    script.write_text(textwrap.dedent(PROGRAM))
    with running(script, tmp_path, XDG_STATE_HOME=str(state)) as program:
        program.wait_for_report(1, 120)
        wait_until(running_jobs, 30)
        (job,) = running_jobs()
        page = Page(browser, job.url, job.token, job.job_id)
        browser.get_log("browser")
        try:
            page.open()
            page.wait(lambda: "RUNNING" in page.text, 60)
            page.to_job()
            assert page.script("return document.title").startswith("orders <b>per</b> customer ")
            page.wait(lambda: "/s" in page.all("svg.graph")[0].text, 30)
            page.press('[data-key="vertex-1"]')
            page.wait(lambda: len(page.all("section[aria-label=subtasks] tbody tr")) >= 2)
            page.wait(lambda: "orders.seen" in page.text, 30)
            picture(page, "page-job")

            page.tab("checkpoints")
            page.wait(lambda: len(page.all("[data-key^=cp-]")) >= 6, 60)
            page.press("[data-key^=cp-]:not([data-key='x'])")
            page.wait(lambda: page.all("section[aria-label=checkpoint]"))
            colours(page, "dark")
            picture(page, "page-checkpoints")
            colours(page, "light")

            (tmp_path / "fail").touch()
            page.tab("failures")
            page.wait(lambda: "ValueError: no amount in <order" in page.text, 60)
            page.wait(lambda: "down for" in page.text, 60)
            assert "restart after 1 s" in page.text
            assert "count by customer, subtask" in page.text
            page.wait(lambda: "caught up after" in page.text, 60)
            picture(page, "page-failures")
            page.tab("checkpoints")
            page.wait(lambda: "Restored\n1" in page.text, 30)

            page.tab("metrics")
            page.wait(lambda: "watermarkLag" in page.text, 30)
            page.tab("config")
            page.wait(lambda: "restart-strategy.fixed-delay.attempts" in page.text)
            picture(page, "page-configuration")
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
            browser.get("about:blank")
