"""How far readers say they are, for the line of progress and the page."""

from __future__ import annotations

from typing import Any

from tidegate.common.serialization import SimpleStringSchema
from tidegate.connectors.collection import CollectionReader
from tidegate.connectors.datagen import DataGeneratorReader, DataGeneratorSplit
from tidegate.connectors.kafka.reading import KafkaPartitionReader, KafkaSplit
from tidegate.connectors.number_sequence import NumberSequenceReader
from tidegate.contracts.connectors import SourceContext


class Client:
    """Of a partition, without a broker: what the reader asks of it."""

    def __init__(self, end: int | None) -> None:
        self._end = end

    def add(self, reader: Any, offset: int | None) -> None: ...

    def end_of(self, split: KafkaSplit) -> int | None:
        return self._end


def kafka(start: int, stop: int | None, offset: int | None, end: int | None) -> KafkaPartitionReader:
    client: Any = Client(end)
    return KafkaPartitionReader(KafkaSplit("t-0", "t", 0, start, stop), offset, client, SimpleStringSchema(), False)


def test_readers_of_what_is_counted_know_their_share() -> None:
    numbers = NumberSequenceReader(20, 110, first=10)  # restored after ten of a hundred
    assert numbers.progress() == 0.1
    numbers.poll(40)
    assert numbers.progress() == 0.5
    elements = CollectionReader(["a", "b", "c", "d"], 0)
    elements.poll(1)
    assert elements.progress() == 0.25
    assert CollectionReader([], 0).progress() == 0.0
    split = DataGeneratorSplit("0", 0, 1)
    context = SourceContext("numbers", 0, 1, None)
    generated = DataGeneratorReader(lambda i: i, split, 30, 60, None, context)
    assert generated.progress() == 0.5
    assert DataGeneratorReader(lambda i: i, split, 30, None, None, context).progress() is None


def test_a_partition_knows_its_share_when_it_has_a_stop_and_what_waits_when_it_was_fetched_from() -> None:
    bounded = kafka(100, 300, 150, None)
    assert (bounded.progress(), bounded.pending_records()) == (0.25, 150)
    endless = kafka(100, None, 150, 1_000)
    assert (endless.progress(), endless.pending_records()) == (None, 850)
    assert kafka(100, None, 150, None).pending_records() is None  # nothing was fetched yet
    assert kafka(100, None, 150, 140).pending_records() == 0  # what was known of the end is older than the position
