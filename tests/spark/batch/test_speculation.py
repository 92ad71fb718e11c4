"""Speculative execution, on a cluster of two hosts: Spark runs a second copy of a slow task, and both write.

Files decide who wins, never the time: the *original* and its *copy* each note when their sinks have written and
prepared everything. The one that is to lose then stays until Spark kills it, the other one goes on when both have
noted.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.spark.programs import running
from tests.spark.standalone_cluster import QUICK_JVM, standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
    import json, os, time
    from collections import Counter
    from pyspark import TaskContext
    from pyspark.sql import SparkSession
    from tidegate.common import Configuration, WatermarkStrategy
    from tidegate.common.accumulators import IntCounter
    from tidegate.common.serialization import Encoder
    from tidegate.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
    from tidegate.datastream.connectors import BucketAssigner, FileSink, NumberSequenceSource
    from tidegate.datastream.connectors.base import Committer, Sink, SinkWriter
    from tidegate.contracts.collect_sink import CollectSink
    from tidegate.datastream.state import ValueStateDescriptor

    FOLDER, SETTINGS = {folder!r}, {settings!r}

    def wait_for(path):
        deadline = time.monotonic() + 60
        while not os.path.exists(path):
            if time.monotonic() > deadline:
                raise TimeoutError(path)
            time.sleep(0.02)

    def role():
        return "original" if TaskContext.get().attemptNumber() == 0 else "copy"

    class Straggler(MapFunction):
        "In subtask 1: held up in close(), when all is written."

        def __init__(self, place, winner):
            self.place, self.winner = place, winner

        def open(self, runtime_context):
            self.counter = IntCounter()
            runtime_context.add_accumulator(self.place, self.counter)
            self.held_up = runtime_context.get_index_of_this_subtask() == 1

        def map(self, value):
            self.counter.add(1)
            return value

        def close(self):
            if self.held_up:
                note = FOLDER + "/note-" + self.place + "-"
                with open(note + "unfinished-" + role(), "x") as file:
                    json.dump({{"task": TaskContext.get().taskAttemptId(), "ms": time.time() * 1000}}, file)
                os.rename(file.name, note + role())
                if role() != self.winner:
                    wait_for("/a file that never comes")
                wait_for(note + "copy")

    class CountPerKey(KeyedProcessFunction):
        "With a savepoint: the original of subtask 1 writes its part when the savepoint is complete, if it still can."

        def __init__(self, savepoint=None):
            self.savepoint = savepoint

        def open(self, runtime_context):
            self.count = runtime_context.get_state(ValueStateDescriptor("count"))
            self.late = self.savepoint and runtime_context.get_index_of_this_subtask() == 1 and role() == "original"

        def process_element(self, value, ctx):
            if self.late:
                wait_for(self.savepoint + "/_metadata")
            self.count.update((self.count.value() or 0) + 1)
            yield ctx.get_current_key(), self.count.value()

    class Ledger(Sink):
        "Two phases: an attempt prepares a file of its own, the commit appends what it holds to one ledger."

        def __init__(self, path):
            self.path = path

        def create_writer(self, context):
            return LedgerWriter(self.path, context)

        def create_committer(self):
            return LedgerCommitter(self.path)

    class LedgerWriter(SinkWriter):
        def __init__(self, path, context):
            self.prepared = path + "-prepared-" + str(context.subtask) + "-" + context.operator_id
            self.values = []

        def write_batch(self, values, timestamps):
            self.values += values

        def prepare_commit(self):
            with open(self.prepared, "x") as file:
                json.dump(self.values, file)
            return [self.prepared]

    class LedgerCommitter(Committer):
        def __init__(self, path):
            self.path = path

        def commit(self, committables):
            with open(self.path, "a") as ledger:
                for prepared in committables:
                    with open(prepared) as file:
                        ledger.writelines(str(value) + "\\n" for value in json.load(file))
            return []

    class AfterTheOriginal(Sink):
        "In a copy of subtask 1 the sink is opened when the original has written: what it does then meets those files."

        def __init__(self, sink, place):
            self.sink, self.place = sink, place

        def create_writer(self, context):
            if context.subtask == 1 and role() == "copy":
                wait_for(FOLDER + "/note-" + self.place + "-original")
            return self.sink.create_writer(context)

        def create_committer(self):
            return self.sink.create_committer()

        def discard_leftovers(self, job_id):
            self.sink.discard_leftovers(job_id)

    def environment(**more):
        config = {{**SETTINGS, "execution.runtime-mode": "BATCH", **more}}
        return StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config)).set_parallelism(2)

    def numbers_of(env):
        return env.from_source(NumberSequenceSource(0, 199), WatermarkStrategy.no_watermarks(), "Numbers")

    def run(name, first_winner, last_winner):
        env, out, first, last = environment(), FOLDER + "/" + name, name + "-first", name + "-last"
        numbers = numbers_of(env).map(Straggler(first, first_winner))
        numbers.sink_to(AfterTheOriginal(Ledger(out + "-ledger"), first))
        counts = numbers.key_by(lambda n: n % 20).process(CountPerKey()).map(Straggler(last, last_winner))
        files = FileSink.for_row_format(out, Encoder.simple_string_encoder())
        files = files.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()
        counts.sink_to(AfterTheOriginal(files, last))
        counts.sink_to(AfterTheOriginal(Ledger(out + "-counts"), last))
        counts.sink_to(CollectSink())  # as execute_and_collect does, which would keep the accumulators to itself
        client = env.execute_async(name)
        result = client.get_job_execution_result().result()
        expected = Counter((key, n) for key in range(20) for n in range(1, 11))
        lines = [line for part in os.listdir(out) if not part.startswith(".") for line in open(out + "/" + part)]
        return {{
            "numbers": sorted(map(int, open(out + "-ledger"))) == list(range(200)),
            "files": Counter(map(eval, lines)) == expected,
            "counts": Counter(tuple(eval(line)) for line in open(out + "-counts")) == expected,
            "collected": Counter(client.collect_results()) == expected,
            "accumulators": result.get_all_accumulator_results() == {{first: 200, last: 200}},
            "nothing hidden": not [part for part in os.listdir(out) if part.startswith(".")],
            "one run": client.attempt() == 0,
        }}

    def run_to_savepoint():
        path = FOLDER + "/savepoint"
        env = environment(**{{"execution.batch.savepoint-path": path}})
        counts = numbers_of(env).key_by(lambda n: n % 20).process(CountPerKey(path)).name("Count").uid("count")
        counts.sink_to(CollectSink())
        client = env.execute_async("to a savepoint")
        return sorted(Counter(client.collect_results()).items())

    def report(value):
        print("REPORT " + json.dumps(value), flush=True)

    report(run("copy-then-original", "copy", "original"))
    report(run("original-then-copy", "original", "copy"))
    run_to_savepoint()
    SparkSession.getActiveSession().stop()  # ends its record
    report("stopped")
"""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",  # of two tasks, one
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.efficiency.enabled": "false",
    "spark.python.task.killTimeout": "1s",
}


