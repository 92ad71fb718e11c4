"""Metrics and accumulators of functions, from the function to the client."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment, ticks
from tidegate.common.accumulators import (
    Accumulator,
    AverageAccumulator,
    DoubleCounter,
    Histogram,
    IntCounter,
    ListAccumulator,
    LongCounter,
    Maximum,
    Minimum,
    dump,
    load_values,
    merge_all,
)
from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.common.metric_values import CounterValue, HistogramValue, MetricReport
from tidegate.datastream import MapFunction, RuntimeContext
from tidegate.datastream.connectors import CollectSink
from tidegate.jobmanager.job_publisher import JobPublisher, MasterPublisher
from tidegate.metrics import Counter, Distribution, Meter, MetricGroup
from tidegate.protocol.codec import decode_from_slot, encode
from tidegate.protocol.messages import SlotHeartbeat
from tidegate.spark.streaming.job_client import SparkJobClient
from tidegate.testing.in_process_job import InProcessJob


class Measured(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        group = runtime_context.get_metrics_group()
        self.counter = group.counter("seen")
        self.sizes = group.add_group("parser", "fast").distribution("sizes")
        self.meter = group.meter("events")
        self.last = 0
        group.gauge("last", lambda: self.last)
        group.gauge("broken", lambda: 1 / 0)
        self.total = IntCounter()
        runtime_context.add_accumulator("total", self.total)
        runtime_context.add_accumulator("odd", ListAccumulator())
        self.odd = runtime_context.get_accumulator("odd")

    def map(self, value: int) -> int:
        self.counter.inc()
        self.sizes.update(value)
        self.meter.mark_event()
        self.last = value
        self.total.add(value)
        if value % 2:
            self.odd.add(value)
        return value


def client_of(job: InProcessJob) -> SparkJobClient:
    nobody: Any = None
    publisher = JobPublisher(job.graph, "STREAMING", job.graph.num_slots, 0.0)
    MasterPublisher(publisher, job.graph, job.master).publish(job.clock.now)
    return SparkJobClient(
        publisher,
        savepoints=nobody,
        cancel=nobody,
        results_taken=nobody,
    )


def measured(parallelism: int, count: int | None) -> Any:
    env = environment(parallelism=parallelism)
    ticks(env, count=count, burst=10).rebalance().map(Measured()).name("measure").sink_to(CollectSink())
    return env


def test_metrics_and_accumulators_are_seen_while_the_job_runs() -> None:
    with InProcessJob(measured(1, None)) as job:
        job.advance(3000)
        client = client_of(job)
        metrics = client.metrics()
        assert metrics["measure.0.seen"] >= 100
        assert metrics["measure.0.parser.fast.sizes.min"] == 0
        assert metrics["measure.0.parser.fast.sizes.max"] == metrics["measure.0.last"]
        assert metrics["measure.0.events"] == metrics["measure.0.seen"]
        assert metrics["measure.0.events.rate"] > 0
        assert "measure.0.broken" not in metrics
        assert client.get_accumulators().result()["total"] > 1000
        assert client.workers()[0].records_in < 2 * metrics["measure.0.seen"] + 1000


def test_the_result_has_the_accumulators_of_all_subtasks_and_the_last_metrics() -> None:
    with InProcessJob(measured(3, 10)) as job:
        job.run_to_end()
        assert job.ended is not None
        client = client_of(job)
        client.ended(job.ended)
        result = client.get_job_execution_result().result()
        assert result.get_accumulator_result("total") == 45
        assert sorted(result.get_all_accumulator_results()["odd"]) == [1, 3, 5, 7, 9]
        assert sum(v for name, v in client.metrics().items() if name.endswith("seen")) == 10


class Twice(MapFunction):
    def __init__(self, *accumulators: Any) -> None:
        self.accumulators = accumulators

    def open(self, runtime_context: RuntimeContext) -> None:
        for accumulator in self.accumulators:
            runtime_context.add_accumulator("a", accumulator)
        if not self.accumulators:
            runtime_context.get_accumulator("a")

    def map(self, value: int) -> int:
        return value


@pytest.mark.parametrize(
    ("accumulators", "story"),
    [
        ((IntCounter(), IntCounter()), "accumulator 'a' was added already"),
        ((7,), "takes an accumulator of tidegate.common.accumulators"),
        ((), "there is no accumulator 'a'"),
    ],
)
def test_wrong_use_of_accumulators_is_refused(accumulators: tuple[Any, ...], story: str) -> None:
    env = environment()
    env.from_collection([1]).map(Twice(*accumulators)).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
        assert story in job.failure


def test_one_name_for_two_kinds_of_accumulators_fails_the_result() -> None:
    env = environment()
    stream = env.from_collection([1]).map(Twice(IntCounter()))
    stream.map(Twice(ListAccumulator())).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
        client = client_of(job)
        assert job.ended is not None
        client.ended(job.ended)
        with pytest.raises(ConfigurationError, match="'a' is a IntCounter in one function and a ListAccumulator"):
            client.get_job_execution_result().result()


@pytest.mark.parametrize(
    ("kind", "first", "second", "value"),
    [
        (IntCounter, [1, 2], [3], 6),
        (LongCounter, [2**40], [1], 2**40 + 1),
        (DoubleCounter, [0.5], [0.25], 0.75),
        (Minimum, [3, 2], [], 2),
        (Maximum, [], [3, 5, 4], 5),
        (AverageAccumulator, [1, 2], [6], 3.0),
        (ListAccumulator, ["a"], ["b", "c"], ["a", "b", "c"]),
        (Histogram, [1, 1], [1, 2], {1: 3, 2: 1}),
    ],
)
def test_accumulators_merge(kind: type[Accumulator], first: list[Any], second: list[Any], value: Any) -> None:
    parts = []
    for values in (first, second):
        part = kind()
        for v in values:
            part.add(v)
        parts.append({"x": part})
    assert load_values([dump(parts[:1]), b"", dump(parts[1:])]) == {"x": value}
    assert merge_all(parts)["x"].get_local_value() == value


def test_a_group_gives_the_same_metric_for_the_same_name() -> None:
    group = MetricGroup(("op", "0"))
    counter = group.counter("c")
    assert group.counter("c") is counter
    assert isinstance(counter, Counter)
    counter.inc(5)
    counter.dec()
    assert counter.get_count() == 4
    below = group.add_group("key", "value")
    assert below.get_metric_identifier("m") == "op.0.key.value.m"
    assert below.get_scope_components() == ["op", "0", "key", "value"]
    assert isinstance(below.distribution("d"), Distribution)
    assert list(group.values()) == [
        (("op", "0"), "c", CounterValue(4)),
        (("op", "0", "key", "value"), "d", HistogramValue(0)),
    ]
    with pytest.raises(ConfigurationError, match=r"'op\.0\.c' is a Counter, and was asked for as a Meter"):
        group.meter("c")


def test_the_rate_of_a_meter_is_over_its_time_span() -> None:
    now = [0.0]
    meter = Meter(10, lambda: now[0])
    for second in range(20):
        now[0] = float(second)
        meter.mark_event(3)
    assert meter.get_count() == 60
    assert meter.get_rate() == pytest.approx(3, rel=0.15)
    now[0] = 100.0
    assert meter.get_rate() == 0


def test_whatever_users_count_can_be_sent_to_the_driver() -> None:
    """Beyond 64 bits, in fractions, and with what is no number at all."""
    group = MetricGroup()
    for name, amount in (("huge", 2**70), ("low", -(2**70)), ("half", 2.5), ("none", math.nan), ("endless", math.inf)):
        group.counter(name).inc(amount)  # type: ignore[arg-type]
    group.meter("events").mark_event(10**400)
    group.distribution("sizes").update(10**400)
    found = {name: value for _, name, value in group.values()}
    assert found == {
        "huge": CounterValue(2**63 - 1),
        "low": CounterValue(-(2**63) + 1),
        "half": CounterValue(2),
    }
    reports = tuple(MetricReport(0, 0, name, value) for name, value in found.items())
    heartbeat = SlotHeartbeat(attempt=AttemptNumber(0), slot=SlotIndex(0), metrics=reports)
    assert decode_from_slot(encode(heartbeat)) == heartbeat
