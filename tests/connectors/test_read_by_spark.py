"""What KafkaSink has written, read by Spark's own Kafka reader. (What PostgresSink has written is read by `psql` in
test_postgres_sink and test_end_to_end.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connectors.broker import Broker
from tests.connectors.cache import UnavailableError, cache_folder
from tests.connectors.kafka_driver import counting_job
from tests.connectors.kafka_kit import builder, open_writer, write
from tests.connectors.kills import SOAK, feed
from tests.connectors.on_processes import environment, run_job
from tests.environments import environment_of
from tests.spark.recovery_kit import assert_exact, with_checkpoints

pytestmark = [*SOAK, pytest.mark.usefixtures("on_processes")]

_WITH_A_READER = "pyspark==4.0.0"  # a version whose Kafka reader was published, with all that it needs

_PROGRAM = """
import json, sys
import pyspark
from pyspark.sql import SparkSession

servers, topic, ivy = sys.argv[1:]
package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
session = SparkSession.builder.master("local[1]").config("spark.jars.packages", package)
spark = session.config("spark.jars.ivy", ivy).config("spark.ui.enabled", "false").getOrCreate()
reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
rows = reader.option("kafka.isolation.level", "read_committed").load().selectExpr("CAST(value AS STRING)").collect()
print("FOUND " + json.dumps([row[0] for row in rows]))
"""


def read_by_spark(broker: Broker, topic: str, folder: Path) -> list[str]:
    """By this Spark, or by one in an environment of its own, when the reader of this one's version is not where
    packages come from."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPARK_HOME")}
    for python in _pythons():
        command = [python, "-c", _PROGRAM, broker.bootstrap_servers, topic, str(cache_folder("spark-kafka"))]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=folder, env=environment)
        for line in ran.stdout.splitlines():
            if line.startswith("FOUND "):
                print(f"read by {python}")
                values: list[str] = json.loads(line.removeprefix("FOUND "))
                return values
        said = ran.stdout[-1000:] + ran.stderr[-2000:]
        if "unresolved dependency" not in ran.stderr + ran.stdout:
            pytest.fail(said)
    pytest.skip(f"Spark's Kafka reader could not be fetched, neither for this Spark nor for {_WITH_A_READER}")


def _pythons() -> Iterator[str]:
    """That of the other environment is made when it is asked for: 400 MB, once."""
    yield sys.executable
    line = f"{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        yield str(environment_of(f"{_WITH_A_READER.replace('==', '-')}-python-{line}-alone", line, [_WITH_A_READER]))
    except UnavailableError as error:
        pytest.skip(str(error))


def test_sparks_own_reader_sees_what_is_committed_once_and_nothing_else(
    broker: Broker, name: str, tmp_path: Path
) -> None:
    topic, out = broker.create_topic(f"{name}-in", 2), broker.create_topic(f"{name}-out", 2)
    feed(broker, [(topic, 0), (topic, 1)], range(6000))
    env = with_checkpoints(environment(2), tmp_path, interval_ms=200)
    counting_job(env, broker.bootstrap_servers, topic, 6000, 2, out)
    run_job(env)
    writer = open_writer(builder(broker, out).build())
    write(writer, ["of an open transaction"])
    writer.flush(False)
    assert_exact(Counter(read_by_spark(broker, out, tmp_path)), 6000)
    writer.close()
