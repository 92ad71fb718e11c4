"""The file source on an S3-compatible server that runs on this machine."""

from __future__ import annotations

import gzip
import io
import threading
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.file_source_kit import Clock, context, drain, read_all, source_of
from tidegate.common import Duration, Types
from tidegate.common.types import Row
from tidegate.contracts.file_formats import InputFileError
from tidegate.datastream.connectors.file_system import FileSource, StreamFormat
from tidegate.datastream.formats.avro import AvroBulkWriters, AvroFormat, AvroSchema
from tidegate.datastream.formats.parquet import ParquetColumnarRowInputFormat

TEXT = StreamFormat.text_line_format()


@pytest.fixture
def place(s3_server: tuple[str, Any], request: pytest.FixtureRequest) -> Any:
    endpoint, client = s3_server
    folder = request.node.name

    class Place:
        uri = f"s3://bucket/{folder}?endpoint_override={endpoint}"

        @staticmethod
        def put(name: str, data: bytes) -> None:
            client.put_object(Bucket="bucket", Key=f"{folder}/{name}", Body=data)

        @staticmethod
        def delete(name: str) -> None:
            client.delete_object(Bucket="bucket", Key=f"{folder}/{name}")

    return Place()


def test_text_in_parts_and_from_every_offset(place: Any) -> None:
    lines = [f"line {i}" for i in range(30)]
    place.put("a b/x.txt", "\n".join(lines).encode())
    place.put("z.gz", gzip.compress(b"zipped\n"))
    place.put("_hidden", b"no\n")
    source = source_of(TEXT, place.uri, split_bytes=100)
    assert read_all(source) == [*lines, "zipped"]
    (split,) = source.create_splits(1)
    assert "secret" not in repr(split)
    reader = source.create_reader(split, None, context())
    read: list[str] = []
    while (values := reader.poll(4)) is not None:
        read += values
        if values:
            again = source.create_reader(split, reader.offset(), context())
            assert read + drain(again) == [*lines, "zipped"]
        time.sleep(0.001)


def test_parquet_and_avro(place: Any) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": list(range(20))}), sink, row_group_size=5)
    place.put("p.parquet", sink.getvalue())
    rows = ParquetColumnarRowInputFormat(Types.ROW_NAMED(["a"], [Types.LONG()]))
    folder = place.uri.replace("?", "/p.parquet?")
    assert read_all(source_of(rows, folder, split_bytes=50)) == [Row(a=i) for i in range(20)]
    schema = AvroSchema.parse_string('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}')
    sink = io.BytesIO()
    writer = AvroBulkWriters.for_generic_record(schema).create(sink)
    for i in range(5):
        writer.add_element({"a": i})
    writer.finish()
    place.put("r.avro", sink.getvalue())
    assert read_all(source_of(AvroFormat(schema), place.uri.replace("?", "/r.avro?"))) == [{"a": i} for i in range(5)]


def test_an_object_that_vanishes(place: Any) -> None:
    place.put("a", b"1\n")
    source = source_of(TEXT, place.uri)
    (split,) = source.create_splits(1)
    place.delete("a")
    with pytest.raises(InputFileError, match=r"s3://bucket/.*/a has vanished"):
        drain(source.create_reader(split, None, context()))
    with pytest.raises(InputFileError, match="no such file or folder"):
        source_of(TEXT, place.uri.replace("?", "/nothing?")).create_splits(1)


def test_a_watched_bucket(place: Any) -> None:
    place.put("a", b"1\n")
    source = FileSource.for_record_stream_format(TEXT, place.uri).monitor_continuously(Duration.of_seconds(1)).build()
    enumerator = source.create_enumerator(1)
    woken = threading.Event()
    where = context(Clock())
    where.wake = woken.set

    def read(split: Any) -> list[str]:
        reader = source.create_reader(split, None, where)
        found: list[str] = []
        while (polled := reader.poll(10)) is not None:
            found += polled
            if not polled and reader.wake_at_ms() != where.clock.now_ms():
                assert woken.wait(20)  # by the helper thread that has read
                woken.clear()
        reader.close()
        return found

    (first,) = enumerator.discover(frozenset()).splits
    assert read(first) == ["1"]
    place.put("b", b"2\n")
    (second,) = enumerator.discover(frozenset(first.names)).splits
    assert read(second) == ["2"]
