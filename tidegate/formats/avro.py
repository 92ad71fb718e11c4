"""Avro: files of generic records (dicts), and messages."""

from __future__ import annotations

import io
from itertools import islice
from typing import Any, BinaryIO

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.serialization import BulkWriter, BulkWriterFactory, DeserializationSchema, SerializationSchema
from tidegate.common.typeinfo import TypeInformation
from tidegate.common.types import Row
from tidegate.common.value_conversion import shorten
from tidegate.contracts.file_formats import BulkFormat, FileRecordReader, InputFile
from tidegate.formats.avro_types import (
    AvroSchema,
    GenericRecordAvroTypeInfo,
    record_to_row,
    row_to_record,
    row_type_of,
)

__all__ = [
    "AvroBulkWriters",
    "AvroFormat",
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "AvroSchema",
    "GenericRecordAvroTypeInfo",
]


def _checked_schema(schema: object, where: str) -> AvroSchema:
    if not isinstance(schema, AvroSchema):
        raise TypeError(f"{where}: takes an AvroSchema (AvroSchema.parse_string), got {schema!r}")
    return schema


# ---------------------------------------------------------------- reading files


class AvroFormat(BulkFormat):
    """Records of Avro files as dicts, for `FileSource.for_bulk_file_format`. A file is read by one reader. The schema
    is that of the reader: files may have been written with another one that can be resolved to it."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = _checked_schema(schema, "AvroFormat")

    def create_reader(self, file: InputFile, start: int, end: int, offset: Any | None) -> _AvroReader:
        return _AvroReader(file, self._schema, offset)

    def get_produced_type(self) -> TypeInformation:
        return GenericRecordAvroTypeInfo(self._schema)


class _AvroReader(FileRecordReader[Any]):
    """The offset is the number of records before it: blocks before it are passed over without being decoded."""

    _BLOCKS = 64  # that are passed over in one call

    def __init__(self, file: InputFile, schema: AvroSchema, offset: int | None) -> None:
        from fastavro import block_reader

        raw: Any = file.open()
        self._stream = io.BufferedReader(raw, 1 << 20)
        self._blocks: Any = None
        if file.size:
            self._blocks = iter(block_reader(self._stream, schema.parsed))
        self._records: Any = None
        self._position = 0
        self._target = offset or 0

    def read(self, max_records: int) -> list[Any] | None:
        if self._blocks is None:
            return None
        for _ in range(self._BLOCKS):
            if self._records is None:
                block = next(self._blocks, None)
                if block is None:
                    return None
                if self._position + block.num_records <= self._target:
                    self._position += block.num_records
                    continue
                self._records = iter(block)
                while self._position < self._target:
                    next(self._records)
                    self._position += 1
            records = list(islice(self._records, max_records))
            if records:
                self._position += len(records)
                self._target = self._position
                return records
            self._records = None
        return []

    def offset(self) -> int:
        return max(self._position, self._target)

    def close(self) -> None:
        self._stream.close()


# ---------------------------------------------------------------- writing files


class AvroBulkWriters:
    @staticmethod
    def for_generic_record(schema: AvroSchema) -> BulkWriterFactory:
        """For `FileSink.for_bulk_format`: dicts, or Rows with names."""
        _checked_schema(schema, "AvroBulkWriters.for_generic_record").fields  # noqa: B018 (checks that it is a record)
        return _AvroWriterFactory(schema)


class _AvroWriterFactory(BulkWriterFactory):
    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema

    def create(self, stream: BinaryIO) -> BulkWriter:
        return _AvroWriter(stream, self._schema)


class _AvroWriter(BulkWriter):
    def __init__(self, stream: BinaryIO, schema: AvroSchema) -> None:
        from fastavro.write import Writer

        self._writer = Writer(stream, schema.parsed, codec="deflate")

    def add_element(self, element: Any) -> None:
        record = element.as_dict(True) if isinstance(element, Row) else element
        self._writer.write(record)

    def flush(self) -> None:
        self._writer.flush()

    def finish(self) -> None:
        self.flush()


# ---------------------------------------------------------------- messages


def _message_schema(record_class: object, avro_schema_string: str | None, where: str) -> AvroSchema:
    if record_class is not None:
        raise ConfigurationError(
            f"{where}(record_class): classes that Avro's Java tools generate do not exist here; give avro_schema_string"
        )
    if avro_schema_string is None:
        raise ConfigurationError(f"{where}: give the schema: avro_schema_string")
    return AvroSchema.parse_string(avro_schema_string)


class AvroRowDeserializationSchema(DeserializationSchema):
    """A message of one Avro record, without a header, to a Row."""

    def __init__(self, record_class: str | None = None, avro_schema_string: str | None = None) -> None:
        self._schema = _message_schema(record_class, avro_schema_string, "AvroRowDeserializationSchema")
        self._type_info = row_type_of(self._schema)
        self._to_row = record_to_row(self._schema.expanded)

    def deserialize(self, message: bytes) -> Row:
        from fastavro import schemaless_reader

        data = io.BytesIO(message)
        try:
            row: Row = self._to_row(schemaless_reader(data, self._schema.parsed, None))
        except Exception as error:  # whatever broken bytes lead to
            raise TidegateError(
                f"not an Avro record of {self._type_info}: {type(error).__name__}: {error}: {shorten(bytes(message))}"
            ) from error
        if data.tell() != len(message):
            raise TidegateError(
                f"not an Avro record of {self._type_info}: {len(message) - data.tell()} bytes are left over: "
                f"{shorten(bytes(message))}"
            )
        return row

    def get_produced_type(self) -> TypeInformation:
        return self._type_info

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroRowDeserializationSchema, (None, str(self._schema))


class AvroRowSerializationSchema(SerializationSchema):
    """A Row to a message of one Avro record, without a header."""

    def __init__(self, record_class: str | None = None, avro_schema_string: str | None = None) -> None:
        self._schema = _message_schema(record_class, avro_schema_string, "AvroRowSerializationSchema")
        row_type_of(self._schema)
        self._to_record = row_to_record(self._schema.expanded)

    def serialize(self, value: Any) -> bytes:
        from fastavro import schemaless_writer

        data = io.BytesIO()
        try:
            schemaless_writer(data, self._schema.parsed, self._to_record(value))
        except Exception as error:  # fastavro raises many kinds for a value that does not fit
            raise TidegateError(
                f"{shorten(value)} does not fit the Avro schema: {type(error).__name__}: {error}"
            ) from error
        return data.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroRowSerializationSchema, (None, str(self._schema))
