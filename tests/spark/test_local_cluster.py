"""Two real executors, each a JVM of its own with its own Python workers: `local-cluster[2,2,1024]`."""

from __future__ import annotations

import signal
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.spark.programs import alive, running, spark_installation, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
    import json, os, time
    from dataclasses import dataclass
    from tidegate.common import Configuration, JobStatus, WatermarkStrategy
    from tidegate.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource, NumberSequenceSource
    from tidegate.datastream.state import ValueStateDescriptor

    @dataclass(frozen=True)
    class Count:
        key: int
        count: int
        place: tuple

    class CountPerKey(KeyedProcessFunction):
        def open(self, runtime_context):
            self.count = runtime_context.get_state(ValueStateDescriptor("count"))
            self.place = (runtime_context.get_index_of_this_subtask(), os.getppid())

        def process_element(self, value, ctx):
            self.count.update((self.count.value() or 0) + 1)
            yield Count(ctx.get_current_key(), self.count.value(), self.place)

    def report(value):
        print("REPORT " + json.dumps(value), flush=True)

    config = Configuration.from_dict(
        {"spark.master": "local-cluster[2,2,1024]", "spark.scheduler.maxRegisteredResourcesWaitingTime": "110s"}
    )
    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(4)
    numbers = env.from_source(NumberSequenceSource(0, 9_999), WatermarkStrategy.no_watermarks(), "Numbers")
    keyed = numbers.rebalance().map(lambda n: n).key_by(lambda n: n % 10)
    counts = list(keyed.process(CountPerKey()).execute_and_collect())
    final = {}
    for c in counts:
        assert type(c) is Count and c.count == final.get(c.key, 0) + 1, (c, final.get(c.key))
        final[c.key] = c.count
    places = {c.place for c in counts}
    subtasks, daemons = {s for s, _ in places}, {d for _, d in places}
    report({"counts": sorted(final.items()), "subtasks": len(subtasks), "daemons": len(daemons)})

    try:
        numbers = env.from_source(NumberSequenceSource(0, 99), WatermarkStrategy.no_watermarks(), "Numbers")
        list(numbers.map(lambda n: 1 // (n - 60)).name("Divide").execute_and_collect())
    except Exception as error:
        report({"failure": str(error)})

    try:
        env.set_parallelism(5).from_collection([1]).map(str).print()
        env.execute()
    except Exception as error:
        report({"refusal": str(error)})

    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(4)
    endless = DataGeneratorSource(lambda i: i, records_per_second=1000)
    env.from_source(endless, WatermarkStrategy.no_watermarks(), "Endless").rebalance().map(str).add_sink(lambda n: None)
    client = env.execute_async()
    while client.get_job_status().result() is not JobStatus.RUNNING:
        time.sleep(0.05)
    report("running")
    time.sleep(1000)
"""


def test_a_job_on_two_executors(tmp_path: Path) -> None:
    """Run as `python - < program`: there is not even a file of the script, its classes travel with the job."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    more = spark_installation() | {"PYSPARK_PYTHON": sys.executable}
    with running(program, tmp_path, stdin=True, **more) as cluster:
        outcome = cluster.wait_for_report(1)
        assert outcome["counts"] == [[key, 1000] for key in range(10)]
        assert outcome["subtasks"] > 1
        assert outcome["daemons"] == 2  # subtasks with keys ran in both executors

        failure = cluster.wait_for_report(2)["failure"]
        assert "operator 'Divide' (subtask 2)" in failure
        assert "on record 60" in failure
        assert "ZeroDivisionError" in failure
        assert "at org.apache" not in failure

        refusal = cluster.wait_for_report(3)["refusal"]
        assert "needs 5 slots" in refusal
        assert "4 tasks" in refusal
        assert "spark.executor" in refusal

        assert cluster.wait_for_report(4) == "running"
        processes = [p for p in cluster.descendants() if alive(p)]
        assert len([p for p in processes if p.name() == "java"]) == 3  # the driver's and two executors
        psutil.Process(cluster.process.pid).send_signal(signal.SIGKILL)
        cluster.process.wait(120)
        wait_until(lambda: not any(map(alive, processes)), 120)
