"""How records become bytes for the outside, and the other way round."""

from __future__ import annotations

import abc
import codecs
import copy
from collections.abc import Callable
from typing import Any, BinaryIO

from tidegate.common.errors import ConfigurationError
from tidegate.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation, Types
from tidegate.common.types import Row, flink_text
from tidegate.common.value_conversion import mismatch


class SerializationSchema(abc.ABC):
    """Turns a record into bytes. Pickled to the workers."""

    def open(self) -> None:
        """Called once per subtask, before the first record."""

    @abc.abstractmethod
    def serialize(self, value: Any) -> bytes | None:
        """The record as bytes; None (only for a None record) where the outside has a notion of "no value"."""


class DeserializationSchema(abc.ABC):
    """Turns bytes into a record. Pickled to the workers."""

    def open(self) -> None:
        """Called once per subtask, before the first message."""

    @abc.abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """The record, or None to leave the message out."""

    def is_end_of_stream(self, next_element: Any) -> bool:
        """Whether this record ends the stream; it is not given on."""
        return False

    def get_produced_type(self) -> TypeInformation:
        return PickledBytesTypeInfo()


def _check_charset(charset: str) -> str:
    try:
        codecs.lookup(charset)
    except (LookupError, TypeError):
        raise ConfigurationError(f"Unknown charset {charset!r}; use a name such as 'UTF-8' or 'ISO-8859-1'.") from None
    return charset


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Makes bytes of text, and text of bytes."""

    def __init__(self, charset: str = "UTF-8") -> None:
        self._charset = _check_charset(charset)

    def serialize(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise mismatch("String", value, "SimpleStringSchema takes text; map the stream to str first")
        return value.encode(self._charset)

    def deserialize(self, message: bytes) -> str:
        return bytes(message).decode(self._charset)

    def get_produced_type(self) -> TypeInformation:
        return Types.STRING()


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Hands bytes through as they are, when reading and when writing."""

    def serialize(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, bytes | bytearray | memoryview):
            raise mismatch("bytes", value, "ByteArraySchema takes bytes")
        return bytes(value)

    def deserialize(self, message: bytes) -> bytes:
        return bytes(message)

    def get_produced_type(self) -> TypeInformation:
        return Types.PRIMITIVE_ARRAY(Types.BYTE())


class RowFieldExtractorSchema(SerializationSchema):
    """One field of a Row (e.g. the key of a Kafka record): bytes as they are, anything else as its text in UTF-8.
    Nothing, `b""`, for a missing row or field."""

    def __init__(self, field_index: int) -> None:
        if not isinstance(field_index, int) or isinstance(field_index, bool):
            raise ConfigurationError(f"Field index must be a whole number, got: {field_index!r}")
        if field_index < 0:
            raise ConfigurationError(f"Field index must be non-negative, got: {field_index}")
        self.field_index = field_index

    def serialize(self, value: Any) -> bytes:
        if value is None:
            return b""
        if not isinstance(value, Row):
            raise mismatch("Row", value, "RowFieldExtractorSchema takes rows")
        if self.field_index >= len(value):
            raise mismatch("Row", value, f"no field {self.field_index}, the row has {len(value)} fields")
        field = value[self.field_index]
        if field is None:
            return b""
        return bytes(field) if isinstance(field, bytes | bytearray) else flink_text(field).encode()


class Encoder(abc.ABC):
    """Writes records one after the other into a file (row formats of the file sink)."""

    def for_declared_type(self) -> Encoder:
        """The encoder for a stream whose type the program has declared: itself, unless that makes a difference."""
        return self

    @abc.abstractmethod
    def encode(self, element: Any, stream: BinaryIO) -> None: ...

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """One line per record: as Flink prints it when the stream has a declared type, otherwise `str(record)`."""
        return _SimpleStringEncoder(charset_name)


class _SimpleStringEncoder(Encoder):
    def __init__(self, charset_name: str, text: Callable[[Any], str] = str) -> None:
        self._charset = _check_charset(charset_name)
        self._text = text

    def encode(self, element: Any, stream: BinaryIO) -> None:
        stream.write(f"{self._text(element)}\n".encode(self._charset))

    def for_declared_type(self) -> Encoder:
        return _SimpleStringEncoder(self._charset, flink_text)


class BulkWriter(abc.ABC):
    """Writes one file of a bulk format."""

    @abc.abstractmethod
    def add_element(self, element: Any) -> None: ...

    @abc.abstractmethod
    def flush(self) -> None:
        """Hand what is buffered to the stream."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Write what ends the file. The stream is closed by the caller."""


class BulkWriterFactory(abc.ABC):
    """Makes the writers of a bulk format, one per file. Pickled to the workers."""

    @abc.abstractmethod
    def create(self, stream: BinaryIO) -> BulkWriter: ...


class RowDataBulkWriterFactory(BulkWriterFactory):
    """A bulk format whose records are rows of a declared type."""

    def __init__(self, row_type: RowTypeInfo) -> None:
        if not isinstance(row_type, RowTypeInfo):
            raise ConfigurationError(f"A bulk format of rows needs a row type (Types.ROW_NAMED), got {row_type!r}.")
        self._row_type = row_type

    def get_row_type(self) -> RowTypeInfo:
        return self._row_type

    def with_row_type(self, row_type: RowTypeInfo) -> RowDataBulkWriterFactory:
        """The same format for rows of another type."""
        changed = copy.copy(self)
        changed._row_type = row_type
        return changed
