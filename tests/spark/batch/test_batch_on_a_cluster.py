"""BATCH mode on two real executors: Spark itself runs a failed task again; an executor is lost in the second stage."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tests.spark.programs import running, spark_installation

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
    import json, os, signal, time
    from collections import Counter
    import psutil
    from tidegate.common import Configuration, WatermarkStrategy
    from tidegate.common.serialization import Encoder
    from tidegate.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
    from tidegate.datastream.connectors import BucketAssigner, FileSink, NumberSequenceSource
    from tidegate.datastream.state import ValueStateDescriptor

    FOLDER = {folder!r}

    class NoteOpened(MapFunction):
        def open(self, runtime_context):
            with open(FOLDER + "/opened", "a") as file:
                file.write(f"{{runtime_context.get_index_of_this_subtask()}} {{os.getppid()}}\\n")

        def map(self, value):
            return value

    class CountAndLoseTheExecutor(KeyedProcessFunction):
        def open(self, runtime_context):
            self.count = runtime_context.get_state(ValueStateDescriptor("count"))
            self.seen = 0

        def process_element(self, value, ctx):
            self.seen += 1
            if self.seen == 100:
                try:
                    os.close(os.open(FOLDER + "/marker", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:  # the JVM is the parent of the daemon that is the parent of this worker
                    psutil.Process(os.getpid()).parent().parent().kill()
                    time.sleep(1000)
            self.count.update((self.count.value() or 0) + 1)
            yield ctx.get_current_key(), self.count.value()

    class FailOnceInTheMiddle(MapFunction):
        def open(self, runtime_context):
            self.seen = 0

        def map(self, value):
            self.seen += 1
            if self.seen == 300:  # some of its output is in files already
                try:
                    os.close(os.open(FOLDER + "/failed", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    raise RuntimeError("once")
            return value

    def lines(folder):
        return [line for name in os.listdir(FOLDER + folder) if not name.startswith(".")
                for line in open(FOLDER + folder + "/" + name)]

    config = Configuration.from_dict({{"spark.master": "local-cluster[2,2,1024]", "execution.runtime-mode": "BATCH",
        "spark.task.maxFailures": "4"}})
    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(4)
    numbers = env.from_source(NumberSequenceSource(0, 1999), WatermarkStrategy.no_watermarks(), "Numbers")
    sink = FileSink.for_row_format(FOLDER + "/retried", Encoder.simple_string_encoder())
    numbers.rebalance().map(FailOnceInTheMiddle()).sink_to(
        sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    client = env.execute_async("a task fails once")
    client.get_job_execution_result().result()
    retried = {{"exact": sorted(map(int, lines("/retried"))) == list(range(2000)), "runs": client.attempt() + 1,
        "failed": os.path.exists(FOLDER + "/failed")}}

    env = StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(4)
    numbers = env.from_source(NumberSequenceSource(0, 1999), WatermarkStrategy.no_watermarks(), "Numbers")
    counts = numbers.map(NoteOpened()).key_by(lambda n: n % 20).process(CountAndLoseTheExecutor())
    sink = FileSink.for_row_format(FOLDER + "/out", Encoder.simple_string_encoder())
    counts.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    client = env.execute_async("loses an executor")
    client.get_job_execution_result().result()
    found = Counter(tuple(eval(line)) for line in lines("/out"))
    expected = Counter((key, n) for key in range(20) for n in range(1, 101))
    print("REPORT " + json.dumps({{"retried": retried, "exact": found == expected, "runs": client.attempt() + 1,
          "hidden": [n for n in os.listdir(FOLDER + "/out") if n.startswith(".")],
          "opened": open(FOLDER + "/opened").read().split("\\n")[:-1]}}), flush=True)
"""


def test_only_what_a_lost_executor_held_is_computed_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(folder=str(tmp_path))))
    more = spark_installation() | {"PYSPARK_PYTHON": sys.executable}
    with running(program, tmp_path, **more) as cluster:
        outcome = cluster.wait_for_report(1)
    assert outcome["retried"] == {"exact": True, "runs": 1, "failed": True}  # by Spark, without our help
    assert outcome["exact"], outcome
    assert outcome["hidden"] == []
    opened = [line.split() for line in outcome["opened"]]
    first_run, again = opened[:4], opened[4:]
    assert sorted(subtask for subtask, _ in first_run) == ["0", "1", "2", "3"]
    places = dict(first_run)
    lost = {places[subtask] for subtask, _ in again}
    assert 1 <= len(lost) <= 1, outcome  # all that ran again had run in one executor: the one that was killed
    assert 0 < len(again) < 4
