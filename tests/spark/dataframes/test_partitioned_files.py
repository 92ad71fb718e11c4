"""Folders per value, as Spark makes them and reads them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tidegate.common import Row, Types
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, PartitionBucketAssigner
from tidegate.datastream.formats.parquet import ParquetBulkWriters
from tidegate.testing.in_process_job import InProcessJob

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

EAST = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
COLUMNS: dict[str, tuple[Any, str, list[Any]]] = {
    "text": (Types.STRING(), "string", ["a/b: c=d", "50%", "é ü", "x\ty", "[{^}]", "a'b\"c", None]),
    "day": (Types.SQL_DATE(), "date", [datetime.date(2026, 11, 16), datetime.date(1970, 1, 1), None]),
    "at": (
        Types.SQL_TIMESTAMP(),
        "timestamp",
        [
            datetime.datetime(2026, 11, 16, 5, 0, tzinfo=EAST),
            datetime.datetime(2026, 11, 16, 5, 0, 0, 120_000, tzinfo=datetime.UTC),
            None,
        ],
    ),
    "number": (Types.DOUBLE(), "double", [0.1, 1.0, -2.5e-7, 1e10, 12345678.9, 9999999.0, 1e-3, 0.0, None]),
    "amount": (Types.BIG_DEC(), "decimal(12,4)", [Decimal("1.5000"), Decimal("-200.0000"), None]),
    "yes": (Types.BOOLEAN(), "boolean", [True, False, None]),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_spark_reads_our_partitions_and_names_them_the_same(spark: Any, tmp_path: Path, column: str) -> None:
    type_info, sql_type, values = COLUMNS[column]
    write(tmp_path / "ours", column, type_info, values)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        frame = spark.createDataFrame(list(enumerate(values)), f"n long, {column} {sql_type}")
        frame.write.partitionBy(column).parquet(str(tmp_path / "spark"))
        assert folders(tmp_path / "ours") == folders(tmp_path / "spark")
        read = spark.read.schema(f"n long, {column} {sql_type}").parquet(str(tmp_path / "ours"))
        found = {row.n: row[column] for row in read.selectExpr("n", column).collect()}
        expected = {row.n: row[column] for row in frame.collect()}
        assert found == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def write(path: Path, column: str, type_info: Any, values: list[Any]) -> None:
    row_type = Types.ROW_NAMED(["n", column], [Types.LONG(), type_info])
    assigner = PartitionBucketAssigner([column])
    sink = FileSink.for_bulk_format(str(path), ParquetBulkWriters.for_row_type(row_type))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    rows = [Row(**{"n": n, column: value}) for n, value in enumerate(values)]
    env.from_collection(rows).sink_to(sink.with_bucket_assigner(assigner).build())
    with InProcessJob(env) as job:
        job.run_to_end()
        assert job.ended is not None
        assert not job.ended.failures, job.failure


def folders(path: Path) -> set[str]:
    return {folder.name for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith((".", "_"))}
