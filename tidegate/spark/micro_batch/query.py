"""The streaming query of a job: one stateful operator of Spark for each vertex, one after the other.

All rows of a batch go through all of them (`stage`): a graph with branches is still one line of operators, so that none
is computed twice, and all of them have the same batch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from tidegate.common.errors import ConfigurationError
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.micro_batch.plan import MicroBatchPlan, width
from tidegate.spark.worker_logs import WorkerLogs

_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # What a run of a batch writes has an id of its own, which the commit of the batch names: a task of another run
    # that is late overwrites nothing. Spark goes on with format 1 in locations that were begun so.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",  # rows are large: see `exchange`
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
}
_BROADCAST_FROM = "spark.broadcast.UDFCompressionThreshold"
_LARGEST = (1 << 31) - 1


def check_spark() -> None:
    """Raises ConfigurationError when this Spark cannot run micro-batches of Python."""
    import pyspark

    release = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if release < (4, 1):
        raise ConfigurationError(
            f"MICRO_BATCH needs Spark 4.1 or newer (stateful operators and streaming sources in Python), and this is "
            f"{pyspark.__version__}: use STREAMING or BATCH (execution.runtime-mode)"
        )
    if not _is_there("google.protobuf"):
        raise ConfigurationError(
            "MICRO_BATCH needs the package protobuf, which Spark's stateful operators in Python use, here and where "
            "the workers run: pip install 'tidegate[micro-batch]'"
        )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def start_query(
    session: SparkSession,
    plan: MicroBatchPlan,
    bundle: CodeBundle,
    logs: WorkerLogs,
    attempt: int,
    location: str,
    control: str,
    interval_ms: int,
    name: str,
    on_batch: Callable[[DataFrame, int], None],
) -> Any:
    """In a session of its own, so that the settings, and the name, are nobody else's."""
    from tidegate.spark.micro_batch.stage import StageProcessor
    from tidegate.spark.micro_batch.ticks import CONTROL_OPTION, FORMAT, PLACES_OPTION, ROW_SCHEMA, TickSource

    own = session.newSession()
    for key, value in _SETTINGS.items():
        own.conf.set(key, value)
    own.conf.set("spark.sql.shuffle.partitions", str(width(plan.graph)))
    own.dataSource.register(TickSource)
    places = json.dumps(sorted(plan.places.values()))
    rows = own.readStream.format(FORMAT).option(CONTROL_OPTION, control).option(PLACES_OPTION, places).load()
    pickled = bytes(cloudpickle.dumps(plan))
    with _no_broadcast(session):
        for vertex in plan.graph.vertices:
            number = int(vertex.vertex_id)
            mine = {place: subtask for (v, subtask), place in plan.places.items() if v == number}
            processor = StageProcessor(bundle, pickled, number, mine, logs, attempt)
            rows = rows.groupBy("place").transformWithState(processor, ROW_SCHEMA, "append", "None")
    writer = (
        rows.writeStream.queryName(name)
        .foreachBatch(on_batch)
        .outputMode("append")
        .option("checkpointLocation", location)
    )
    return writer.trigger(processingTime=f"{interval_ms} milliseconds").start()


class _NoBroadcast:
    """PySpark makes a broadcast of a function that is larger than 1 MB, with what belongs to it: a program with much
    code, or with a collection in its plan. Spark's process that prepares a stateful operator cannot read one.

    The threshold is of the whole application. It is as it was when the last of those has left that have entered: jobs
    start side by side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = ""

    @contextlib.contextmanager
    def __call__(self, session: SparkSession) -> Iterator[None]:
        conf = session.sparkContext._jsc.sc().conf()
        with self._lock:
            if not self._inside:
                self._before = conf.get(_BROADCAST_FROM, "1m")
                conf.set(_BROADCAST_FROM, f"{_LARGEST}b")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    conf.set(_BROADCAST_FROM, self._before)


_no_broadcast = _NoBroadcast()
