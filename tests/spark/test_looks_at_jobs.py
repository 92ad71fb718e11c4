"""Real jobs on Spark, looked at from outside while they run: by every command, as Prometheus does, by requests that are
made from the description of the REST calls, and a MICRO_BATCH job by its page too."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from prometheus_client.parser import text_string_to_metric_families

from tests.spark.micro_batch import program
from tests.spark.micro_batch.needed import needs_micro_batch
from tests.spark.recovery_kit import completed, counted, kill, until, with_checkpoints
from tests.unit.web.conftest import browser  # noqa: F401
from tests.unit.web.page_kit import Page
from tidegate.cli.main import main
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DiscardingSink
from tidegate.web.registry import JobRecord, running_jobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
MakeEnv = Callable[..., StreamExecutionEnvironment]


def record_of(client: Any) -> JobRecord:
    return next(job for job in running_jobs() if job.job_id == str(client.get_job_id()))


@contextmanager
def streaming(make_env: MakeEnv, folder: Path, name: str) -> Iterator[tuple[Any, JobRecord]]:
    env = with_checkpoints(make_env(2, {"pipeline.name": name}), folder / "checkpoints", interval_ms=200)
    counted(env, None, 2000.0).sink_to(DiscardingSink())
    client: Any = env.execute_async(name)
    try:
        until(lambda: completed(client), "a checkpoint")
        yield client, record_of(client)
    finally:
        client.cancel().result()


def scraped(job: JobRecord) -> dict[str, Any]:
    request = urllib.request.Request(f"{job.url}/metrics", headers={"Authorization": f"Bearer {job.token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


def subtasks_that_have_read(families: dict[str, Any]) -> set[str]:
    return {sample.labels["subtask"] for sample in families["tidegate_task_numRecordsIn"].samples}


def test_a_running_job_is_shown_by_every_command_and_to_prometheus(
    make_env: MakeEnv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tidegate(*arguments: str) -> str:
        assert main([*arguments]) == 0, capsys.readouterr()
        return capsys.readouterr().out

    watched: list[int] = []
    with streaming(make_env, tmp_path, "looked at") as (client, job):
        kill(client.workers()[0].pid, signal.SIGKILL)
        until(lambda: client.attempt() == 1 and client.get_job_status().result().name == "RUNNING", "a restart")
        done = client.view().checkpoints.completed
        until(lambda: client.view().checkpoints.completed > done, "a checkpoint after it")
        until(lambda: client.view().states and client.view().total("numRecordsIn", 1), "figures")

        assert "RUNNING" in tidegate("list")
        assert "restarts: 1" in tidegate("show", job.job_id)
        assert "COMPLETED" in tidegate("checkpoints", job.job_id)
        assert "attempt 0" in tidegate("exceptions", "looked at")
        assert "numRecordsIn = " in tidegate("metrics", job.job_id[:8])
        (state,) = json.loads(tidegate("state", "--json", job.job_id))["states"]
        assert (state["state"], state["key_types"]) == ("count", ["str"])
        for level in ((), ("--committed",)):
            (one,) = json.loads(tidegate("state", "--json", job.job_id, "count", "count", "0", *level))["answers"]
            assert one["key"]["text"] in ("0", "'0'")
        assert json.loads(tidegate("show", "--json", job.job_id))["attempt"] == 1
        view = json.loads(tidegate("checkpoints", "--json", job.job_id))
        assert view["counts"]["restored"] == 1

        until(lambda: subtasks_that_have_read(scraped(job)) == {"0", "1"}, "figures of both subtasks")
        families = scraped(job)
        assert {s.value for s in families["tidegate_job_running"].samples} == {1.0}
        assert {s.value for s in families["tidegate_job_numRestarts"].samples} == {1.0}
        assert families["tidegate_job_lastCheckpointCompletedTimestamp"].samples
        read = families["tidegate_task_numRecordsIn"].samples
        assert sum(s.value for s in read) > 0

        thread = threading.Thread(
            target=lambda: watched.append(main(["show", "--json", "--watch", "0.2", job.job_id])), daemon=True
        )
        thread.start()
        time.sleep(1.0)
    thread.join(60)
    assert watched == [0]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (lines[0]["status"], lines[-1]["status"]) == ("RUNNING", "CANCELED")
    assert "looked at" not in tidegate("list")
    assert "looked at" in tidegate("list", "--all")


@pytest.mark.parametrize("examples", [2, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_a_running_job_answers_as_it_is_described(make_env: MakeEnv, tmp_path: Path, examples: int) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    with streaming(make_env, tmp_path, "described") as (client, job):
        headers = {"Authorization": f"Bearer {job.token}"}
        schema = schemathesis.openapi.from_url(f"{job.url}/openapi.json", headers=headers)
        there = {"job": job.job_id, "vertex": "1", "operator": "count", "state": "count"}
        asked = 0
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.method != "get" or operation.path.endswith("/events"):
                continue

            @settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def check(case: Any) -> None:
                nonlocal asked
                asked += 1
                latest = client.view().checkpoints.latest_completed.checkpoint_id
                if isinstance(case.path_parameters, dict) and asked % 3:
                    real = there | {"checkpoint": str(latest)}
                    case.path_parameters.update({k: real[k] for k in case.path_parameters if k in real})
                case.call_and_validate(base_url=job.url, headers=headers, timeout=60)

            check()
        assert asked >= 14 * examples
        done = client.view().checkpoints.completed
        until(lambda: client.view().checkpoints.completed > done, "the job goes on")
        assert client.attempt() == 0


@needs_micro_batch
def test_a_micro_batch_job_is_shown_by_page_rest_and_commands(
    browser: Any,  # noqa: F811
    make_env: MakeEnv,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings_ = program.settings(tmp_path, 500) | {"pipeline.name": "small batches"}
    env = make_env(2, settings_)
    program.build(env, tmp_path, None, program.CountPerKey())
    client: Any = env.execute_async("small batches")
    try:
        until(lambda: client.view().checkpoints.completed >= 2, "two batches")
        job = record_of(client)
        page = Page(browser, job.url, job.token, job.job_id)
        browser.get_log("browser")
        page.open()
        page.wait(lambda: "MICRO_BATCH" in page.text, 60)
        page.to_job()
        page.wait(lambda: len(page.all("svg.graph .vertex")) == 2, 60)
        page.tab("checkpoints")
        page.wait(lambda: page.all("[data-key^=cp-]"), 60)
        page.tab("state")
        page.wait(lambda: "count" in page.text and "50" in page.text, 60)
        assert page.complaints == []

        assert main(["show", "--json", job.job_id]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["mode"], shown["status"], len(shown["vertices"])) == ("MICRO_BATCH", "RUNNING", 2)
        assert main(["show", job.job_id]) == 0
        assert "batches: " in capsys.readouterr().out
        assert main(["checkpoints", "--json", job.job_id]) == 0
        assert json.loads(capsys.readouterr().out)["counts"]["completed"] >= 2
        assert main(["state", "--json", job.job_id, "count", "count", "7"]) == 0
        answer = json.loads(capsys.readouterr().out)
        (one,) = answer["answers"]
        assert (answer["level"], one["found"]) == ("committed", True)
        families = scraped(job)
        assert families["tidegate_job_lastCheckpointDuration"].samples
        assert sum(s.value for s in families["tidegate_task_numRecordsIn"].samples) > 0
    finally:
        client.cancel().result()
        browser.get("about:blank")
