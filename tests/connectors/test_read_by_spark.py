"""What KafkaSink has written, read by Spark's own Kafka reader. (What PostgresSink has written is read by `psql` in
test_postgres_sink and test_end_to_end.)"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from tests.connectors.broker import Broker
from tests.connectors.cache import cache_folder
from tests.connectors.kafka_driver import counting_job
from tests.connectors.kafka_kit import builder, open_writer, write
from tests.connectors.kills import SOAK, feed
from tests.connectors.on_processes import environment, run_job
from tests.spark.recovery_kit import assert_exact, with_checkpoints

pytestmark = [*SOAK, pytest.mark.usefixtures("on_processes")]

_VERSIONS = (pyspark.__version__, "4.2.0")
"""Of Spark's reader: the one that belongs to this Spark, or the latest that was published before it."""

_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

version, servers, topic, ivy = sys.argv[1:]
package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"
session = SparkSession.builder.master("local[1]").config("spark.jars.packages", package)
spark = session.config("spark.jars.ivy", ivy).config("spark.ui.enabled", "false").getOrCreate()
reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
rows = reader.option("kafka.isolation.level", "read_committed").load().selectExpr("CAST(value AS STRING)").collect()
print("FOUND " + json.dumps([row[0] for row in rows]))
"""


def read_by_spark(broker: Broker, topic: str, folder: Path) -> list[str]:
    said = ""
    for version in _VERSIONS:
        arguments = [version, broker.bootstrap_servers, topic, str(cache_folder("spark-kafka"))]
        command = [sys.executable, "-c", _PROGRAM, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=folder)
        for line in ran.stdout.splitlines():
            if line.startswith("FOUND "):
                values: list[str] = json.loads(line.removeprefix("FOUND "))
                return values
        said = ran.stdout[-1000:] + ran.stderr[-2000:]
        if "unresolved dependency" not in ran.stderr + ran.stdout:
            pytest.fail(said)
    pytest.skip(f"Spark's Kafka reader could not be fetched in any of the versions {_VERSIONS}:\n{said}")


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
