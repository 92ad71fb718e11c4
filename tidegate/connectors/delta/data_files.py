"""The data files of a Delta table: columns, partitions, sizes."""

from __future__ import annotations

import datetime
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.typeinfo import RowTypeInfo
from tidegate.formats.arrow_rows import ColumnsOfRecords
from tidegate.formats.arrow_types import Place, arrow_schema
from tidegate.storage.files import UMASK, open_files, write_file
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa


_ROWS = 4096  # records that are turned into columns at a time
_FILE_BYTES = 64 << 20  # of columns in memory; then they are written as a file, before the barrier comes
_MAX_PARTITIONS = 1000  # that one subtask writes between two barriers


@dataclass(frozen=True)
class DataFile:
    path: str  # relative to the table
    size: int
    partition_values: tuple[tuple[str, str | None], ...]
    stats: str


def delta_schema(row_type: Any) -> pa.Schema:
    """The columns of the table: of a row type, or an Arrow schema as it is."""
    import pyarrow as pa

    if isinstance(row_type, pa.Schema):
        schema = row_type
    elif isinstance(row_type, RowTypeInfo):
        of_dataframe = getattr(row_type, "arrow_schema", None)
        schema = arrow_schema(row_type, Place.DELTA) if of_dataframe is None else of_dataframe()
    else:
        raise TypeError(
            f"DeltaSink: row_type has to be Types.ROW_NAMED([...], [...]) or a pyarrow.Schema, got {row_type!r}"
        )
    for field in schema:
        _check_type(field.name, field.type)
    return pa.schema([pa.field(f.name, _plain(f.type), f.nullable) for f in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type as Delta gives it back, so that schemas can be compared: its names for the parts of lists, UTC
    moments."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind


def _check_type(column: str, kind: pa.DataType) -> None:
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        for field in kind:
            _check_type(f"{column}.{field.name}", field.type)
    elif types.is_list(kind):
        _check_type(f"{column}[]", kind.value_type)
    elif types.is_map(kind):
        _check_type(f"{column}.key", kind.key_type)
        _check_type(f"{column}.value", kind.item_type)
    elif not (
        types.is_signed_integer(kind)
        or types.is_boolean(kind)
        or kind in (pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32())
        or types.is_decimal128(kind)
        or (types.is_timestamp(kind) and kind.unit == "us")
    ):
        raise ConfigurationError(f"DeltaSink: column '{column}' has the type {kind}, which Delta tables do not have")


def column_problems(schema: pa.Schema, partitions: tuple[str, ...]) -> str:
    """What is wrong with the partition columns, "" when nothing is."""
    import pyarrow as pa

    missing = [name for name in partitions if schema.get_field_index(name) < 0]
    if missing:
        return f"the table is partitioned by {', '.join(missing)}, and the rows have no such column"
    if partitions and len(partitions) == len(schema):
        return "all columns are partition columns; a table needs at least one other"
    for name in partitions:
        kind = schema.field(name).type
        if not (
            pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind)
        ):
            return f"column '{name}' of type {kind} cannot be a partition column (text, whole numbers, booleans, dates)"
    return ""


class DeltaFiles:
    """Collects records and writes them as data files. `finish` gives the files since the last one."""

    def __init__(self, location: StorageLocation, schema: pa.Schema, partitions: tuple[str, ...]) -> None:
        self._files = open_files(location.with_permissions(UMASK))  # the table is for others to read
        self._columns = ColumnsOfRecords(schema)
        self._partitions = partitions
        self._records: list[Any] = []
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._written: list[DataFile] = []

    def add(self, records: list[Any]) -> None:
        self._records.extend(records)
        if len(self._records) >= _ROWS:
            self._collect()
            if self._bytes >= _FILE_BYTES:
                self._write()

    def finish(self) -> list[DataFile]:
        self._collect()
        self._write()
        written, self._written = self._written, []
        return written

    def abandon(self) -> None:
        self._records, self._batches = [], []

    def _collect(self) -> None:
        if self._records:
            records, self._records = self._records, []
            batch = self._columns.batch(records)
            self._batches.append(batch)
            self._bytes += batch.nbytes

    def _write(self) -> None:
        import pyarrow as pa

        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, self._columns.schema)
        self._batches, self._bytes = [], 0
        for values, rows in self._parts(table):
            self._written.append(self._write_file(values, rows))

    def _parts(self, table: pa.Table) -> list[tuple[tuple[tuple[str, str | None], ...], pa.Table]]:
        if not self._partitions:
            return [((), table)]
        keys = list(zip(*[table.column(name).to_pylist() for name in self._partitions], strict=True))
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row, key in enumerate(keys):
            groups.setdefault(key, []).append(row)
        if len(groups) > _MAX_PARTITIONS:
            raise TidegateError(
                f"{len(groups)} partitions in one file's worth of rows, more than {_MAX_PARTITIONS}: partition the "
                f"table by something coarser than {', '.join(self._partitions)}, or key the stream by it"
            )
        rest = table.drop_columns(list(self._partitions))
        return [
            (tuple(zip(self._partitions, map(_partition_text, key), strict=True)), rest.take(rows))
            for key, rows in groups.items()
        ]

    def _write_file(self, values: tuple[tuple[str, str | None], ...], rows: pa.Table) -> DataFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder = "".join(f"{n}={'__HIVE_DEFAULT_PARTITION__' if v is None else quote(v, safe='')}/" for n, v in values)
        path = f"{folder}part-{uuid.uuid4().hex}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        data = sink.getvalue().to_pybytes()
        write_file(self._files, path, data)
        return DataFile(path, len(data), values, json.dumps({"numRecords": rows.num_rows}))


def _partition_text(value: Any) -> str | None:
    if value is None or value == "":  # Delta has no empty text in partition columns
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)
