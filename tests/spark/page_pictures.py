"""Takes the pictures of the page for the docs: `python -m tests.spark.page_pictures docs/images`, some two minutes.

Two programs run as a user would start them. One has a STREAMING job that is loaded: a slow operator on one of two
branches holds up its source. A checkpoint of it is held up until it fails, a record makes it fail, and a checkpoint is
damaged so that it has to fall back to an older one. The other program fills the list: a BATCH job that has finished, a
STREAMING job that has failed, and one in each of the modes MICRO_BATCH and BATCH that run. A person looks at the
pictures before they are committed.
"""

from __future__ import annotations

import argparse
import base64
import os
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.spark.programs import running, wait_until
from tests.unit.web.page_kit import Page, headless_browser
from tidegate.web.all_jobs import AllJobs
from tidegate.web.history import History
from tidegate.web.registry import running_jobs
from tidegate.web.rest import RestServer

LAUNCH = """
    exec(compile(open("{name}").read(), "{name}", "exec"))  # so that tracebacks have its name, and no folder
"""

SHOP = """
    import os, time
    from tidegate.common import Configuration, Types, WatermarkStrategy
    from tidegate.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource, DiscardingSink
    from tidegate.datastream.state import ValueStateDescriptor

    class Count(KeyedProcessFunction):
        def open(self, runtime_context):
            card = ValueStateDescriptor("card", Types.STRING())
            card.hide_from_queries()
            self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
            self.card = runtime_context.get_state(card)
            self.orders = runtime_context.get_metrics_group().add_group("orders").counter("seen")

        def process_element(self, order, ctx):
            if os.path.exists("fail") and ctx.get_current_key() == "customer 3":
                os.unlink("fail")
                raise ValueError(f"no amount in <order {order}>")
            self.orders.inc()
            n = (self.count.value() or 0) + 1
            self.count.update(n)
            if n == 1:
                self.card.update("4111 1111 1111 1111")
            yield ctx.get_current_key(), n

    class Score(MapFunction):
        def map(self, order):
            while os.path.exists("hang"):
                time.sleep(0.05)
            time.sleep(0.0008)
            return order, order % 97

    class Latest(KeyedProcessFunction):
        def open(self, runtime_context):
            self.latest = runtime_context.get_state(ValueStateDescriptor("score", Types.LONG()))

        def process_element(self, scored, ctx):
            self.latest.update(scored[1])
            yield scored

    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({
        "spark.master": "local[4]",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.timeout": "3 s",
        "execution.checkpointing.tolerable-failed-checkpoints": "100",
        "execution.checkpointing.num-retained": "3",
        "execution.checkpointing.incremental": "false",
        "execution.checkpointing.dir": os.path.abspath("checkpoints"),
        "tidegate.checkpoint.history-size": "14",
        "tidegate.network.batch-size": "50",
        "tidegate.network.credits-per-channel": "2",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "50",
        "restart-strategy.fixed-delay.delay": "2 s",
    }))
    env.set_parallelism(2)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda *_: int(time.time() * 1000))
    source = DataGeneratorSource(lambda i: i, None, records_per_second=10_000.0)
    orders = env.from_source(source, times, "orders").map(lambda i: i * 7919 % 100_000).name("parse")
    counted = orders.key_by(lambda i: f"customer {i % 4000}", Types.STRING()).process(Count())
    counted.name("count by customer").uid("count").sink_to(DiscardingSink()).name("totals")
    scored = orders.rebalance().map(Score()).name("score for fraud").uid("score").slot_sharing_group("scoring")
    latest = scored.key_by(lambda pair: f"customer {pair[0] % 4000}", Types.STRING()).process(Latest())
    latest.name("latest score").uid("latest").slot_sharing_group("default").sink_to(DiscardingSink()).name("alerts")
    env.execute("orders per customer")
"""

