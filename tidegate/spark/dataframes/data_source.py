"""`PySparkSource`: a user's PySpark Python data source as a source of a job, without a query of Spark.

Bounded (`reader`): each input partition is a split. Its offset is the number of rows that were read, and after a
restart the partition is read again up to there: so a partition has to give the same rows in the same order, which
Spark asks of it too when it runs a task again.

Unbounded (`streamReader` or `simpleStreamReader`): one split, which plans and reads as Spark's driver does. Its offset
is the range of the data source's own offsets that is being read and the rows of it that were; a range that was begun is
read again between the same two offsets. `commit` of the data source is called when a checkpoint is past a range.

The data source is called on a thread of its own, since it may block; what it gives waits in a bounded queue.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidegate.common.errors import ConfigurationError
from tidegate.common.types import Row
from tidegate.contracts.connectors import Boundedness, Source, SourceContext, SourceSplit, SplitReader
from tidegate.spark.dataframes.row_pump import Chunk, PumpedReader, in_chunks
from tidegate.spark.dataframes.schemas import arrow_schema_of, given_schema, row_type_of

if TYPE_CHECKING:
    import pyarrow as pa

WHERE = "PySparkSource"


@dataclass(frozen=True)
class PartitionSplit(SourceSplit):
    partition: bytes  # cloudpickled


class PySparkSource(Source[Row]):
    """`data_source`: an instance of a `pyspark.sql.datasource.DataSource`, or such a class, which is then made with
    `options`. `schema`: a StructType or a DDL string; without one that of the data source. `streaming`: read its stream
    instead of its batch; needed only when it has both."""

    gives_timestamps = False

    def __init__(
        self,
        data_source: DataSource | type[DataSource],
        *,
        schema: StructType | str | None = None,
        streaming: bool | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        if isinstance(data_source, type) and issubclass(data_source, DataSource):
            data_source = data_source(dict(options or {}))
        if not isinstance(data_source, DataSource):
            raise TypeError(
                f"{WHERE}: takes an instance of pyspark.sql.datasource.DataSource, got {type(data_source).__name__}"
            )
        self._streaming = _is_streaming(data_source, streaming)
        struct = _schema_of(data_source, schema)
        self._row_type = row_type_of(struct, WHERE)
        self._schema: pa.Schema = arrow_schema_of(struct, WHERE)
        self._name = type(data_source).__name__
        self._shipped: bytes = cloudpickle.dumps((data_source, struct))  # as Spark ships it

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED if self._streaming else Boundedness.BOUNDED

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        if self._streaming:
            return [SourceSplit("stream")]
        source, struct = cloudpickle.loads(self._shipped)
        partitions: Sequence[Any]
        try:
            partitions = list(source.reader(struct).partitions())
        except PySparkNotImplementedError:
            partitions = [None]
        return [PartitionSplit(f"partition-{i}", cloudpickle.dumps(p)) for i, p in enumerate(partitions)]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Row]:
        source, struct = cloudpickle.loads(self._shipped)
        name = f"{context.operator_name}-{split.split_id}"
        if isinstance(split, PartitionSplit):
            reader = source.reader(struct)
            partition = cloudpickle.loads(split.partition)
            read = offset or 0
            return PumpedReader(name, read, _rows_of(reader.read(partition), self._schema, read), None, context.clock)
        stream = _Stream(_stream_reader(source, struct), self._schema, offset)
        return PumpedReader(name, stream.offset, stream.chunks(), stream.commit, context.clock)

    def get_produced_type(self) -> Any:
        return self._row_type

    def __repr__(self) -> str:
        return f"PySparkSource({self._name})"


def _overrides(source: DataSource, method: str) -> bool:
    return getattr(type(source), method) is not getattr(DataSource, method)


def _is_streaming(source: DataSource, wanted: bool | None) -> bool:
    batch = _overrides(source, "reader")
    stream = _overrides(source, "streamReader") or _overrides(source, "simpleStreamReader")
    name = type(source).__name__
    if wanted is None:
        if not batch and not stream:
            raise ConfigurationError(
                f"{WHERE}: {name} cannot be read: it implements none of reader, streamReader and simpleStreamReader"
            )
        return not batch
    if wanted and not stream:
        raise ConfigurationError(f"{WHERE}: {name} implements neither streamReader nor simpleStreamReader")
    if not wanted and not batch:
        raise ConfigurationError(f"{WHERE}: {name} does not implement reader, only a stream; leave streaming=False out")
    return wanted


def _schema_of(source: DataSource, given: StructType | str | None) -> StructType:
    if given is None:
        try:
            given = source.schema()
        except PySparkNotImplementedError:
            raise ConfigurationError(
                f"{WHERE}: {type(source).__name__} does not say its schema; give it: PySparkSource(..., schema='a int')"
            ) from None
    if isinstance(given, StructType):
        return given
    return given_schema(given, WHERE)[0]


# ---------------------------------------------------------------- rows


def _rows_of(rows: Any, schema: pa.Schema, skip: int) -> Iterator[Chunk]:
    """Chunks after the first `skip` rows; the position is the number of rows before."""
    position = skip
    for chunk in in_chunks(rows, schema, skip):
        position += len(chunk)
        yield Chunk(chunk, position)


# ---------------------------------------------------------------- streams


def _stream_reader(source: DataSource, struct: StructType) -> Any:
    if _overrides(source, "streamReader"):
        return _Planned(source.streamReader(struct))
    return _Simple(source.simpleStreamReader(struct))


class _Planned:
    """A DataSourceStreamReader: plan, then read the partitions one after the other."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._arguments = len(inspect.signature(reader.latestOffset).parameters)  # (start, limit) since Spark 4.1

    def initial(self) -> Any:
        return self._reader.initialOffset()

    def next(self, start: Any) -> tuple[Any, Any]:
        """The next range: its end, and its rows when they came with it."""
        if self._arguments == 0:
            return self._reader.latestOffset(), None
        return self._reader.latestOffset(start, self._reader.getDefaultReadLimit()), None

    def read(self, start: Any, end: Any) -> Iterator[Any]:
        for partition in self._reader.partitions(start, end):
            yield from self._reader.read(partition)

    def commit(self, end: Any) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()


