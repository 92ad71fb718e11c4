"""Keeps a table of PostgreSQL up to date with the latest value of each key of a topic of Kafka, effectively once.

Start both (`make kafka` and `make postgres` in a checkout), create the topic and the table
(`CREATE TABLE latest (key text PRIMARY KEY, value text)`), write lines like `key=value` into the topic, and run:

    python examples/kafka_to_postgres.py --bootstrap-servers HOST:PORT --from changes --url postgresql://... --to latest

It reads up to the present end of the topic and stops. A line without a value (`key=`) deletes its row.
"""

from __future__ import annotations

import argparse

from tidegate.common import Row, SimpleStringSchema, WatermarkStrategy
from tidegate.common.types import RowKind
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from tidegate.datastream.connectors.postgres import PostgresSink


def change(line: str) -> Row:
    key, _, value = line.partition("=")
    return Row.of_kind(RowKind.INSERT if value else RowKind.DELETE, key=key, value=value or None)


def main() -> None:
    parser = argparse.ArgumentParser(description="The latest value of each key of a topic, in a table.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--from", dest="source", required=True, metavar="TOPIC")
    parser.add_argument("--url", required=True)
    parser.add_argument("--to", required=True, metavar="TABLE")
    arguments = parser.parse_args()

    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(arguments.bootstrap_servers)
        .set_topics(arguments.source)
        .set_value_only_deserializer(SimpleStringSchema())
        .set_unbounded(KafkaOffsetsInitializer.latest())
        .build()
    )
    sink = PostgresSink.builder().set_url(arguments.url).set_table(arguments.to).upsert("key").build()

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1000)
    changes = env.from_source(source, WatermarkStrategy.no_watermarks(), "changes").uid("changes").map(change)
    # Changes of one key stay in order: they go through one subtask.
    changes.key_by(lambda row: row.key).map(lambda row: row).sink_to(sink).uid("latest")
    env.execute("Kafka to PostgreSQL")


if __name__ == "__main__":
    main()
