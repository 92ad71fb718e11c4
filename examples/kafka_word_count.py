"""Counts words from one topic of Kafka into another, exactly once.

Start a broker (`make kafka` in a checkout), create the topics, write lines into the first, and run:

    python examples/kafka_word_count.py --bootstrap-servers HOST:PORT --from lines --to counts

It reads up to the present end of the topic and stops; with --forever it goes on. Readers of the second topic with
isolation.level=read_committed see a count when its checkpoint is complete, once, whatever fails in between.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tidegate.common import SimpleStringSchema, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import DeliveryGuarantee
from tidegate.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from tidegate.datastream.state import ValueStateDescriptor


class CountWords(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, word: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{word} {count}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Count words from topic to topic.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--from", dest="source", required=True, metavar="TOPIC")
    parser.add_argument("--to", required=True, metavar="TOPIC")
    parser.add_argument("--forever", action="store_true")
    arguments = parser.parse_args()

    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(arguments.bootstrap_servers)
        .set_topics(arguments.source)
        .set_value_only_deserializer(SimpleStringSchema())
    )
    if not arguments.forever:
        source.set_unbounded(KafkaOffsetsInitializer.latest())
    schema = KafkaRecordSerializationSchema.builder().set_topic(arguments.to)
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(arguments.bootstrap_servers)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("word-count")
        .set_record_serializer(schema.set_value_serialization_schema(SimpleStringSchema()).build())
        .build()
    )

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(1000)
    (
        env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "lines")
        .uid("lines")
        .flat_map(str.split, Types.STRING())
        .key_by(lambda word: word)
        .process(CountWords(), Types.STRING())
        .uid("count")
        .sink_to(sink)
        .uid("counts")
    )
    env.execute("Word count from Kafka to Kafka")


if __name__ == "__main__":
    main()
