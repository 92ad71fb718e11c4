"""Orc files of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import BulkWriter, BulkWriterFactory, RowDataBulkWriterFactory
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation
from tidegate.contracts.file_formats import BulkFormat
from tidegate.formats.arrow_rows import declared_rows
from tidegate.formats.arrow_types import Place, arrow_schema
from tidegate.formats.columnar import ColumnarReader
from tidegate.formats.parquet import rows_writer

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.contracts.file_formats import InputFile

__all__ = ["OrcBulkWriters", "OrcColumnarRowInputFormat"]

_PROPERTIES = {
    "orc.compress": "compression",
    "orc.stripe.size": "stripe_size",
    "orc.compress.size": "compression_block_size",
    "orc.row.index.stride": "row_index_stride",
}


def _check_type(row_type: object, where: str) -> RowTypeInfo:
    if not isinstance(row_type, RowTypeInfo):
        raise ConfigurationError(f"{where}: takes a row type (Types.ROW_NAMED), got {row_type!r}")
    arrow_schema(row_type, Place.ORC)
    return row_type


class OrcColumnarRowInputFormat(BulkFormat):
    """Rows of orc files, for `FileSource.for_bulk_file_format`. Columns are found by name; those that a file lacks are
    None. Large files are read in parts, by stripes; a stripe is held in memory as a whole."""

    def __init__(self, row_type: RowTypeInfo) -> None:
        self._row_type = _check_type(row_type, "OrcColumnarRowInputFormat")

    def is_splittable(self, path: str) -> bool:
        return True

    def create_reader(self, file: InputFile, start: int, end: int, offset: Any | None) -> ColumnarReader:
        from pyarrow import orc

        source = file.open_arrow()
        try:
            opened = orc.ORCFile(source)
            columns = [name for name in self._row_type.get_field_names() if name in opened.schema.names]
            # pyarrow does not say where a stripe lies, so stripes are spread over the file by their number.
            count = opened.nstripes
            mine = [i for i in range(count) if start <= file.size * i // count < end]
        except BaseException:
            source.close()
            raise

        def batches(numbers: list[int]) -> Iterator[pa.RecordBatch]:
            for number in numbers:
                yield opened.read_stripe(number, columns=columns)

        # Nor how many rows it has, unless it is the only one: a restored reader skips row by row.
        return ColumnarReader(
            [(i, opened.nrows + 1) for i in mine], batches, declared_rows(self._row_type), source.close, offset
        )

    def get_produced_type(self) -> TypeInformation:
        return self._row_type


class _Output:
    """Orc knows its columns only from a table, so a file without rows gets an empty one."""

    def __init__(self, stream: Any, schema: pa.Schema, options: dict[str, Any]) -> None:
        from pyarrow import orc

        self._writer = orc.ORCWriter(stream, **options)
        self._schema = schema
        self._written = False

    def write(self, table: pa.Table) -> None:
        self._writer.write(table)
        self._written = True

    def close(self) -> None:
        if not self._written:
            self._writer.write(self._schema.empty_table())
        self._writer.close()


class OrcBulkWriters:
    @staticmethod
    def for_row_type(
        row_type: RowTypeInfo, writer_properties: Mapping[str, Any] | None = None, hadoop_config: Any = None
    ) -> BulkWriterFactory:
        """For `FileSink.for_bulk_format`: rows (or tuples, lists, dicts). Properties of the writer: orc.compress (NONE,
        ZLIB, SNAPPY, LZ4, ZSTD), orc.stripe.size, orc.compress.size, orc.row.index.stride. `hadoop_config` has no
        effect."""
        options: dict[str, Any] = {}
        for key, value in (writer_properties or {}).items():
            if key not in _PROPERTIES:
                raise ConfigurationError(
                    f"OrcBulkWriters.for_row_type: unknown property '{key}'; known are {', '.join(_PROPERTIES)}"
                )
            if key == "orc.compress":
                options[_PROPERTIES[key]] = "uncompressed" if str(value).upper() == "NONE" else str(value).lower()
            else:
                options[_PROPERTIES[key]] = int(value)
        return _OrcFactory(row_type, options)


class _OrcFactory(RowDataBulkWriterFactory):
    def __init__(self, row_type: RowTypeInfo, options: dict[str, Any]) -> None:
        super().__init__(_check_type(row_type, "OrcBulkWriters.for_row_type"))
        self._options = {"compression": "zlib"} | options

    def create(self, stream: BinaryIO) -> BulkWriter:
        return rows_writer(stream, self._row_type, lambda file, schema: _Output(file, schema, self._options))