OTHERS = """
    import os, time
    from tidegate.common import Configuration, Types, WatermarkStrategy
    from tidegate.common.errors import JobExecutionError
    from tidegate.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
    from tidegate.datastream.connectors import CollectSink, DataGeneratorSource, DiscardingSink

    def environment(**settings):
        settings = {"spark.master": "local[4]"} | {key.replace("__", "."): value for key, value in settings.items()}
        return StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))

    def patient(pair):
        end = time.monotonic() + 300  # the page is looked at meanwhile
        while pair[0] == "customer 5" and not os.path.exists("go") and time.monotonic() < end:
            time.sleep(0.05)
        return pair

    def revenue(year):
        env = environment().set_runtime_mode(RuntimeExecutionMode.BATCH).set_parallelism(2)
        orders = env.from_collection([(f"customer {i % 20}", i) for i in range(40_000)]).name("orders")
        parsed = orders.map(lambda pair: pair).name("parse")
        summed = parsed.key_by(lambda pair: pair[0], Types.STRING()).reduce(lambda a, b: (a[0], a[1] + b[1]))
        looked_up = summed.name("sum by customer").map(patient if year == 2026 else lambda pair: pair)
        looked_up.name("look up").sink_to(CollectSink())
        return env.execute_async(f"revenue of {year}")

    def amount(row):
        if row == 4711:
            raise ValueError(f"no amount in invoice {row}")
        return row

    revenue(2025).get_job_execution_result().result()

    invoices = environment().set_parallelism(1)
    rows = DataGeneratorSource(lambda i: i, None, records_per_second=4000.0)
    read = invoices.from_source(rows, WatermarkStrategy.no_watermarks(), "invoices").map(amount).name("amount")
    read.sink_to(DiscardingSink())
    try:
        invoices.execute("import of invoices")
    except JobExecutionError:
        pass

    visits = environment(**{"execution.runtime-mode": "MICRO_BATCH", "tidegate.micro-batch.max-records": "3000",
                            "tidegate.micro-batch.checkpoint-location": os.path.abspath("location")}).set_parallelism(1)
    source = DataGeneratorSource(lambda i: i, None, records_per_second=1500.0)
    clicks = visits.from_source(source, WatermarkStrategy.no_watermarks(), "clicks").uid("clicks")
    pages = clicks.key_by(lambda i: i % 50, Types.LONG()).reduce(max).name("latest click").uid("latest")
    pages.sink_to(DiscardingSink())
    micro = visits.execute_async("visits of pages")
    while micro.view().checkpoints.completed < 3:
        time.sleep(0.1)
    last = revenue(2026)
    print("REPORT true", flush=True)
    last.get_job_execution_result().result()
    micro.cancel().result()
    print("REPORT true", flush=True)
"""


class Pictures:
    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self._folder = folder

    def take(self, name: str, most: int = 2000, above: str = "") -> None:
        """Of the page from its top, without what is below; `above`: down to the title that says this."""
        page = self.page
        page.script("scrollTo(0, 0)")
        height, width = page.script(
            "const end = [...document.querySelectorAll('main h2')].find((e) => e.innerText === arguments[0]);"
            "const bottom = end ? end.getBoundingClientRect().top - 14"
            " : document.querySelector('main').getBoundingClientRect().bottom;"
            "return [bottom, innerWidth]",
            above,
        )
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, most), "scale": 1}
        taken = page.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        (self._folder / f"{name}.png").write_bytes(base64.b64decode(taken["data"]))
        print(f"{name}.png: {width} x {min(height, most):.0f}", flush=True)

    def colours(self, scheme: str) -> None:
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    @contextmanager
    def screen(self, width: int, height: int, mobile: bool = False) -> Iterator[None]:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            yield
        finally:
            self.page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir()
    (folder / name).write_text(textwrap.dedent(text))
    launch = folder / "launch.py"
    launch.write_text(textwrap.dedent(LAUNCH.replace("{name}", name)))
    return launch


def go_to(page: Page, name: str) -> str:
    """The id of the job whose page is shown then."""
    page.browser.get(f"{page.url}/#/")
    wanted = f"const a = [...document.querySelectorAll('td a')].find((a) => a.innerText === {name!r});"
    page.wait(lambda: page.script(f"{wanted} return Boolean(a)"), 120)
    page.script(f"{wanted} a.click()")
    page.wait(lambda: page.all("svg.graph .vertex"), 60)
    return str(page.script("return location.hash.split('/')[2]"))


def damage_the_newest(checkpoints: Path) -> None:
    """What it has written of its own: neither metadata, which the driver has in mind, nor what others build upon."""
    newest = max(int(path.parent.name.removeprefix("chk-")) for path in checkpoints.glob("*/chk-*/_metadata"))
    files = [*checkpoints.glob(f"*/chk-{newest}/*.state"), *checkpoints.glob(f"*/shared/c{newest}-*")]
    assert files, "its state is in files"
    for file in files:
        file.write_bytes(b"rotten")


