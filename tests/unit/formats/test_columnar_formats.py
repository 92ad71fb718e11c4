"""Parquet, orc and avro: every type there and back, parts, replay, what does not fit."""

from __future__ import annotations

import datetime
import io
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.file_source_kit import read_all, read_with_restarts, replay_everywhere, source_of
from tidegate.common import Types
from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.serialization import BulkWriterFactory
from tidegate.common.time import Instant
from tidegate.common.types import Row
from tidegate.contracts.file_formats import InputFileError
from tidegate.datastream.formats.avro import (
    AvroBulkWriters,
    AvroFormat,
    AvroInputFormat,
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    AvroSchema,
    GenericRecordAvroTypeInfo,
)
from tidegate.datastream.formats.orc import OrcBulkWriters, OrcColumnarRowInputFormat
from tidegate.datastream.formats.parquet import (
    AvroParquetReaders,
    AvroParquetWriters,
    ParquetBulkWriters,
    ParquetColumnarRowInputFormat,
)

VALUES: list[tuple[Any, Any]] = [
    (Types.STRING(), "text\u00e9"),
    (Types.CHAR(), "x"),
    (Types.BOOLEAN(), False),
    (Types.BYTE(), -128),
    (Types.SHORT(), 32767),
    (Types.INT(), -7),
    (Types.LONG(), 2**62),
    (Types.FLOAT(), 0.5),
    (Types.DOUBLE(), 0.1),
    (Types.BIG_INT(), 10**30),
    (Types.BIG_DEC(), Decimal("12345.678901")),
    (Types.SQL_DATE(), datetime.date(1969, 11, 16)),
    (Types.SQL_TIMESTAMP(), datetime.datetime(2026, 11, 16, 1, 2, 3, 456)),
    (Types.INSTANT(), Instant(1_800_000_000, 123_456_000)),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\x00\xff"),
    (Types.PRIMITIVE_ARRAY(Types.INT()), [1, 2]),
    (Types.BASIC_ARRAY(Types.STRING()), ["a", None]),
    (Types.OBJECT_ARRAY(Types.BIG_INT()), [1, 2**80]),
    (Types.MAP(Types.STRING(), Types.LIST(Types.SQL_TIMESTAMP())), {"k": [datetime.datetime(2000, 1, 1)], "n": None}),
    (Types.ROW_NAMED(["p", "q"], [Types.INT(), Types.INSTANT()]), Row(p=None, q=Instant(1, 0))),
    (Types.ROW([Types.INT()]), Row(5)),
    (Types.TUPLE([Types.INT(), Types.STRING()]), (1, "x")),
]
WITH_TIME: list[tuple[Any, Any]] = [*VALUES, (Types.SQL_TIME(), datetime.time(1, 2, 3, 456))]


def typed(pairs: list[tuple[Any, Any]]) -> tuple[Any, list[Row]]:
    names = [f"c{i}" for i in range(len(pairs))]
    rows = [Row(*(v for _, v in pairs)), Row(*(None for _ in pairs))]
    for row in rows:
        row.set_field_names(names)
    return Types.ROW_NAMED(names, [t for t, _ in pairs]), rows


def file_of(factory: BulkWriterFactory, records: list[Any]) -> bytes:
    out = io.BytesIO()
    writer = pickle.loads(pickle.dumps(factory)).create(out)
    for i, record in enumerate(records):
        writer.add_element(record)
        if i % 50 == 49:
            writer.flush()
    writer.flush()
    writer.finish()
    return out.getvalue()


# ---------------------------------------------------------------- rows


def test_parquet_rows_of_every_type(tmp_path: Path) -> None:
    row_type, rows = typed(WITH_TIME)
    (tmp_path / "a.parquet").write_bytes(file_of(ParquetBulkWriters.for_row_type(row_type), rows))
    source = source_of(ParquetColumnarRowInputFormat(row_type), tmp_path)
    assert read_all(source) == rows
    assert source.get_produced_type() == row_type
    assert pq.read_table(tmp_path).num_rows == 2


