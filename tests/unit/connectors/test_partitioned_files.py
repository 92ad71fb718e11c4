"""Folders by the values of columns, as Hive and Spark have them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import Row, Types
from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import BulkWriterFactory
from tidegate.connectors.files.partitions import escaped, partition_text
from tidegate.datastream.connectors.file_system import FileSink, PartitionBucketAssigner
from tidegate.datastream.formats.csv import CsvBulkWriters, CsvSchema
from tidegate.datastream.formats.orc import OrcBulkWriters
from tidegate.datastream.formats.parquet import ParquetBulkWriters
from tidegate.testing.in_process_job import InProcessJob

EAST = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
SALES = Types.ROW_NAMED(["day", "shop", "amount"], [Types.STRING(), Types.STRING(), Types.LONG()])
ROWS = [
    Row(day="2026-11-16", shop="a/b: c=d", amount=1),
    Row(day="2026-11-16", shop=None, amount=2),
    Row(day="2026-11-17", shop="50%", amount=3),
]


def write(path: Path, factory: BulkWriterFactory, columns: list[str], rows: list[Any]) -> None:
    sink = FileSink.for_bulk_format(str(path), factory).with_bucket_assigner(PartitionBucketAssigner(columns)).build()
    env = environment({})
    env.from_collection(rows).sink_to(sink)
    with InProcessJob(env) as job:
        job.run_to_end()
        assert job.ended is not None
        assert not job.ended.failures, job.failure


def test_partition_columns_are_in_the_folders_and_not_in_the_files(tmp_path: Path) -> None:
    write(tmp_path, ParquetBulkWriters.for_row_type(SALES), ["day", "shop"], ROWS)
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    assert [str(p.parent.relative_to(tmp_path)) for p in files] == [
        "day=2026-11-16/shop=__HIVE_DEFAULT_PARTITION__",
        "day=2026-11-16/shop=a%2Fb%3A c%3Dd",
        "day=2026-11-17/shop=50%25",
    ]
    assert all(pq.ParquetFile(p).schema_arrow.names == ["amount"] for p in files)
    partitions = ds.partitioning(flavor="hive")
    table = ds.dataset(tmp_path, format="parquet", partitioning=partitions).to_table()
    found = {(str(r["day"]), r["shop"], r["amount"]) for r in table.to_pylist()}
    assert found == {(row.day, row.shop, row.amount) for row in ROWS}


def test_orc_files_too(tmp_path: Path) -> None:
    write(tmp_path, OrcBulkWriters.for_row_type(SALES), ["day"], ROWS)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert {p.parent.name for p in files} == {"day=2026-11-16", "day=2026-11-17"}
    assert all(orc.ORCFile(p).schema.names == ["shop", "amount"] for p in files)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
        (True, "true"),
        (7, "7"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02 03%3A04%3A05"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, 120_000), "2026-01-02 03%3A04%3A05.12"),
        ("a\tb", "a%09b"),
        (datetime.datetime(2026, 1, 2, 0, 30, tzinfo=EAST), "2026-01-01 19%3A00%3A00"),
        (datetime.datetime(33, 1, 2), "0033-01-02 00%3A00%3A00"),
        (1e10, "1.0E10"),
        (-0.1, "-0.1"),
        (1e-05, "1.0E-5"),
        (12345678.9, "1.23456789E7"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Decimal("1E+2"), "100"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_values_are_written_as_spark_writes_them(value: Any, text: str) -> None:
    assert partition_text(value) == text


def test_only_what_spark_escapes_is_escaped() -> None:
    assert escaped("a b<c>|&é.-_~") == "a b<c>|&é.-_~"
    assert escaped("\"#%'*/:=?\\{[]^") == "%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E"


def test_mistakes_are_told_when_the_sink_is_made(tmp_path: Path) -> None:
    def sink(factory: BulkWriterFactory, *columns: str) -> None:
        assigner = PartitionBucketAssigner(columns)
        FileSink.for_bulk_format(str(tmp_path), factory).with_bucket_assigner(assigner).build()

    with pytest.raises(ConfigurationError, match="some of them, not all, got country"):
        sink(ParquetBulkWriters.for_row_type(SALES), "country")
    with pytest.raises(ConfigurationError, match="Parquet and ORC files of rows only"):
        sink(CsvBulkWriters.for_schema(CsvSchema.builder().add_string_column("day").build()), "day")
    with pytest.raises(ConfigurationError, match="takes the names of one or more columns"):
        PartitionBucketAssigner([])


def test_a_record_without_the_column_names_it(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="has no column 'day'"):
        write(tmp_path, ParquetBulkWriters.for_row_type(SALES), ["day"], [("2026", "a", 1)])
