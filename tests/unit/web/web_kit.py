"""A job to show, without Spark, and a fake of what a server asks of it."""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import Any

import jsonschema
import msgspec

from tests.unit.taskmanager.small_jobs import environment, ticks
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.typeinfo import TypeInformation
from tidegate.datastream import KeyedProcessFunction, RuntimeContext
from tidegate.datastream.connectors import CollectSink
from tidegate.jobmanager.job_publisher import JobPublisher, MasterPublisher
from tidegate.jobmanager.job_view import JobView
from tidegate.jobmanager.live_state import StateAnswer, StateLevel
from tidegate.testing.in_process_job import InProcessJob
from tidegate.web import documents, live_state
from tidegate.web.answer_schemas import ANSWERS, COMPONENTS
from tidegate.web.jobs import no_such_job
from tidegate.web.live_state import StateQuestion

MARKUP = "<script>alert(1)</script>"


class Fragile(KeyedProcessFunction):
    """Counts, and fails once, at its 50th record of the first attempt."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_metrics_group().add_group("parser").counter("seen")
        self.first = runtime_context.get_attempt_number() == 0
        self.count = 0

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self.seen.inc()
        self.count += 1
        if self.first and self.count > 50:
            raise ValueError(f"{MARKUP} in a record")
        yield value


@cache
def sample_view(name: str = MARKUP, parallelism: int = 2) -> JobView:
    """A job that has failed once, was restored, and has taken checkpoints; its name and its operators are markup."""
    env = environment(
        {
            "pipeline.name": name,
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "10 ms",
            "spark.hadoop.fs.s3a.secret.key": "hunter2",
            "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": "hunter2",
            "spark.executor.extraJavaOptions": "-Dlake.password=hunter2",
            "execution.checkpointing.savepoint-dir": "s3://ME:hunter2@bucket/there?region=here&secret_key=hunter2",
        },
        parallelism,
    )
    env.enable_checkpointing(100)
    stream = ticks(env, burst=40, every_ms=10.0).key_by(lambda i: i % 7)
    stream.process(Fragile()).name(f"{MARKUP} count").uid("count").sink_to(CollectSink()).name("out")
    with InProcessJob(env) as job:
        publisher = JobPublisher(job.graph, "STREAMING", job.graph.num_slots, job.clock.now, job.prepared.configuration)
        published = MasterPublisher(publisher, job.graph, job.master)
        told = 0
        for _ in range(60):
            job.advance(50)
            published.after_step(job.instructions[told:], job.clock.now)
            told = len(job.instructions)
        published.publish(job.clock.now)
    assert publisher.view.attempt == 1
    return publisher.view


def check_described(route: str, document: Any) -> None:
    """Whether what a call has answered is what its description says. Raises ValidationError."""
    schema = {**ANSWERS[route], "components": {"schemas": COMPONENTS}}
    jsonschema.Draft202012Validator(schema).validate(document)


class FakeState:
    """As `StateHandle`: a key has, in turn, a value, nothing, a value in each of two windows, what JSON cannot say."""

    operator, state = "count", "seen"
    key_type: TypeInformation | None = None
    key_types = ("str",)

    def get_many(self, keys: list[Any], *, level: StateLevel, window: Any) -> list[StateAnswer]:
        live = level is StateLevel.LIVE
        where: dict[str, Any] = {"attempt": 1, "watermark": 1_000} if live else {"checkpoint": 7}
        made: list[dict[str, Any]] = [
            {"value": [1, None, MARKUP], "found": True, "window": window},
            {"value": None, "found": False},
            {"value": {(0, 10): 2, (10, 20): {3}}, "found": True, "by_window": True},
            {"value": float("nan"), "found": True},
        ]
        return [StateAnswer(key=key, level=level, **where, **made[i % len(made)]) for i, key in enumerate(keys)]

    def scan(self, limit: int, *, level: StateLevel) -> list[StateAnswer]:
        return self.get_many(["a", (1, "b")][:limit], level=level, window=(0, 10))


class FakeJobs:
    """`tidegate.web.jobs.Jobs` of one job; calls that change it are kept."""

    def __init__(self, view: JobView | None = None, job_id: str = "abcd" * 8, name: str = "my job") -> None:
        self.shown = view or msgspec.structs.replace(sample_view(), job_id=job_id, name=name)
        self.calls: list[Any] = []
        self.over = threading.Event()

    def summaries(self) -> list[dict[str, Any]]:
        return [documents.summary(self.shown, time.time() * 1000)]

    def running(self) -> list[JobView]:
        return [self.shown] if self.shown.ended_ms is None else []

    def document(self, job_id: str, path: str) -> bytes | None:
        return None

    def view(self, job_id: str) -> JobView:
        if job_id != self.shown.job_id:
            raise no_such_job(job_id)
        return self.shown

    def savepoint(self, job_id: str, directory: str | None) -> str:
        self.view(job_id)
        self.calls.append(("savepoint", directory))
        if directory is None:
            raise SnapshotError("no folder was given")
        return f"{directory}/savepoint-1"

    def stop(self, job_id: str, drain: bool, directory: str | None) -> str:
        self.view(job_id)
        self.calls.append(("stop", drain, directory))
        return "there"

    def read_state(self, job_id: str, operator: str, state: str, question: StateQuestion) -> dict[str, Any]:
        self.view(job_id)
        if not 1 <= question.limit <= 1_000:
            raise ConfigurationError("as a real job refuses it")
        handle: Any = FakeState()
        found = live_state.answer(handle, question)
        self.calls.append(("state", operator, state, question))
        return found

    def cancel(self, job_id: str) -> str:
        self.view(job_id)
        self.calls.append(("cancel",))
        self.over.wait(10)
        return "CANCELED"