def test_orc_rows_of_every_type(tmp_path: Path) -> None:
    row_type, rows = typed(VALUES)
    (tmp_path / "a.orc").write_bytes(file_of(OrcBulkWriters.for_row_type(row_type), rows))
    assert read_all(source_of(OrcColumnarRowInputFormat(row_type), tmp_path)) == rows


NUMBERS = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
PAIRS = [(i, f"text {i}") for i in range(330)]


@pytest.mark.parametrize("split", [None, 100, 1000, 5000])
@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_parts_and_replay(tmp_path: Path, kind: str, split: int | None) -> None:
    if kind == "parquet":
        factory, reader = ParquetBulkWriters.for_row_type(NUMBERS), ParquetColumnarRowInputFormat(NUMBERS, batch_size=7)
    else:
        factory = OrcBulkWriters.for_row_type(NUMBERS, {"orc.stripe.size": 1024, "orc.compress": "NONE"})
        reader = OrcColumnarRowInputFormat(NUMBERS)  # type: ignore[assignment]
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(file_of(factory, PAIRS))
    source = source_of(reader, tmp_path, split_bytes=split)
    assert [tuple(row) for row in read_all(source, 1)] == PAIRS + PAIRS
    assert sorted(tuple(row) for row in read_all(source, 3)) == sorted(PAIRS + PAIRS)
    replay_everywhere(source, batch=20)
    assert read_with_restarts(source, 1, 2, batch=30) == read_all(source, 2)


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_files_without_rows_and_with_other_columns(tmp_path: Path, kind: str) -> None:
    write = ParquetBulkWriters.for_row_type if kind == "parquet" else OrcBulkWriters.for_row_type
    read: Any = ParquetColumnarRowInputFormat if kind == "parquet" else OrcColumnarRowInputFormat
    (tmp_path / "a").write_bytes(file_of(write(NUMBERS), []))
    assert read_all(source_of(read(NUMBERS), tmp_path)) == []
    (tmp_path / "a").write_bytes(file_of(write(NUMBERS), [{"n": 1, "s": "x"}, [2, "y"]]))
    other = Types.ROW_NAMED(["new", "s"], [Types.INT(), Types.STRING()])
    assert read_all(source_of(read(other), tmp_path)) == [Row(new=None, s="x"), Row(new=None, s="y")]
    wider = Types.ROW_NAMED(["n"], [Types.DOUBLE()])
    assert read_all(source_of(read(wider), tmp_path)) == [Row(n=1.0), Row(n=2.0)]
    wrong = Types.ROW_NAMED(["s"], [Types.INT()])
    with pytest.raises(TidegateError, match=r"column 's' is string, not int32"):
        read_all(source_of(read(wrong), tmp_path))


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_file_of_another_kind_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "text").write_text("this is no such file\n" * 10)
    read: Any = ParquetColumnarRowInputFormat if kind == "parquet" else OrcColumnarRowInputFormat
    with pytest.raises(InputFileError, match="/text"):
        read_all(source_of(read(NUMBERS), tmp_path))


@pytest.mark.parametrize("write", [ParquetBulkWriters.for_row_type, OrcBulkWriters.for_row_type])
def test_records_that_do_not_fit(write: Any) -> None:
    small = Types.ROW_NAMED(["n"], [Types.BYTE()])
    with pytest.raises(TidegateError, match="column 'n' of type int8"):
        file_of(write(small), [(1,), (1000,)])
    with pytest.raises(TypeError, match="In field 'n'"):
        file_of(write(small), [("text",)])
    with pytest.raises(TidegateError, match="got None"):
        file_of(write(small), [None])
    with pytest.raises(ConfigurationError, match="cannot have the type"):
        write(Types.ROW([Types.PICKLED_BYTE_ARRAY()]))
    with pytest.raises(ConfigurationError, match="row type"):
        write(Types.INT())


