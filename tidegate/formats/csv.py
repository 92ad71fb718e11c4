"""Comma-separated values: files and messages."""

from __future__ import annotations

from tidegate.formats.csv_files import CsvBulkWriters, CsvReaderFormat, HeaderMismatchError
from tidegate.formats.csv_messages import CsvRowDeserializationSchema, CsvRowSerializationSchema
from tidegate.formats.csv_schema import CsvSchema, CsvSchemaBuilder

__all__ = [
    "CsvBulkWriters",
    "CsvReaderFormat",
    "CsvRowDeserializationSchema",
    "CsvRowSerializationSchema",
    "CsvSchema",
    "CsvSchemaBuilder",
    "HeaderMismatchError",
]
