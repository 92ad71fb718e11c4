"""Records as Arrow record batches and back, led by an Arrow schema: for files, DataFrames, landed batches and Delta.

The schema may say more than a declared type can (the precision of a decimal, a column that must not be null). The
message about a value that does not fit shows the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.common.type_schema import TypeSchema, schema_of
from tidegate.common.typeinfo import RowTypeInfo
from tidegate.common.types import Row, make_row
from tidegate.common.value_conversion import shorten
from tidegate.formats.arrow_columns import UNFIT, ColumnBuilder, ColumnValues, RecordMismatchError, shown, values_of
from tidegate.formats.arrow_types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


class RowsOfColumns:
    """Rows of record batches with exactly the columns of the schema, in this order.

    Named ones, with values as `ColumnValues` gives them; with a declared row type those of that type."""

    def __init__(self, schema: pa.Schema, declared: TypeSchema | None = None) -> None:
        self._names = (declared.names or None) if declared is not None else tuple(schema.names)
        parts = declared.parts if declared is not None else [None] * len(schema)
        self._columns = [ColumnValues(field, part) for field, part in zip(schema, parts, strict=True)]

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        columns = [values.of(column) for values, column in zip(self._columns, batch.columns, strict=True)]
        names = self._names
        if not columns:
            return [make_row((), []) for _ in range(batch.num_rows)]
        return [make_row(names, list(values)) for values in zip(*columns, strict=True)]


def declared_rows(row_type: RowTypeInfo) -> Callable[[pa.RecordBatch], list[Row]]:
    """Reads the rows of a file's batches: columns are found by name and cast to their type, missing ones are None."""
    import pyarrow as pa

    schema = arrow_schema(row_type)
    read = RowsOfColumns(schema, schema_of(row_type)).rows

    def rows(batch: pa.RecordBatch) -> list[Row]:
        there, count = batch.schema.names, batch.num_rows
        columns = [batch.column(f.name) if f.name in there else pa.nulls(count, f.type) for f in schema]
        return read(pa.RecordBatch.from_arrays(columns, names=schema.names))

    return rows


class ColumnsOfRecords:
    """Record batches of the schema, of Rows, tuples, lists or dicts (see `values_of`). `single`: a record is itself the
    value of the only column."""

    def __init__(self, schema: pa.Schema, single: bool = False) -> None:
        self.schema = schema
        self._single = single
        self._names = tuple(schema.names)
        self._builder = ColumnBuilder()

    def batch(self, records: Sequence[Any]) -> pa.RecordBatch:
        """RecordMismatchError shows the first record that does not fit."""
        if self._single:
            return self._made([records], records)
        names = self._names
        try:
            rows = [values_of(record, names) for record in records]
        except TypeError as error:
            raise RecordMismatchError(str(error)) from error
        return self.batch_of(rows, records)

    def batch_of(self, rows: Sequence[Sequence[Any]], records: Sequence[Any]) -> pa.RecordBatch:
        """Of rows that are the lists of their values in the schema's order; `records`: what to show in an error."""
        return self._made(list(zip(*rows, strict=True)) or [()] * len(self._names), records)

    def _made(self, columns: list[Sequence[Any]], records: Sequence[Any]) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = [self._array(field, c, records) for field, c in zip(self.schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: pa.Field, column: Sequence[Any], records: Sequence[Any]) -> pa.Array:
        try:
            array = self._builder.column(column, field.type)
        except UNFIT as error:
            raise self._misfit(field, column, records, error) from error
        if array.null_count and not field.nullable:
            first = next(i for i, value in enumerate(column) if value is None)
            raise RecordMismatchError(
                f"column '{field.name}' must not be null, but the record is {shorten(records[first])}"
            )
        return array

    def _misfit(
        self, field: pa.Field, column: Sequence[Any], records: Sequence[Any], error: Exception
    ) -> RecordMismatchError:
        for value, record in zip(column, records, strict=True):
            try:
                self._builder.column([value], field.type)
            except UNFIT as reason:
                return RecordMismatchError(
                    f"column '{field.name}' of type {field.type} cannot hold {shown(value)}, in the record "
                    f"{shorten(record)}: {reason}"
                )
        return RecordMismatchError(f"column '{field.name}' of type {field.type} cannot be made: {error}")
