"""PyFlink's path for `tidegate.formats.avro`."""

from tidegate.connectors.files.avro_input import AvroInputFormat
from tidegate.formats.avro import (
    AvroBulkWriters,
    AvroFormat,
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    AvroSchema,
    GenericRecordAvroTypeInfo,
)

__all__ = [
    "AvroBulkWriters",
    "AvroFormat",
    "AvroInputFormat",
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "AvroSchema",
    "GenericRecordAvroTypeInfo",
]
