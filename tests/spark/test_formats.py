"""Every file format, written by one job and read back by another, on real Spark; every setting of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.common import Duration, Row, Types, WatermarkStrategy
from tidegate.common.errors import JobExecutionError
from tidegate.common.serialization import Encoder, SimpleStringSchema
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DeliveryGuarantee
from tidegate.datastream.connectors.file_system import (
    BucketAssigner,
    BulkFormat,
    FileCompactor,
    FileCompactStrategy,
    FileEnumeratorProvider,
    FileSink,
    FileSource,
    FileSourceBuilder,
    FileSplitAssignerProvider,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
    StreamingFileSink,
)
from tidegate.datastream.formats.avro import (
    AvroBulkWriters,
    AvroInputFormat,
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    AvroSchema,
    GenericRecordAvroTypeInfo,
)
from tidegate.datastream.formats.csv import (
    CsvBulkWriters,
    CsvReaderFormat,
    CsvRowDeserializationSchema,
    CsvRowSerializationSchema,
    CsvSchema,
)
from tidegate.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from tidegate.datastream.formats.orc import OrcBulkWriters
from tidegate.datastream.formats.parquet import (
    AvroParquetReaders,
    AvroParquetWriters,
    ParquetBulkWriters,
    ParquetColumnarRowInputFormat,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]

ROW = Types.ROW_NAMED(["key", "value", "flag"], [Types.STRING(), Types.LONG(), Types.BOOLEAN()])
DATA = [(f"k{i}", i, i % 2 == 0) for i in range(50)]
AVRO = """{"type": "record", "name": "Event", "fields": [
    {"name": "key", "type": "string"}, {"name": "value", "type": "long"}, {"name": "flag", "type": "boolean"}]}"""
NO_WATERMARKS = WatermarkStrategy.no_watermarks()
FLAT = BucketAssigner.base_path_bucket_assigner()


def files(folder: Path) -> list[str]:
    return [str(p) for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.startswith((".", "_"))]


def test_every_format_there_and_back(make_env: MakeEnv, tmp_path: Path) -> None:
    (tmp_path / "event.avsc").write_text(AVRO)
    avro = AvroSchema.parse_file(str(tmp_path / "event.avsc"))
    assert str(AvroSchema.parse_string(AVRO)) == str(avro)
    other = CsvSchema.builder().add_boolean_column("flag").build()
    csv = (
        CsvSchema.builder()
        .add_array_column("unused")
        .clear_columns()
        .add_string_column("key")
        .add_number_column("value", Types.LONG())
        .add_columns_from(other)
        .set_column_separator(";")
        .set_quote_char("'")
        .set_escape_char("\\")
        .set_line_separator("\n")
        .set_null_value("-")
        .set_array_element_separator("|")
        .set_allow_comments()
        .build()
    )
    env = make_env(2)
    rows = env.from_collection([Row(*d) for d in DATA], ROW)
    rows.sink_to(FileSink.for_bulk_format(str(tmp_path / "parquet"), ParquetBulkWriters.for_row_type(ROW)).build())
    rows.sink_to(FileSink.for_bulk_format(str(tmp_path / "orc"), OrcBulkWriters.for_row_type(ROW)).build())
    rows.sink_to(FileSink.for_bulk_format(str(tmp_path / "csv"), CsvBulkWriters.for_schema(csv)).build())
    records = rows.map(lambda r: dict(zip(("key", "value", "flag"), r, strict=True)), GenericRecordAvroTypeInfo(avro))
    records.sink_to(FileSink.for_bulk_format(str(tmp_path / "avro"), AvroBulkWriters.for_generic_record(avro)).build())
    records.sink_to(FileSink.for_bulk_format(str(tmp_path / "ap"), AvroParquetWriters.for_generic_record(avro)).build())
    env.execute("write every format")

    env = make_env(2)

    def read(source: Any) -> Any:
        return env.from_source(source, NO_WATERMARKS, "files").map(plain)

    def plain(record: Any) -> Any:
        return tuple(record.values()) if isinstance(record, dict) else tuple(record)

    def bulk(file_format: BulkFormat, folder: str) -> FileSource:
        return FileSource.for_bulk_file_format(file_format, *files(tmp_path / folder)).build()

    def stream(file_format: StreamFormat, folder: str) -> FileSource:
        return FileSource.for_record_stream_format(file_format, *files(tmp_path / folder)).build()

    avro_input = AvroInputFormat(files(tmp_path / "avro")[0], avro)
    assert avro_input.get_produced_type() is not None
    everything = read(bulk(ParquetColumnarRowInputFormat(ROW), "parquet")).union(
        read(stream(CsvReaderFormat.for_schema(csv), "csv")),
        read(stream(AvroParquetReaders.for_generic_record(avro), "ap")),
        *[env.create_input(AvroInputFormat(path, avro)).map(plain) for path in files(tmp_path / "avro")],
    )
    with everything.execute_and_collect("read them back") as results:
        assert sorted(results) == sorted(DATA * 4)
    from pyarrow import orc

    stored = [tuple(r.values()) for path in files(tmp_path / "orc") for r in orc.read_table(path).to_pylist()]
    assert sorted(stored) == sorted(DATA)


def test_every_setting_of_csv(make_env: MakeEnv, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("name,tags,size,more\nskipped,a|b,1,x\n# a comment\nit's,c|d,2,y\n-,,3,z\n")
    schema = (
        CsvSchema.builder()
        .add_string_column("name")
        .add_array_column("tags", "|")
        .add_array_column("size", ";")
        .remove_array_element_separator(2)
        .set_use_header()
        .set_skip_first_data_row()
        .set_any_property_name("rest")
        .disable_quote_char()
        .disable_escape_char()
        .set_null_value("-")
        .set_allow_comments()
        .build()
    )
    source = FileSource.for_record_stream_format(CsvReaderFormat.for_schema(schema), str(tmp_path)).build()
    with make_env(1).from_source(source, NO_WATERMARKS, "csv").execute_and_collect() as results:
        assert [tuple(r) for r in results] == [("it's", ["c", "d"], "2"), (None, [], "3")]
    strict = CsvSchema.builder().add_string_column("nome").disable_array_element_separator()
    schema = strict.set_use_header().set_strict_headers().build()
    source = FileSource.for_record_stream_format(CsvReaderFormat.for_schema(schema), str(tmp_path)).build()
    with (
        pytest.raises(JobExecutionError, match=r"in\.csv.*nome"),
        make_env(1).from_source(source, NO_WATERMARKS, "csv").execute_and_collect() as results,
    ):
        list(results)


def test_messages_of_every_format_inside_a_job(make_env: MakeEnv) -> None:
    pairs: list[tuple[Any, Any]] = [
        (
            JsonRowSerializationSchema.builder().with_type_info(ROW).build(),
            JsonRowDeserializationSchema.builder().type_info(ROW).fail_on_missing_field().build(),
        ),
        (CsvRowSerializationSchema.Builder(ROW).build(), CsvRowDeserializationSchema.Builder(ROW).build()),
        (AvroRowSerializationSchema(avro_schema_string=AVRO), AvroRowDeserializationSchema(avro_schema_string=AVRO)),
        (SimpleStringSchema(), SimpleStringSchema()),
    ]

    def through_all(row: Any) -> Any:
        for write, read in pairs[:-1]:
            row = read.deserialize(write.serialize(row))
        write, read = pairs[-1]
        return read.deserialize(write.serialize(str(tuple(row))))

    with make_env(2).from_collection([Row(*d) for d in DATA], ROW).map(through_all).execute_and_collect() as results:
        assert sorted(results) == sorted(map(str, DATA))


def test_every_setting_of_files(make_env: MakeEnv, tmp_path: Path) -> None:
    lines = [f"line {i}" for i in range(100)]
    env = make_env(2, {"execution.checkpointing.interval": "50 ms"})
    stream = env.from_collection(lines)
    names = OutputFileConfig.builder().with_part_prefix("part").with_part_suffix(".txt").build()
    assert (names.get_part_prefix(), names.get_part_suffix()) == ("part", ".txt")
    encoder = Encoder.simple_string_encoder()
    compacted = (
        FileSink.for_row_format(str(tmp_path / "compacted"), encoder)
        .with_output_file_config(names)
        .with_bucket_assigner(BucketAssigner.date_time_bucket_assigner("yyyy"))
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .with_bucket_check_interval(1000)
        .enable_compact(
            FileCompactStrategy.builder().enable_compaction_on_checkpoint(1).set_num_compact_threads(2).build(),
            FileCompactor.concat_file_compactor(b""),
        )
        .build()
    )
    stream.sink_to(compacted)
    single = (
        FileSink.for_row_format(str(tmp_path / "single"), encoder)
        .with_bucket_assigner(FLAT)
        .with_rolling_policy(RollingPolicy.default_rolling_policy(1024, 1000, 1000))
        .enable_compact(
            FileCompactStrategy.builder().set_size_threshold(10).build(), FileCompactor.identical_file_compactor()
        )
        .disable_compact()
        .build()
    )
    assert single.get_transformer() is None
    stream.sink_to(single).name("single").uid("single").set_uid_hash("0" * 32)
    old = StreamingFileSink.for_row_format(str(tmp_path / "old"), encoder).with_bucket_assigner(FLAT).build()
    stream.add_sink(old)
    assert DeliveryGuarantee.EXACTLY_ONCE is not DeliveryGuarantee.AT_LEAST_ONCE
    env.execute("settings of files")
    for folder in ("compacted", "single", "old"):
        written = [line for path in files(tmp_path / folder) for line in Path(path).read_text().splitlines()]
        assert sorted(written) == sorted(lines), folder
    assert all(Path(p).name.startswith("part") and p.endswith(".txt") for p in files(tmp_path / "compacted"))

    env = make_env(2)
    builder: FileSourceBuilder = FileSource.for_record_stream_format(
        StreamFormat.text_line_format(), str(tmp_path / "single")
    )
    source = (
        builder.monitor_continuously(Duration.of_millis(50))
        .process_static_file_set()
        .set_file_enumerator(FileEnumeratorProvider.default_splittable_file_enumerator())
        .set_file_enumerator(FileEnumeratorProvider.default_non_splittable_file_enumerator())
        .set_split_assigner(FileSplitAssignerProvider.locality_aware_split_assigner())
        .build()
    )
    with env.from_source(source, NO_WATERMARKS, "lines").execute_and_collect() as results:
        assert sorted(results) == sorted(lines)


def test_a_folder_is_watched(make_env: MakeEnv, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "first.txt").write_text("one\ntwo\n")
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder))
    source = builder.monitor_continuously(Duration.of_millis(50)).build()
    seen = []
    with make_env(2).from_source(source, NO_WATERMARKS, "watched").execute_and_collect() as results:
        for line in results:
            seen.append(line)
            if len(seen) == 2:
                (folder / ".later").write_text("three\nfour\n")
                (folder / ".later").rename(folder / "later.txt")
            if len(seen) == 4:
                break
    assert sorted(seen) == ["four", "one", "three", "two"]
