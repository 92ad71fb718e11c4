"""Counts orders per customer over the past, which lies in files, and then the present, which comes from a topic.

Start a broker (`make kafka` in a checkout), create the topic, put files with one order a line ("customer amount") into
a folder, and run:

    python examples/history_then_topic.py --history FOLDER --bootstrap-servers HOST:PORT --topic orders

Write further orders into the topic and see the counts go on where the files have left them. It reads up to the present
end of the topic and stops; with --forever it goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tidegate.common import SimpleStringSchema, Types, WatermarkStrategy
from tidegate.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSource, StreamFormat
from tidegate.datastream.connectors.hybrid_source import HybridSource
from tidegate.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from tidegate.datastream.state import ValueStateDescriptor


class CountOrders(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, line: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{customer_of(line)} {count}"


def customer_of(line: str) -> str:
    return line.split()[0]


def build(env: StreamExecutionEnvironment, history: str, servers: str, topic: str, forever: bool) -> DataStream:
    past = FileSource.for_record_stream_format(StreamFormat.text_line_format(), history).build()
    present = (
        KafkaSource.builder()
        .set_bootstrap_servers(servers)
        .set_topics(topic)
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema())
    )
    if not forever:
        present.set_unbounded(KafkaOffsetsInitializer.latest())
    orders = HybridSource.builder(past).add_source(present.build()).build()
    return (
        env.from_source(orders, WatermarkStrategy.no_watermarks(), "orders")
        .uid("orders")
        .key_by(customer_of, Types.STRING())
        .process(CountOrders(), Types.STRING())
        .uid("count")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts orders in files, then in a topic.")
    parser.add_argument("--history", required=True, metavar="FOLDER")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--forever", action="store_true")
    arguments = parser.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1000)
    servers, topic = arguments.bootstrap_servers, arguments.topic
    build(env, arguments.history, servers, topic, arguments.forever).print()
    env.execute("history, then a topic")


if __name__ == "__main__":
    main()
