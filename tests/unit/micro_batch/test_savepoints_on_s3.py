"""Savepoints on S3 with keys: these reach the workers with the plan, and are neither in Spark's offset log nor in what
is noted of a savepoint."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from tests.unit.batch.test_tasks import Engine as BatchEngine
from tests.unit.micro_batch.engine import Engine
from tests.unit.storage.test_locations_with_secrets import SECRETS, Bucket, bucket
from tidegate.common import Configuration, Types
from tidegate.common.errors import ConfigurationError
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.jobmanager.state_assignment import adopt_max_parallelism
from tidegate.spark.batch.job_savepoint import complete_savepoint, planned_savepoint
from tidegate.spark.batch.plan import plan_job as plan_batches
from tidegate.spark.micro_batch.savepoint_storage import SavepointStorage
from tidegate.spark.micro_batch.savepoints import SavepointRequests
from tidegate.spark.start_points import initial_point, start_options, start_state
from tidegate.storage import files
from tidegate.taskmanager.deployment import RuntimeSettings
from tidegate.testing.in_process_job import graph_of

__all__ = ["bucket"]

KEYED = "&".join(f"{name}={value}" for name, value in SECRETS.items())
PLACE = "s3://bucket/savepoints"
NAMED = {
    "in the folder for savepoints": {"execution.checkpointing.savepoint-dir": f"{PLACE}?region=here&{KEYED}"},
    "in the folder for checkpoints": {"execution.checkpointing.dir": f"s3://bucket/checkpoints?region=here&{KEYED}"},
}


class Count(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value, self.count.value()


def job(**settings: str) -> StreamExecutionEnvironment:
    configuration = Configuration.from_dict({name.replace("__", "."): value for name, value in settings.items()})
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    numbers = env.from_collection([n % 5 for n in range(40)]).key_by(lambda n: n, Types.INT())
    numbers.process(Count()).uid("count").sink_to(CollectSink())
    return env


EXPECTED = sorted((key, count) for key in range(5) for count in range(1, 9))


@pytest.mark.parametrize("settings", NAMED.values(), ids=NAMED)
def test_subtasks_write_with_the_keys_of_the_settings(bucket: Bucket, settings: dict[str, str]) -> None:
    engine = Engine(job(**settings), max_records=10)
    engine.run_batch()
    ticks: list[Any] = []
    run_tasks = engine.run_tasks
    engine.run_tasks = lambda tick, memories: (ticks.append(tick), run_tasks(tick, memories))[1]  # type: ignore[method-assign]
    engine.savepoint(f"{PLACE}/one?region=here")
    assert bucket.refused == []
    assert "hidden" not in repr(ticks) + repr(engine.plan)
    assert ticks[0].savepoint == f"{PLACE}/one?region=here"
    settings = settings | {"execution.state-recovery.path": f"{PLACE}/one?region=here&{KEYED}"}
    results = engine.results + Engine(job(**settings)).run().results
    assert sorted(results) == EXPECTED
    assert bucket.refused == []


def test_a_batch_job_writes_and_reads_with_the_keys_of_its_settings(bucket: Bucket) -> None:
    path = f"{PLACE}/two?region=here&{KEYED}"
    env = job()
    savepoint = planned_savepoint(Configuration.from_dict({"execution.batch.savepoint-path": path}), 0)
    assert savepoint is not None
    assert "hidden" not in repr(savepoint)
    shipped = pickle.loads(pickle.dumps(savepoint))
    batch = BatchEngine(plan_batches(graph_of(env), RuntimeSettings(), 1 << 20, shipped))
    assert sorted(batch.run()) == EXPECTED
    complete_savepoint(savepoint, batch.plan.graph, batch.report())
    configuration = Configuration.from_dict({"execution.state-recovery.path": path})
    point = initial_point(configuration, "BATCH")
    assert point is not None
    graph = adopt_max_parallelism(graph_of(job()), point.metadata)
    start = start_state(graph, point, False, start_options(configuration))
    assert "secret_key" not in repr(start)
    BatchEngine(plan_batches(graph, RuntimeSettings(), 1 << 20, None, pickle.loads(pickle.dumps(start)))).run()
    assert bucket.refused == []


def test_keys_that_are_named_while_the_job_runs_are_refused(bucket: Bucket) -> None:
    """They would have to be in Spark's offset log. The same ones as in the settings do no harm."""
    requests = SavepointRequests("job", None, SavepointStorage(), 1000.0, lambda: None)
    for folder in (f"{PLACE}?region=here&{KEYED}", "s3://me:hidden@bucket/savepoints"):
        error = requests.request(folder).exception(60)
        assert isinstance(error, ConfigurationError)
        assert "do not reach the workers" in str(error)
        assert "hidden" not in str(error)
    configuration = Configuration.from_dict(NAMED["in the folder for savepoints"])
    known = SavepointRequests("job", None, SavepointStorage.from_configuration(configuration), 1000.0, lambda: None)
    known.request(f"s3://bucket/others?region=here&{KEYED}")
    while (request := known.take()) is None:
        time.sleep(0.01)
    assert request.target.startswith("s3://bucket/others/savepoint-")
    assert "hidden" not in request.target
    for one in (requests, known):
        one.close()
        one.job_over("FINISHED")
    files._open_files.cache_clear()
