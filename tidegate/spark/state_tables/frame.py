"""A state of a snapshot as a DataFrame, made of a DataFrame of its pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import cloudpickle

from tidegate.snapshots.state_table import StateTable
from tidegate.spark.dataframes.mapped_columns import map_in_arrow
from tidegate.spark.dataframes.schemas import given_schema
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
    from pyspark.sql import DataFrame, SparkSession


def state_frame(spark: SparkSession, options: Mapping[str, str], schema: Any) -> DataFrame:
    request = StateRequest(options)
    if request.lists:
        columns, _ = given_schema(LISTING if schema is None else schema, FORMAT)
        return spark.createDataFrame(request.listing(columns.fieldNames()), columns)
    columns = request.schema() if schema is None else given_schema(schema, FORMAT)[0]
    wanted = spark_arrow_schema(columns)
    table = request.table(wanted)
    pieces = [(bytearray(cloudpickle.dumps(split)),) for split in table.splits]
    rdd = spark.sparkContext.parallelize(pieces, max(1, len(pieces)))
    return map_in_arrow(spark.createDataFrame(rdd, "split binary"), _Piece(slim(table), wanted), columns)


class _Piece:
    """In a Spark task: reads the pieces that it is given."""

    def __init__(self, table: StateTable, schema: pa.Schema) -> None:
        self._table = table
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for split in batch.column(0).to_pylist():
                yield from batches_of(self._table, cloudpickle.loads(split), self._schema)