def test_bad_arguments() -> None:
    with pytest.raises(ConfigurationError, match="orc has no times of day"):
        OrcBulkWriters.for_row_type(Types.ROW([Types.LIST(Types.SQL_TIME())]))
    with pytest.raises(ConfigurationError, match="unknown property 'x'"):
        OrcBulkWriters.for_row_type(NUMBERS, {"x": 1})
    with pytest.raises(ConfigurationError, match="batch_size"):
        ParquetColumnarRowInputFormat(NUMBERS, batch_size=0)
    with pytest.raises(ConfigurationError, match="is_case_sensitive"):
        ParquetColumnarRowInputFormat(NUMBERS, is_case_sensitive=False)
    with pytest.raises(ConfigurationError, match="row type"):
        OrcColumnarRowInputFormat(Types.INT())  # type: ignore[arg-type]


# ---------------------------------------------------------------- avro

SCHEMA = AvroSchema.parse_string(
    json.dumps(
        {
            "type": "record",
            "name": "r",
            "fields": [
                {"name": "b", "type": "boolean"},
                {"name": "i", "type": "int"},
                {"name": "l", "type": "long"},
                {"name": "f", "type": "float"},
                {"name": "d", "type": "double"},
                {"name": "by", "type": "bytes"},
                {"name": "s", "type": ["null", "string"]},
                {"name": "e", "type": {"type": "enum", "name": "colour", "symbols": ["RED", "BLUE"]}},
                {"name": "x", "type": {"type": "fixed", "name": "two", "size": 2}},
                {"name": "a", "type": {"type": "array", "items": ["null", "int"]}},
                {"name": "m", "type": {"type": "map", "values": {"type": "map", "values": "long"}}},
                {
                    "name": "n",
                    "type": ["null", {"type": "record", "name": "inner", "fields": [{"name": "p", "type": "colour"}]}],
                },
                {"name": "day", "type": {"type": "int", "logicalType": "date"}},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                {"name": "time", "type": {"type": "long", "logicalType": "time-micros"}},
                {"name": "dec", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
            ],
        }
    )
)
RECORD: dict[str, Any] = {
    "b": True,
    "i": -1,
    "l": 2**62,
    "f": 0.5,
    "d": 0.1,
    "by": b"\x00\xff",
    "s": "text",
    "e": "BLUE",
    "x": b"ab",
    "a": [1, None],
    "m": {"k": {"z": 1}},
    "n": {"p": "RED"},
    "day": datetime.date(2026, 11, 16),
    "at": datetime.datetime(2026, 11, 16, 1, 2, 3, 456, tzinfo=datetime.UTC),
    "time": datetime.time(1, 2, 3, 456),
    "dec": Decimal("12.34"),
}
EMPTY = RECORD | {"s": None, "n": None, "a": [], "m": {}}


def test_avro_records_of_every_type(tmp_path: Path) -> None:
    (tmp_path / "a.avro").write_bytes(file_of(AvroBulkWriters.for_generic_record(SCHEMA), [RECORD, EMPTY]))
    assert read_all(source_of(AvroFormat(SCHEMA), tmp_path)) == [RECORD, EMPTY]
    source = AvroInputFormat(str(tmp_path), SCHEMA)
    assert read_all(source) == [RECORD, EMPTY]
    assert source.get_produced_type() == GenericRecordAvroTypeInfo(SCHEMA)


def test_avro_records_in_parquet(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(file_of(AvroParquetWriters.for_generic_record(SCHEMA), [RECORD, EMPTY]))
    assert read_all(source_of(AvroParquetReaders.for_generic_record(SCHEMA), tmp_path)) == [RECORD, EMPTY]


SMALL = AvroSchema.parse_string('{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}')


def test_avro_replay(tmp_path: Path) -> None:
    records = [{"n": i} for i in range(160)]
    (tmp_path / "a").write_bytes(file_of(AvroBulkWriters.for_generic_record(SMALL), records))  # blocks of 50
    (tmp_path / "empty").touch()
    (tmp_path / "none").write_bytes(file_of(AvroBulkWriters.for_generic_record(SMALL), []))
    source = source_of(AvroFormat(SMALL), tmp_path, split_bytes=10)
    assert read_all(source) == records
    replay_everywhere(source, batch=9)
    assert read_with_restarts(source, 3) == records


def test_avro_files_written_with_an_older_schema(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(file_of(AvroBulkWriters.for_generic_record(SMALL), [Row(n=1)]))
    newer = AvroSchema.parse_string(
        '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "double"},'
        ' {"name": "new", "type": "string", "default": "?"}]}'
    )
    assert read_all(source_of(AvroFormat(newer), tmp_path)) == [{"n": 1.0, "new": "?"}]
    (tmp_path / "a").write_bytes(b"no avro at all")
    with pytest.raises(InputFileError, match="/a"):
        read_all(source_of(AvroFormat(newer), tmp_path))


def test_avro_messages() -> None:
    out = pickle.loads(pickle.dumps(AvroRowSerializationSchema(avro_schema_string=str(SCHEMA))))
    back = pickle.loads(pickle.dumps(AvroRowDeserializationSchema(avro_schema_string=str(SCHEMA))))
    for record in (RECORD, EMPTY):
        values = record | {
            "at": record["at"].replace(tzinfo=None),
            "n": None if record["n"] is None else Row(**record["n"]),
        }
        row = Row(**values)
        assert back.deserialize(out.serialize(row)) == row
        assert back.deserialize(out.serialize(record)) == row
        assert back.deserialize(out.serialize(Row(**dict(reversed(values.items()))))) == row
    assert back.get_produced_type().get_field_names() == list(RECORD)
    with pytest.raises(TidegateError, match="does not fit the Avro schema"):
        out.serialize(Row(**(RECORD | {"i": "x"})))
    with pytest.raises(TidegateError, match="fields wanted"):
        out.serialize(Row(1))
    message = out.serialize(Row(**RECORD))
    with pytest.raises(TidegateError, match="not an Avro record"):
        back.deserialize(message[:-3])
    with pytest.raises(TidegateError, match="1 bytes are left over"):
        back.deserialize(message + b"x")


def test_bad_avro(tmp_path: Path) -> None:
    (tmp_path / "r.avsc").write_text(str(SMALL))
    assert AvroSchema.parse_file(str(tmp_path / "r.avsc")) == SMALL
    recursive = '{"type": "record", "name": "r", "fields": [{"name": "next", "type": ["null", "r"]}]}'
    for make, message in (
        (lambda: AvroSchema.parse_string("{"), "not an Avro schema"),
        (lambda: AvroSchema.parse_string('{"type": "recor"}'), "not an Avro schema"),
        (lambda: AvroSchema.parse_file(str(tmp_path / "no")), "cannot read"),
        (lambda: AvroRowSerializationSchema("a.Class"), "record_class"),
        (lambda: AvroRowDeserializationSchema(), "give the schema"),
        (lambda: AvroBulkWriters.for_generic_record(AvroSchema.parse_string('"int"')), "that of a record"),
        (lambda: AvroParquetReaders.for_generic_record(AvroSchema.parse_string(recursive)), "recursive"),
        (lambda: AvroInputFormat("", SMALL), "path"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make()
    with pytest.raises(TypeError, match="AvroSchema"):
        AvroFormat(str(SMALL))  # type: ignore[arg-type]
    with pytest.raises(TidegateError, match="has no n, which is required"):
        file_of(AvroParquetWriters.for_generic_record(SMALL), [{"other": 1}])
    with pytest.raises(TidegateError, match="does not fit"):
        file_of(AvroParquetWriters.for_generic_record(SMALL), [{"n": "x"}])
