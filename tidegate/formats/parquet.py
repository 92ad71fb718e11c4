"""Parquet files: of rows, and of Avro's generic records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.serialization import BulkWriter, BulkWriterFactory, RowDataBulkWriterFactory
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation, value_converter
from tidegate.common.types import Row
from tidegate.common.value_conversion import shorten
from tidegate.contracts.file_formats import BulkFormat
from tidegate.formats.arrow_columns import cast_column
from tidegate.formats.arrow_rows import ColumnsOfRecords, declared_rows
from tidegate.formats.arrow_types import arrow_schema
from tidegate.formats.avro_types import (
    AvroSchema,
    GenericRecordAvroTypeInfo,
    arrow_schema_of,
    record_from_columns,
    record_to_columns,
)
from tidegate.formats.columnar import ColumnarReader, ColumnarWriter
from tidegate.formats.text_lines import StreamFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.contracts.file_formats import InputFile

__all__ = ["AvroParquetReaders", "AvroParquetWriters", "ParquetBulkWriters", "ParquetColumnarRowInputFormat"]


# ---------------------------------------------------------------- reading


def _reader(
    file: InputFile,
    start: int,
    end: int,
    offset: Any | None,
    wanted: list[str],
    batch_size: int,
    to_records: Callable[[pa.RecordBatch], list[Any]],
) -> ColumnarReader:
    """Of the row groups that begin in [start, end)."""
    import pyarrow.parquet as pq

    source = file.open_arrow()
    try:
        parquet = pq.ParquetFile(source)
        metadata = parquet.metadata
        groups = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            column = group.column(0) if group.num_columns else None
            begins = 0 if column is None else column.dictionary_page_offset or column.data_page_offset
            if start <= begins < end:
                groups.append((number, group.num_rows))
        columns = [name for name in wanted if name in parquet.schema_arrow.names]
    except BaseException:
        source.close()
        raise

    def batches(numbers: list[int]) -> Iterator[pa.RecordBatch]:
        if numbers:
            yield from parquet.iter_batches(batch_size, row_groups=numbers, columns=columns, use_threads=False)

    return ColumnarReader(groups, batches, to_records, source.close, offset)


class ParquetColumnarRowInputFormat(BulkFormat):
    """Rows of parquet files. Columns are found by name; those that a file lacks are None. Large files are read in
    parts, by row groups.

    `row_type` is a row type of `Types` (PyFlink has the Table API's here). `hadoop_config` and `is_utc_timestamp` are
    accepted without effect: timestamps are always UTC.
    """

    def __init__(
        self,
        row_type: RowTypeInfo,
        hadoop_config: Any = None,
        batch_size: int = 2048,
        is_utc_timestamp: bool = False,
        is_case_sensitive: bool = True,
    ) -> None:
        if not isinstance(row_type, RowTypeInfo):
            raise ConfigurationError(
                f"ParquetColumnarRowInputFormat: takes a row type (Types.ROW_NAMED), got {row_type!r}"
            )
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigurationError(f"ParquetColumnarRowInputFormat(batch_size): has to be > 0, got {batch_size!r}")
        if not is_case_sensitive:
            raise ConfigurationError(
                "ParquetColumnarRowInputFormat(is_case_sensitive): names are always case-sensitive"
            )
        arrow_schema(row_type)  # says early what has no column type
        self._row_type = row_type
        self._batch_size = batch_size

    def is_splittable(self, path: str) -> bool:
        return True

    def create_reader(self, file: InputFile, start: int, end: int, offset: Any | None) -> ColumnarReader:
        names = self._row_type.get_field_names()
        rows = declared_rows(self._row_type)
        return _reader(file, start, end, offset, names, self._batch_size, rows)

    def get_produced_type(self) -> TypeInformation:
        return self._row_type


class AvroParquetReaders:
    @staticmethod
    def for_generic_record(schema: AvroSchema) -> StreamFormat:
        """For `FileSource.for_record_stream_format`: records as dicts."""
        return _AvroParquetFormat(schema)


class _AvroParquetFormat(StreamFormat):
    def __init__(self, schema: AvroSchema) -> None:
        if not isinstance(schema, AvroSchema):
            raise TypeError(f"AvroParquetReaders.for_generic_record: takes an AvroSchema, got {schema!r}")
        arrow_schema_of(schema)
        self._schema = schema

    def is_splittable(self, path: str) -> bool:
        return True

    def create_reader(self, file: InputFile, start: int, end: int, offset: Any | None) -> ColumnarReader:
        schema = arrow_schema_of(self._schema)
        convert = record_from_columns(self._schema.expanded)
        names = schema.names

        def records(batch: pa.RecordBatch) -> list[Any]:
            missing = [name for name in names if batch.schema.get_field_index(name) < 0]
            if missing:
                raise TidegateError(
                    f"the file has no column {', '.join(missing)}; it has {', '.join(batch.schema.names)}"
                )
            columns = [cast_column(batch.column(f.name), f.name, f.type).to_pylist() for f in schema]
            return [convert(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]

        return _reader(file, start, end, offset, names, 2048, records)

    def get_produced_type(self) -> TypeInformation:
        return GenericRecordAvroTypeInfo(self._schema)


# ---------------------------------------------------------------- writing


class ParquetOutput:
    """A `columnar.TableOutput`: a row group per table."""

    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(stream, schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._writer.close()


class ParquetBulkWriters:
    @staticmethod
    def for_row_type(
        row_type: RowTypeInfo, hadoop_config: Any = None, utc_timestamp: bool = False
    ) -> BulkWriterFactory:
        """For `FileSink.for_bulk_format`: rows (or tuples, lists, dicts). The last two arguments are accepted without
        effect: timestamps are always UTC."""
        return _RowsFactory(row_type)


class _RowsFactory(RowDataBulkWriterFactory):
    def __init__(self, row_type: RowTypeInfo) -> None:
        super().__init__(row_type)
        arrow_schema(row_type)

    def create(self, stream: BinaryIO) -> BulkWriter:
        return rows_writer(stream, self._row_type, ParquetOutput)


def rows_writer(stream: BinaryIO, row_type: RowTypeInfo, output: Callable[[Any, pa.Schema], Any]) -> ColumnarWriter:
    columns = ColumnsOfRecords(arrow_schema(row_type))
    check = value_converter(row_type)
    assert check is not None

    def to_batch(records: list[Any]) -> pa.RecordBatch:
        rows = [check(record) for record in records]
        if any(row is None for row in rows):  # `in` would compare
            raise TidegateError("a row is wanted, got None")
        return columns.batch_of([row._values for row in rows], records)

    return ColumnarWriter(stream, columns.schema, to_batch, output)


class AvroParquetWriters:
    @staticmethod
    def for_generic_record(schema: AvroSchema) -> BulkWriterFactory:
        """For `FileSink.for_bulk_format`: dicts, or Rows with names."""
        if not isinstance(schema, AvroSchema):
            raise TypeError(f"AvroParquetWriters.for_generic_record: takes an AvroSchema, got {schema!r}")
        arrow_schema_of(schema)
        return _RecordsFactory(schema)


class _RecordsFactory(BulkWriterFactory):
    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema

    def create(self, stream: BinaryIO) -> BulkWriter:
        import pyarrow as pa

        schema = arrow_schema_of(self._schema)
        convert = record_to_columns(self._schema.expanded)

        def to_batch(records: list[Any]) -> pa.RecordBatch:
            dicts = [record.as_dict(True) if isinstance(record, Row) else record for record in records]
            for record in dicts:
                missing = [f.name for f in schema if not f.nullable and record.get(f.name) is None]
                if missing:
                    raise TidegateError(f"the record {shorten(record)} has no {', '.join(missing)}, which is required")
            try:
                return pa.RecordBatch.from_pylist([convert(record) for record in dicts], schema=schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise TidegateError(f"a record does not fit the Avro schema: {error}") from error

        return ColumnarWriter(stream, schema, to_batch, ParquetOutput)