@dataclass(frozen=True)
class Attempt:
    """Of a task, as Spark's own record has it."""

    stage: int
    index: int
    host: str
    speculative: bool
    end: str
    finished_ms: float


def recorded_attempts(log: Path) -> dict[int, Attempt]:
    (file,) = log.iterdir()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    attempts = {}
    for event in [e for e in events if e["Event"] == "SparkListenerTaskEnd"]:
        info, reason = event["Task Info"], event["Task End Reason"]
        end = f"{reason['Reason']}: {reason['Kill Reason']}" if "Kill Reason" in reason else reason["Reason"]
        attempts[info["Task ID"]] = Attempt(
            event["Stage ID"], info["Index"], info["Host"], info["Speculative"], end, info["Finish Time"]
        )
    return attempts


def test_a_speculative_copy_doubles_and_loses_nothing_whoever_wins(tmp_path: Path) -> None:
    log = tmp_path / "events"
    log.mkdir()
    settings = SPECULATION | {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.driver.host": "127.0.0.1",
        "spark.locality.wait": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(folder=str(tmp_path), settings=settings)))
    with standalone_cluster(tmp_path) as cluster, running(program, tmp_path, **cluster.program_variables()) as driver:
        driver.wait_for_report(3)
    for outcome in driver.reports()[:2]:
        assert all(outcome.values()), outcome

    attempts = recorded_attempts(log)
    for name, first_winner in ("copy-then-original", "copy"), ("original-then-copy", "original"):
        check_race(tmp_path, attempts, f"{name}-first", first_winner, f"{name}-ledger")
        check_race(
            tmp_path, attempts, f"{name}-last", "original" if first_winner == "copy" else "copy", f"{name}-counts"
        )

    tables = [path for path in (tmp_path / "savepoint").rglob("*.parquet") if path.parts[-2] == "keyed-count"]
    writers = [attempts[int(path.name.split("-")[2])] for path in tables]
    assert sorted(a.index for a in writers) == [0, 1], tables
    assert {a.end for a in writers} == {"Success"}
    assert [a.speculative for a in writers if a.index == 1] == [True]


def check_race(folder: Path, attempts: dict[int, Attempt], place: str, winner: str, ledger: str) -> None:
    """Two attempts of one task have written on two hosts; then Spark has killed the one that was not `winner`."""
    notes = {role: json.loads((folder / f"note-{place}-{role}").read_text()) for role in ("original", "copy")}
    raced = {role: attempts[note["task"]] for role, note in notes.items()}
    assert [raced[role].speculative for role in ("original", "copy")] == [False, True], raced
    assert len({(a.stage, a.index) for a in raced.values()}) == 1, raced
    assert len({a.host for a in raced.values()}) == 2, raced
    loser = "original" if winner == "copy" else "copy"
    assert raced[winner].end == "Success", raced
    assert raced[loser].end == "TaskKilled: another attempt succeeded", raced
    assert raced[loser].finished_ms > notes[loser]["ms"]
    prepared = [path.read_text() for path in folder.glob(f"{ledger}-prepared-1-*")]
    assert len(prepared) == 2  # by both, and it is the same
    assert len(json.loads(prepared[0])) > 0
    assert prepared[0] == prepared[1]
