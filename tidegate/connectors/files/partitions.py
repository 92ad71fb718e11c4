"""Folders as Hive and Spark make them, `day=2026-11-16/country=FR`: the columns in the names, not in the files."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, BinaryIO

from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import BulkWriter, BulkWriterFactory, RowDataBulkWriterFactory
from tidegate.common.typeinfo import RowTypeInfo, Types, value_converter
from tidegate.common.types import Row, make_row
from tidegate.common.value_conversion import shorten
from tidegate.connectors.files.bucket_assigner import BucketAssigner, BucketContext

_NONE = "__HIVE_DEFAULT_PARTITION__"  # what Spark reads as null; an empty text is written so too
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(1, 0x20)))


def escaped(text: str) -> str:
    """A name or value as Spark writes it into a path."""
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def partition_text(value: Any) -> str:
    """The value of a partition column as Spark prints it: a time that knows its zone in UTC, as a session of Spark does
    whose spark.sql.session.timeZone is UTC; one that knows none as it is."""
    if value is None or value == "":
        return _NONE
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        shown = value.isoformat(sep=" ")  # with microseconds, if it has any
        return escaped(shown.rstrip("0") if value.microsecond else shown)
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else _NONE
    if isinstance(value, (str, int, datetime.date)):
        return escaped(str(value))
    raise TypeError(f"a {type(value).__name__} cannot be the name of a folder: {shorten(value)}")


def _double_text(value: float) -> str:
    """As Java prints a double: 0.1, 1.0E10, 1.5E-5, NaN."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(Decimal(repr(value)), "f")  # repr has the fewest digits that tell it from others, as Java's
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    power = int(exponent) + len(digits) - 1
    fraction = "".join(map(str, digits[1:])).rstrip("0") or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{power}"


class PartitionBucketAssigner(BucketAssigner):
    """A folder per combination of values, as tables of Hive and Spark have them::

        FileSink.for_bulk_format(path, ParquetBulkWriters.for_row_type(row_type))
            .with_bucket_assigner(PartitionBucketAssigner(["day", "country"]))

    The columns are part of the row type, and are left out of the files: readers take them from the names of the
    folders. By the values of columns of the record: a Row with names, a dict, or an object with attributes."""

    def __init__(self, columns: Sequence[str]) -> None:
        names = [columns] if isinstance(columns, str) else list(columns)
        if not names or not all(isinstance(name, str) and name and name[0] not in "._" for name in names):
            raise ConfigurationError(
                "PartitionBucketAssigner: takes the names of one or more columns, which do not begin with '.' or "
                f"'_', got {columns!r}"
            )
        self.columns = tuple(names)
        self._prefixes = [(name, f"{escaped(name)}=") for name in names]

    def get_bucket_id(self, element: Any, context: BucketContext) -> str:
        return "/".join(prefix + partition_text(_field(element, name)) for name, prefix in self._prefixes)


def _field(element: Any, name: str) -> Any:
    try:
        return element[name] if isinstance(element, (dict, Row)) else getattr(element, name)
    except (KeyError, AttributeError, ValueError):
        raise ConfigurationError(
            f"PartitionBucketAssigner: the record {shorten(element)} has no column '{name}'; partitioned output needs "
            "Rows with names, dicts, or objects with that attribute"
        ) from None


class WithoutColumns(BulkWriterFactory):
    """The writers of a format of rows, for files that lack some of the columns."""

    def __init__(self, factory: BulkWriterFactory, columns: Sequence[str]) -> None:
        if not isinstance(factory, RowDataBulkWriterFactory):
            raise ConfigurationError(
                "PartitionBucketAssigner: the columns can be left out of Parquet and ORC files of rows only "
                f"(ParquetBulkWriters.for_row_type, OrcBulkWriters.for_row_type), not of {type(factory).__name__}"
            )
        self._row_type = factory.get_row_type()
        names, types = self._row_type.get_field_names(), self._row_type.get_field_types()
        missing = [name for name in columns if name not in names]
        if missing or len(columns) == len(names):
            raise ConfigurationError(
                f"PartitionBucketAssigner: the row type has the columns {', '.join(names)}; the partition columns have "
                f"to be some of them, not all, got {', '.join(columns)}"
            )
        self._kept = [i for i, name in enumerate(names) if name not in columns]
        self._names = tuple(names[i] for i in self._kept)
        kept: RowTypeInfo = Types.ROW_NAMED(list(self._names), [types[i] for i in self._kept])
        self._inner = factory.with_row_type(kept)

    def create(self, stream: BinaryIO) -> BulkWriter:
        return _Kept(self._inner.create(stream), self._row_type, self._names, self._kept)


class _Kept(BulkWriter):
    def __init__(self, inner: BulkWriter, row_type: RowTypeInfo, names: tuple[str, ...], kept: list[int]) -> None:
        self._inner = inner
        self._check = value_converter(row_type)
        self._names = names
        self._kept = kept

    def add_element(self, element: Any) -> None:
        row = element if self._check is None else self._check(element)
        if row is None:
            raise TypeError("a row is wanted, got None")
        self._inner.add_element(make_row(self._names, [row._values[i] for i in self._kept]))

    def flush(self) -> None:
        self._inner.flush()

    def finish(self) -> None:
        self._inner.finish()