class _Simple:
    """A SimpleDataSourceStreamReader: the rows come with the plan the first time."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def initial(self) -> Any:
        return self._reader.initialOffset()

    def next(self, start: Any) -> tuple[Any, Any]:
        rows, end = self._reader.read(start)
        return end, rows

    def read(self, start: Any, end: Any) -> Iterator[Any]:
        rows: Iterator[Any] = self._reader.readBetweenOffsets(start, end)
        return rows

    def commit(self, end: Any) -> None:
        self._reader.commit(end)

    def stop(self) -> None: ...


class _Stream:
    """The offset is (start, end, rows read of that range); end is None between two ranges."""

    def __init__(self, reader: _Planned | _Simple, schema: pa.Schema, offset: Any | None) -> None:
        self._reader = reader
        self._schema = schema
        self.offset: tuple[Any, Any, int] = offset if offset is not None else (None, None, 0)

    def chunks(self) -> Iterator[Chunk]:
        try:
            yield from self._endless()
        finally:
            self._reader.stop()

    def _endless(self) -> Iterator[Chunk]:
        start, end, read = self.offset
        if start is None:
            start = self._reader.initial()
        while True:
            rows = None
            if end is None:
                end, rows = self._reader.next(start)
                if end == start:
                    self._check_standstill(rows, start)
                    end = None
                    yield Chunk([], (start, None, 0))
                    continue
            if rows is None:
                rows = self._reader.read(start, end)
            for chunk in in_chunks(rows, self._schema, read):
                read += len(chunk)
                yield Chunk(chunk, (start, end, read))
            start, end, read = end, None, 0
            yield Chunk([], (start, None, 0))

    def _check_standstill(self, rows: Any, start: Any) -> None:
        if rows is not None and next(iter(rows), None) is not None:
            raise ConfigurationError(
                f"the data source gave rows without moving its offset on from {start}: they would be read for ever"
            )

    def commit(self, offset: tuple[Any, Any, int]) -> None:
        if offset[0] is not None:
            self._reader.commit(offset[0])