def of_the_list(pictures: Pictures, others: Path) -> None:
    page = pictures.page
    shown = ("STREAMING", "MICRO_BATCH", "BATCH", "RUNNING", "FINISHED", "FAILED")
    rates = "return [...document.querySelectorAll('tbody tr')].filter((r) => /\\d\\/s/.test(r.innerText)).length"
    page.wait(lambda: all(word in page.text for word in shown) and page.script(rates) >= 2, 180)
    pictures.take("page-jobs")
    go_to(page, "revenue of 2026")
    page.wait(lambda: len(page.all("progress")) >= 2 and "1 of 2" in page.text, 60)  # one subtask waits for us
    pictures.take("page-batch")
    (others / "go").touch()


def of_a_job(pictures: Pictures, shop: Path) -> None:
    page = pictures.page
    go_to(page, "orders per customer")
    page.wait(lambda: page.all(".vertex.busy") and page.all(".vertex.blocked") and "/s" in page.text, 120)
    page.press(".vertex.busy")
    page.wait(lambda: len(page.all("section[aria-label=subtasks] tbody tr")) >= 2)
    settled(page, lambda: page.all(".vertex.busy") and page.all(".vertex.blocked"))
    with pictures.screen(1440, 900):
        page.wait(lambda: page.script("return innerWidth") == 1440)
        pictures.take("page-job", above="Status")

    page.tab("state")
    page.wait(lambda: "hidden" in page.text, 60)
    page.type("state-key", "customer 3")
    page.press('[data-key="state-look"]')
    page.wait(lambda: page.texts("#state-found td"), 30)
    pictures.take("page-state")

    page.tab("checkpoints")
    (shop / "hang").touch()
    page.wait(lambda: "checkpoint expired" in page.text or "FAILED" in page.texts("tbody .badge"), 60)
    (shop / "hang").unlink()
    failed = "[...document.querySelectorAll('tbody tr')].find((row) => /FAILED/.test(row.innerText))"
    page.script(f"{failed}.querySelector('button').click()")
    page.wait(lambda: "no answer from subtask" in page.text, 30)
    pictures.colours("dark")
    pictures.take("page-checkpoint", above="History")
    pictures.colours("light")

    go_to(page, "orders per customer")  # by the list: no checkpoint is chosen then
    (shop / "fail").touch()
    page.tab("failures")
    page.wait(lambda: "caught up after" in page.text, 120)
    pictures.take("page-failures", 900)

    page.tab("checkpoints")
    (shop / "fail").touch()
    page.wait(lambda: not (shop / "fail").exists(), 60)
    damage_the_newest(shop / "checkpoints")
    page.wait(lambda: "fell back: checkpoint" in page.text, 60)
    (shop / "hang").touch()  # another that fails: those before are not in the history for long
    page.wait(lambda: "FAILED" in page.texts("tbody .badge"), 60)
    (shop / "hang").unlink()
    settled(page, lambda: page.texts("tbody .badge")[:3].count("COMPLETED") >= 2)
    pictures.colours("dark")
    with pictures.screen(1440, 900):
        pictures.take("page-checkpoints", above="Configuration")
    with pictures.screen(390, 800, mobile=True):
        page.tab("")
        page.wait(lambda: page.all(".vertex.busy") and "/s" in "".join(page.texts("svg.graph")), 60)
        pictures.take("page-phone", 1100)
    pictures.colours("light")


def settled(page: Page, condition: Callable[[], object]) -> None:
    """Rates and shares are over the last seconds: the first ones after a change are of both."""
    seen = 0

    def again() -> bool:
        nonlocal seen
        seen = seen + 1 if condition() else 0
        return seen >= 60

    page.wait(again, 90)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.page_pictures")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory(prefix="tidegate-pictures-") as made:
        home = Path(made)
        state = os.environ["XDG_STATE_HOME"] = str(home / "state")
        browser = headless_browser(home / "browser")
        try:
            shop, others = home / "shop", home / "others"
            launched = program(others, "others.py", OTHERS)
            with running(launched, others, XDG_STATE_HOME=state) as second:
                second.wait_for_report(1)
                with running(program(shop, "orders.py", SHOP), shop, XDG_STATE_HOME=state):
                    wait_until(lambda: len(running_jobs()) >= 3, 120)
                    server = RestServer(AllJobs(History()))
                    page = Page(browser, server.start(), server.token, "")
                    pictures = Pictures(page, folder)
                    page.open()
                    of_the_list(pictures, others)
                    second.wait_for_report(2)
                    of_a_job(pictures, shop)
                    server.close()
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
