"""Files in, files out, on real Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import BucketAssigner, FileEnumeratorProvider, FileSink, FileSource
from tidegate.datastream.formats.csv import CsvReaderFormat, CsvSchema
from tidegate.datastream.formats.malformed import OnMalformed, split_malformed
from tidegate.datastream.formats.parquet import ParquetBulkWriters, ParquetColumnarRowInputFormat

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_csv_to_parquet_and_back(make_env: Callable[..., StreamExecutionEnvironment], tmp_path: Path) -> None:
    for name in "abc":
        lines = [f"{name}{i},{i}" for i in range(200)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["key,value", *lines, "bad"]) + "\n")
    schema = CsvSchema.builder().add_string_column("key").add_number_column("value").set_use_header().build()
    csv_format = CsvReaderFormat.for_schema(schema).on_malformed(OnMalformed.SIDE_OUTPUT)
    row_type = Types.ROW_NAMED(["key", "value"], [Types.STRING(), Types.LONG()])
    env = make_env(2, {"execution.checkpointing.interval": "100 ms"})
    source = FileSource.for_record_stream_format(csv_format, str(tmp_path)).build()
    rows, bad = split_malformed(env.from_source(source, WatermarkStrategy.no_watermarks(), "csv"))
    sink = FileSink.for_bulk_format(str(tmp_path / "rows"), ParquetBulkWriters.for_row_type(row_type))
    rows.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    text = Types.ROW_NAMED(["line"], [Types.STRING()])
    apart = FileSink.for_bulk_format(str(tmp_path / "bad"), ParquetBulkWriters.for_row_type(text))
    bad.map(lambda line: (f"{Path(line.path).name}:{line.line_number}",)).sink_to(
        apart.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()
    )
    env.execute("csv to parquet")
    assert sorted(pq.read_table(tmp_path / "bad")["line"].to_pylist()) == ["a.csv:202", "b.csv:202", "c.csv:202"]

    env = make_env(2)
    back = (
        FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(row_type), str(tmp_path / "rows"))
        .set_file_enumerator(FileEnumeratorProvider(1000))
        .build()
    )
    read = env.from_source(back, WatermarkStrategy.no_watermarks(), "parquet").execute_and_collect()
    assert sorted(map(tuple, read)) == sorted((f"{name}{i}", i) for name in "abc" for i in range(200))
