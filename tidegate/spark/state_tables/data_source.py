"""The PySpark data source `tidegate-state`, for Spark 4 and newer.

    spark.read.format("tidegate-state").option("operator", uid).option("state", name).load(path)

Without the two options it lists the states; with the option `job` it reads the last checkpoint of a running job. Spark
makes the objects here in Python processes of its own, first to ask for the schema and the partitions, then to read
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidegate.snapshots.splits import Split
from tidegate.snapshots.state_table import StateTable
from tidegate.spark.state_tables.request import (
    FORMAT,
    LISTING,
    StateRequest,
    batches_of,
    slim,
    spark_arrow_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa


class StateDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType | str:
        request = StateRequest(self.options)
        if request.lists:
            request.states()  # a wrong path is an error of load(), not of what comes later
            return LISTING
        return request.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        request = StateRequest(self.options)
        if request.lists:
            return ListingReader(request.listing(schema.fieldNames()))
        wanted = spark_arrow_schema(schema)
        return StateReader(request.table(wanted), wanted)


class ListingReader(DataSourceReader):
    def __init__(self, rows: list[tuple[object, ...]]) -> None:
        self._rows = rows

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)


class StateReader(DataSourceReader):
    def __init__(self, table: StateTable, schema: pa.Schema) -> None:
        self._table = table
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(split) for split in self._table.splits] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        split: Split | None = partition.value
        return batches_of(self._table, split, self._schema) if split is not None else iter(())

    def __reduce__(self) -> tuple[Any, ...]:
        return StateReader, (slim(self._table), self._schema)
