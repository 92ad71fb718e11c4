"""Micro-batches without Spark: a small engine runs the subtasks of a job one after the other, hands their rows on in
any order, and keeps their state, as Spark would. A batch can be made to fail at any row: its state is as before."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle

from tidegate.common.configuration import Configuration
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.jobmanager.preparation import runtime_settings
from tidegate.jobmanager.state_assignment import adopt_max_parallelism
from tidegate.spark.batch.commits import commit_all
from tidegate.spark.batch.host import BatchHost
from tidegate.spark.micro_batch.exchange import ELEMENTS
from tidegate.spark.micro_batch.looks import Look
from tidegate.spark.micro_batch.places import DRIVER
from tidegate.spark.micro_batch.plan import Limits, MicroBatchPlan, Tick, plan_job
from tidegate.spark.micro_batch.prepared import load_committables
from tidegate.spark.micro_batch.report import BatchReport
from tidegate.spark.micro_batch.savepoint_storage import SavepointStorage
from tidegate.spark.micro_batch.savepoints import complete_savepoint
from tidegate.spark.micro_batch.task import MicroBatchTask
from tidegate.spark.start_points import initial_point, start_options
from tidegate.testing.clock import ManualClock
from tidegate.testing.in_process_job import graph_of

MOST_BATCHES = 300


class KilledError(Exception):
    """The worker of a subtask is gone."""


class Memory:
    """Of one subtask. `reads`, `writes` and `bytes` (written) are of buckets."""

    def __init__(self) -> None:
        self.blob: bytes | None = None
        self.buckets: dict[int, bytes] = {}
        self.reads = self.writes = self.bytes = 0

    def own(self) -> bytes | None:
        return self.blob

    def keep_own(self, blob: bytes) -> None:
        self.blob = blob

    def bucket(self, number: int) -> bytes | None:
        self.reads += 1
        return self.buckets.get(number)

    def all_buckets(self) -> Iterator[tuple[int, bytes]]:
        self.reads += len(self.buckets)
        return iter(list(self.buckets.items()))

    def keep_bucket(self, number: int, blob: bytes) -> None:
        self.writes += 1
        self.bytes += len(blob)
        self.buckets[number] = blob

    def drop_bucket(self, number: int) -> None:
        del self.buckets[number]


class ManualHost(BatchHost):
    """Sleeping takes no time, and moves the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, until_ms: float | None) -> None:
        self.read_mail()
        self.sleep_until(until_ms)

    def sleep_until(self, until_ms: float | None) -> None:
        self.clock.now = max(self.clock.now + 1, self.clock.now + 1 if until_ms is None else until_ms)


class Engine:
    """`kills`: how many batches are killed, at rows that `seed` draws. `clock`: the time of all subtasks, which moves
    only by what they sleep."""

    def __init__(
        self,
        env: StreamExecutionEnvironment,
        max_records: int = 1000,
        buckets: int = 128,
        kills: int = 0,
        seed: int = 0,
        clock: ManualClock | None = None,
        max_bytes: int = 1 << 62,
    ) -> None:
        self.clock = clock
        configuration = Configuration(env._configuration)
        point = initial_point(configuration, "MICRO_BATCH")
        graph = graph_of(env)
        if point is not None:
            graph = adopt_max_parallelism(graph, point.metadata)
        limits = Limits(max_records=max_records, buckets=buckets, max_bytes=max_bytes)
        reached = start_options(configuration)
        plan = plan_job(graph, runtime_settings(configuration, None), limits, point, reached=reached)
        plan = dataclasses.replace(plan, savepoints=SavepointStorage.from_configuration(configuration))
        self._set_plan(plan, kills, seed)

    def _set_plan(self, plan: MicroBatchPlan, kills: int, seed: int) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.kills = kills
        self.killed = 0
        self.batch = 0
        self.memories = {task: Memory() for task in self.plan.places}
        self.results: list[Any] = []
        self.reports: list[BatchReport] = []
        self.random = random.Random(seed)

    @staticmethod
    def of_plan(plan: MicroBatchPlan) -> Engine:
        """For `run_tasks` only."""
        engine = Engine.__new__(Engine)
        engine.clock = None
        engine._set_plan(plan, 0, 0)
        return engine

    @staticmethod
    def collecting(stream: DataStream, **settings: Any) -> Engine:
        stream.sink_to(CollectSink())
        return Engine(stream.get_execution_environment(), **settings)

    def run(self) -> Engine:
        """To the end of a bounded job."""
        while not self.run_batch().ended:
            assert self.batch < MOST_BATCHES, "the job does not come to its end"
        return self

    def savepoint(self, target: Any, drain: bool = False) -> str:
        report = self.run_batch(savepoint=str(target), drain=drain)
        complete_savepoint(self.plan.savepoints.files(str(target)), str(target), self.graph, report, 0.0)
        return str(target)

    def run_batch(self, savepoint: str = "", drain: bool = False, looks: Sequence[Look] = ()) -> BatchReport:
        tick = Tick(
            batch=self.batch,
            time_ms=0,
            savepoint=savepoint,
            permissions=self.plan.savepoints.permissions if savepoint else "",
            drain=drain,
            looks=list(looks),
        )
        while True:
            memories = copy.deepcopy(self.memories)
            try:
                report = self._attempt(tick, memories)
                break
            except KilledError:
                self.killed += 1
        self.memories = memories
        self.batch += 1
        commit_all(self.graph, load_committables(report.committables()), 3, 1.0)
        for payload in report.collected():
            self.results += pickle.loads(payload)
        self.reports.append(report)
        return report

    def _attempt(self, tick: Tick, memories: dict[tuple[int, int], Memory]) -> BatchReport:
        return BatchReport.read(tick.batch, self.run_tasks(tick, memories), set(self.plan.places))

    def run_tasks(self, tick: Tick, memories: dict[tuple[int, int], Memory]) -> list[bytes]:
        """All subtasks once. Returns what they tell the driver."""
        dies_after = self.random.randrange(12) if self.killed < self.kills else None
        shipped = cloudpickle.dumps(self.plan)
        rows: dict[int, list[bytes]] = {}
        made = 0
        for (vertex, subtask), place in sorted(self.plan.places.items()):
            payloads = rows.pop(place, [])
            assert all(payload[:1] == ELEMENTS for payload in payloads)
            self.random.shuffle(payloads)
            memory = memories[vertex, subtask]
            name = f"{vertex}-{subtask}-{self.killed}-{tick.batch}"
            host = None if self.clock is None else ManualHost(self.clock)
            task = MicroBatchTask(pickle.loads(shipped), vertex, subtask, tick, memory, self.killed, name, host)
            running = task.run(payloads)
            for target, payload in running:
                rows.setdefault(target, []).append(payload)
                made += 1
                if made == dies_after:
                    raise KilledError
        told = rows.pop(DRIVER)
        assert not rows, "rows are left for subtasks that have run"
        return told
