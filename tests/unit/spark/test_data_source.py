"""PySparkSource without Spark: every kind of reader, from every offset."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tidegate.common import Row
from tidegate.common.errors import ConfigurationError
from tidegate.datastream.connectors.base import Boundedness, SourceContext
from tidegate.datastream.connectors.spark import PySparkSource
from tidegate.formats.arrow_columns import RecordMismatchError

SCHEMA = StructType([StructField("n", LongType()), StructField("s", StringType())])


class Clock:
    def now_ms(self) -> float:
        return time.monotonic() * 1000


CONTEXT = SourceContext("source", 0, 1, Clock())


class Batch(DataSource):
    """Partition 0 gives tuples, 1 Rows with the names in another order, 2 record batches, 3 a bad record."""

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(int(self.options.get("partitions", "3")))


class BatchReader(DataSourceReader):
    def __init__(self, count: int) -> None:
        self.count = count

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(i) for i in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for i in range(2500):
            if partition.value == 0:
                yield i, str(i)
            elif partition.value == 1:
                yield SparkRow(s=str(i), n=i)
            elif partition.value == 2 and i % 500 == 0:
                numbers = range(i, i + 500)
                yield pa.RecordBatch.from_pydict({"s": [str(n) for n in numbers], "n": pa.array(numbers, pa.int32())})
            elif partition.value == 3:
                yield ("x" if i == 3 else i), str(i)


class Planned(DataSource):
    """Ranges of 7 numbers in two partitions, up to 28."""

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PlannedReader()


class PlannedReader(DataSourceStreamReader):
    committed: list[int] = []

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"at": min(start["at"] + 7, 28)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        middle = (start["at"] + end["at"]) // 2
        return [InputPartition((start["at"], middle)), InputPartition((middle, end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for n in range(*partition.value):
            yield n, str(n)

    def commit(self, end: dict[str, int]) -> None:
        PlannedReader.committed.append(end["at"])


class PlannedOld(Planned):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return OldReader()


class OldReader(PlannedReader):
    """As Spark 4.0 wants it."""

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"at": 28}


class Simple(DataSource):
    def schema(self) -> StructType:
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleReader()


class SimpleReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        end = {"at": min(start["at"] + 7, 28)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return iter([(n, str(n)) for n in range(start["at"], end["at"])])


def read(reader: Any, count: int | None) -> list[tuple[Any, Any]]:
    """(number, offset behind it, None inside of a chunk), of so many rows, or to the end."""
    found: list[tuple[Any, Any]] = []
    end = time.monotonic() + 20
    while (count is None or len(found) < count) and time.monotonic() < end:
        rows = reader.poll(100)
        if rows is None:
            return found
        assert all(row == Row(n=row.n, s=str(row.n)) for row in rows)
        found += [(row.n, None) for row in rows]
        if rows:
            found[-1] = (rows[-1].n, reader.offset())
    assert count is not None
    assert len(found) == count
    return found


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_a_partition_gives_its_rows_and_goes_on_from_every_offset(partition: int) -> None:
    source = PySparkSource(Batch({}))
    assert source.boundedness is Boundedness.BOUNDED
    splits = source.create_splits(2)
    assert len(splits) == 3
    reader = source.create_reader(splits[partition], None, CONTEXT)
    rows = read(reader, None)
    assert [n for n, _ in rows] == list(range(2500))
    offsets = [offset for _, offset in rows if offset is not None]
    assert len(offsets) >= 3
    for offset in offsets:
        again = source.create_reader(splits[partition], offset, CONTEXT)
        assert [n for n, _ in read(again, None)] == list(range(offset, 2500))
        again.close()
    reader.close()


@pytest.mark.parametrize("data_source", [Planned, PlannedOld, Simple])
def test_a_stream_goes_on_from_every_offset(data_source: type[DataSource]) -> None:
    source = PySparkSource(data_source)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    (split,) = source.create_splits(4)
    reader = source.create_reader(split, None, CONTEXT)
    rows = read(reader, 28)
    assert [n for n, _ in rows] == list(range(28))
    assert reader.poll(10) == []
    for n, offset in rows:
        if offset is not None:
            again = source.create_reader(split, offset, CONTEXT)
            assert [m for m, _ in read(again, 27 - n)] == list(range(n + 1, 28))
            again.close()
    if data_source is Planned:
        reader.notify_checkpoint_complete(1, ({"at": 14}, {"at": 21}, 3))
        end = time.monotonic() + 20
        while not PlannedReader.committed and time.monotonic() < end:
            time.sleep(0.01)
        assert PlannedReader.committed == [14]
    reader.close()


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="takes an instance of"):
        PySparkSource(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="implements none of reader, streamReader and simpleStreamReader"):
        PySparkSource(DataSource({}))
    with pytest.raises(ConfigurationError, match="Batch implements neither streamReader"):
        PySparkSource(Batch({}), streaming=True)
    with pytest.raises(ConfigurationError, match="Simple does not implement reader"):
        PySparkSource(Simple({}), streaming=False)

    class Shy(Batch):
        def schema(self) -> StructType:
            return DataSource.schema(self)  # type: ignore[return-value]

    with pytest.raises(ConfigurationError, match="Shy does not say its schema"):
        PySparkSource(Shy({}))
    only = PySparkSource(Shy({}), schema=StructType([StructField("n", IntegerType())]))
    reader = only.create_reader(only.create_splits(1)[0], None, CONTEXT)
    with pytest.raises(RecordMismatchError, match=r"the schema has 1 columns \(n\), but the record has 2 values"):
        read(reader, None)
    bad = PySparkSource(Batch({"partitions": "4"}))
    reader = bad.create_reader(bad.create_splits(1)[3], None, CONTEXT)
    with pytest.raises(RecordMismatchError, match=r"column 'n' of type int64 cannot hold 'x'.*\('x', '3'\)"):
        read(reader, None)
