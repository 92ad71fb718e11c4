"""Csv and json: files and messages, bad lines, replay."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import lzma
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.connectors.file_source_kit import read_all, read_with_restarts, replay_everywhere, source_of
from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.time import Instant
from tidegate.common.types import Row
from tidegate.contracts.file_formats import InputFileError
from tidegate.datastream.connectors import CollectSink, StreamFormat
from tidegate.datastream.formats.csv import (
    CsvBulkWriters,
    CsvReaderFormat,
    CsvRowDeserializationSchema,
    CsvRowSerializationSchema,
    CsvSchema,
    CsvSchemaBuilder,
    HeaderMismatchError,
)
from tidegate.datastream.formats.json import (
    JsonReaderFormat,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
)
from tidegate.datastream.formats.malformed import MalformedLine, MalformedLineError, OnMalformed, split_malformed
from tidegate.testing.in_process_job import InProcessJob

SCALARS: list[tuple[Any, Any]] = [
    (Types.STRING(), 'a "quoted", text; with\nnewline'),
    (Types.CHAR(), "x"),
    (Types.BOOLEAN(), True),
    (Types.BYTE(), -128),
    (Types.SHORT(), 3),
    (Types.INT(), -7),
    (Types.LONG(), 2**62),
    (Types.FLOAT(), 0.5),
    (Types.DOUBLE(), 0.1),
    (Types.BIG_INT(), 10**30),
    (Types.BIG_DEC(), Decimal("12345678901234567890.123456789")),
    (Types.SQL_DATE(), datetime.date(2026, 11, 16)),
    (Types.SQL_TIME(), datetime.time(1, 2, 3, 456)),
    (Types.SQL_TIMESTAMP(), datetime.datetime(2026, 11, 16, 1, 2, 3, 456)),
    (Types.INSTANT(), Instant(1_800_000_000, 123_456_000)),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\x00\xff"),
]
LISTS: list[tuple[Any, Any]] = [
    (Types.BASIC_ARRAY(Types.INT()), [1, None, 3]),
    (Types.LIST(Types.STRING()), ["a", "b"]),
    (Types.ROW_NAMED(["p", "q"], [Types.INT(), Types.STRING()]), Row(p=1, q="x")),
    (Types.TUPLE([Types.INT(), Types.STRING()]), (1, "x")),
]
NESTED: list[tuple[Any, Any]] = [
    (Types.MAP(Types.STRING(), Types.OBJECT_ARRAY(Types.INT())), {"a": [1], "b": None}),
    (Types.LIST(Types.ROW_NAMED(["d"], [Types.BIG_DEC()])), [Row(d=Decimal("0.1")), None]),
    (Types.DOUBLE(), float("inf")),
]


def row_of(pairs: list[tuple[Any, Any]]) -> tuple[Any, Row]:
    names = [f"c{i}" for i in range(len(pairs))]
    return Types.ROW_NAMED(names, [t for t, _ in pairs]), Row(**dict(zip(names, (v for _, v in pairs), strict=True)))


def csv_file(schema: CsvSchema, rows: list[Any]) -> bytes:
    out = io.BytesIO()
    writer = pickle.loads(pickle.dumps(CsvBulkWriters.for_schema(schema))).create(out)
    for row in rows:
        writer.add_element(row)
    writer.finish()
    return out.getvalue()


# ---------------------------------------------------------------- csv


def simple() -> CsvSchemaBuilder:
    return CsvSchema.builder().add_number_column("id").add_string_column("name")


def write(path: Path, text: str) -> Path:
    path.write_text(text, newline="")
    return path


def test_csv_messages_of_every_type() -> None:
    row_type, row = row_of(SCALARS + LISTS)
    out = pickle.loads(pickle.dumps(CsvRowSerializationSchema.Builder(row_type).set_null_literal("NULL").build()))
    back = pickle.loads(pickle.dumps(CsvRowDeserializationSchema.Builder(row_type).set_null_literal("NULL").build()))
    assert back.deserialize(out.serialize(row)) == row
    empty = Row(**dict.fromkeys(row._fields or ()))
    assert back.deserialize(out.serialize(empty)) == empty
    assert back.get_produced_type() == row_type


def test_csv_files_of_every_type(tmp_path: Path) -> None:
    schema = (
        CsvSchema.builder()
        .add_string_column("text")
        .add_boolean_column("flag")
        .add_number_column("long")
        .add_number_column("double", Types.DOUBLE())
        .add_number_column("decimal", Types.BIG_DEC())
        .add_array_column("texts", "#")
        .add_array_column("ints", "|", Types.INT())
        .set_use_header()
        .set_strict_headers()
        .build()
    )
    rows = [
        Row(*values)
        for values in (
            ('say "hi", you', True, 1, 0.1, Decimal("1.10"), ["a;b", "c"], [1, 2]),
            ("two\nlines\r\nmore", False, -(2**63), 1e300, Decimal(0), [], [3]),
            ("", None, None, None, None, ["x"], [None, 1]),
        )
    ]
    for row in rows:
        row.set_field_names(schema.names)
    (tmp_path / "a.csv").write_bytes(csv_file(schema, rows))
    source = source_of(CsvReaderFormat.for_schema(schema), tmp_path)
    assert read_all(source) == rows
    assert source.get_produced_type() == schema.row_type()
    replay_everywhere(source)


ANY_TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(), st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)), max_size=12
    ),
    escape=st.booleans(),
    windows=st.booleans(),
)
def test_csv_round_trips_any_text(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str]], escape: bool, windows: bool
) -> None:
    builder = simple()
    if escape:
        builder.set_escape_char("\\")
    if windows:
        builder.set_line_separator("\r\n")
    schema = builder.build()
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(csv_file(schema, rows))
    source = source_of(CsvReaderFormat.for_schema(schema), path)
    assert [tuple(row) for row in read_all(source)] == rows
    replay_everywhere(source)


def test_csv_dialects(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "#no\nid|name\n# no\n1|'a|b'\n\n2|nil\n")
    schema = (
        simple()
        .set_column_separator("|")
        .set_quote_char("'")
        .set_null_value("nil")
        .set_allow_comments()
        .set_use_header()
        .build()
    )
    source = source_of(CsvReaderFormat.for_schema(schema), path)
    assert read_all(source) == [Row(id=1, name="a|b"), Row(id=2, name=None)]
    replay_everywhere(source)
    write(path, '1,say "hi"\n2,b\n')
    unquoted = simple().disable_quote_char().set_skip_first_data_row().build()
    assert read_all(source_of(CsvReaderFormat.for_schema(unquoted), path)) == [Row(id=2, name="b")]
    write(path, "1,a,more,and more\n")
    assert read_all(source_of(CsvReaderFormat.for_schema(simple().set_any_property_name("rest").build()), path)) == [
        Row(id=1, name="a")
    ]


def test_csv_in_another_charset_and_compressed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("1,h\u00e9\n".encode("utf-16"))
    schema = simple().build()
    assert read_all(source_of(CsvReaderFormat.for_schema(schema, "utf-16"), tmp_path)) == [Row(id=1, name="h\u00e9")]
    (tmp_path / "a.csv").unlink()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"1,a\n2,b\n"))
    assert len(read_all(source_of(CsvReaderFormat.for_schema(schema), tmp_path))) == 2


@pytest.mark.parametrize("header", ["name,id", "id,name", "extra,name,id", "id"])
def test_columns_are_found_by_the_names_of_the_header(tmp_path: Path, header: str) -> None:
    names = header.split(",")
    lines = [{"id": str(i), "name": f"n{i}", "extra": "?"} for i in range(5)]
    text = "".join(",".join(line[name] for name in names) + "\n" for line in lines)
    path = write(tmp_path / "a.csv", f"{header}\n{text}")
    source = source_of(CsvReaderFormat.for_schema(simple().set_use_header().build()), path)
    assert read_all(source) == [Row(id=i, name=f"n{i}" if "name" in names else None) for i in range(5)]
    replay_everywhere(source)


@pytest.mark.parametrize(
    ("text", "error"),
    [("a,b\n1,x\n", "no column of the schema is in the header"), ("id,id\n1,2\n", "a name stands twice")],
)
def test_a_header_that_fits_nothing_is_an_error(tmp_path: Path, text: str, error: str) -> None:
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(HeaderMismatchError, match=error):
        read_all(source_of(CsvReaderFormat.for_schema(simple().set_use_header().build()), path))


def test_a_line_that_is_not_as_wide_as_its_header_is_bad(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "name,id\nx,1\ny\n")
    with pytest.raises(MalformedLineError, match=r"line 3: 1 fields where the header has 2"):
        read_all(source_of(CsvReaderFormat.for_schema(simple().set_use_header().build()), path))


def hadoop_snappy(data: bytes) -> bytes:
    """Blocks of 10,000 bytes, each in parts of 4,000; an empty block between them."""
    import pyarrow as pa

    made = b""
    for block in (data[i : i + 10_000] for i in range(0, len(data), 10_000)):
        made += len(block).to_bytes(4, "big")
        for part in (block[i : i + 4_000] for i in range(0, len(block), 4_000)):
            packed = pa.compress(part, codec="snappy", asbytes=True)
            made += len(packed).to_bytes(4, "big") + packed
        made += bytes(4)
    return made


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (hadoop_snappy(b"line\n" * 3000)[:-100], "ends in the middle of a block"),
        (b"\xff\x06\x00\x00sNaPpY", "not compressed by Hadoop's SnappyCodec"),
        (b"\x00\x00\x00\x05\x00\x00\x00\x02\x7f\x00", "not compressed by Hadoop's SnappyCodec"),
    ],
)
def test_what_is_no_whole_file_of_hadoops_snappy_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "a.snappy").write_bytes(content)
    with pytest.raises(InputFileError, match=told):
        read_all(source_of(StreamFormat.text_line_format(), tmp_path / "a.snappy"))


def test_text_is_decompressed_as_its_name_says(tmp_path: Path) -> None:
    import pyarrow as pa

    data = "".join(f"line {i}\n" for i in range(3000)).encode()
    packed = {
        "gz": gzip.compress(data),
        "bz2": bz2.compress(data),
        "xz": lzma.compress(data),
        "zst": pa.compress(data, codec="zstd", asbytes=True),
        "lz4": pa.compress(data, codec="lz4", asbytes=True),
        "snappy": hadoop_snappy(data),
    }
    for ending, content in packed.items():
        path = tmp_path / f"a.txt.{ending}"
        path.write_bytes(content)
        source = source_of(StreamFormat.text_line_format(), path)
        assert read_all(source) == [f"line {i}" for i in range(3000)], ending
    unreadable = tmp_path / "a.txt.sz"
    unreadable.write_bytes(data)
    with pytest.raises(InputFileError, match=r"compressed as '.sz' cannot be read; compress it with gzip"):
        read_all(source_of(StreamFormat.text_line_format(), unreadable))


BAD = '1,a\nx,b\n3,"un"closed\n4,d,more\n5\n6,f\n7,"never closed\n8,h\n9,i\n'


def test_bad_csv_lines_fail_with_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    source = source_of(CsvReaderFormat.for_schema(simple().build()), tmp_path)
    with pytest.raises(MalformedLineError, match=r"a\.csv, line 2: column 'id': 'x' is not a whole number: 'x,b'"):
        read_all(source)
    write(path, "id,name\n1,\xff")
    path.write_bytes(b"1,a\n2,\xff\n")
    with pytest.raises(MalformedLineError, match="line 2: not text in the charset utf-8"):
        read_all(source)
    header = CsvReaderFormat.for_schema(simple().set_use_header().set_strict_headers().build())
    write(path, "name,id\n")
    with pytest.raises(HeaderMismatchError, match=r"a\.csv: the header is name, id"):
        read_all(source_of(header, tmp_path))


def test_bad_csv_lines_are_skipped_or_set_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    schema = simple().build()
    skipping = source_of(CsvReaderFormat.for_schema(schema).on_malformed(OnMalformed.SKIP), tmp_path)
    assert [row.id for row in read_all(skipping)] == [1, 6, 8, 9]
    replay_everywhere(skipping)
    apart = source_of(CsvReaderFormat.for_schema(schema).on_malformed(OnMalformed.SIDE_OUTPUT), tmp_path)
    assert apart.get_produced_type() is None
    read = read_all(apart, batch=3)
    bad = [r for r in read if isinstance(r, MalformedLine)]
    assert [(b.line_number, b.text) for b in bad] == [
        (2, "x,b"),
        (3, '3,"un"closed'),
        (4, "4,d,more"),
        (5, "5"),
        (7, '7,"never closed'),
    ]
    assert bad[2].reason == "3 fields instead of 2"
    assert bad[0].path == str(path)
    replay_everywhere(apart)
    for seed in range(10):
        assert read_with_restarts(apart, seed) == read


def test_bad_lines_as_a_side_output_of_a_job(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "1,a\nbad\n2,b\n")
    env = environment()
    csv_format = CsvReaderFormat.for_schema(simple().build()).on_malformed(OnMalformed.SIDE_OUTPUT)
    stream = env.from_source(source_of(csv_format, tmp_path), WatermarkStrategy.no_watermarks(), "csv")
    rows, bad = split_malformed(stream)
    rows.map(lambda row: row.id).union(bad.map(lambda line: line.line_number * 100)).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
    assert sorted(job.results) == [1, 2, 200]


def test_bad_lines_fail_a_job_with_the_place(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "1,a\nbad\n2,b\n")
    env = environment({"restart-strategy.type": "none"})
    source = source_of(CsvReaderFormat.for_schema(simple().build()), tmp_path)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "csv").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
        assert "a.csv, line 2: 1 fields instead of 2" in job.failure
        assert "csv" in job.failure


def test_csv_messages_that_do_not_fit() -> None:
    row_type = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
    strict = CsvRowDeserializationSchema.Builder(row_type).build()
    for message in (b"x,y", b"1", b"1,2,3", b'1,"a', b"1,\xff", b"1,a\n2,b", b""):
        with pytest.raises(TidegateError, match="not a csv line"):
            strict.deserialize(message)
    lenient = CsvRowDeserializationSchema.Builder(row_type).set_ignore_parse_errors(True).set_allow_comments().build()
    assert lenient.deserialize(b"x,y") is None
    assert lenient.deserialize(b"# no") is None
    assert lenient.deserialize(b"1,y\n") == Row(a=1, b="y")
    out = CsvRowSerializationSchema.Builder(row_type).set_field_delimiter(";").set_line_delimiter("").build()
    assert out.serialize(Row(a=1, b="x;y")) == b'1;"x;y"'
    with pytest.raises(TypeError, match="Expected"):
        out.serialize(Row(a="no", b=""))
    unquoted = CsvRowSerializationSchema.Builder(row_type).disable_quote_character().build()
    with pytest.raises(TidegateError, match="escape"):
        unquoted.serialize((1, "a,b"))
    assert CsvRowSerializationSchema.Builder(row_type).set_escape_character("\\").build().serialize((1, 'q"'))


def test_bad_csv_schemas() -> None:
    for make, message in (
        (lambda: CsvSchema.builder().build(), "no columns"),
        (lambda: simple().add_string_column("id"), "two columns 'id'"),
        (lambda: simple().set_column_separator("ab"), "one character"),
        (lambda: simple().set_quote_char(",").build(), "differ"),
        (lambda: simple().set_strict_headers().build(), "set_use_header"),
        (lambda: simple().add_number_column("n", Types.STRING()), "type of numbers"),
        (lambda: simple().add_array_column("n", ";", Types.LIST(Types.INT())), "basic type"),
        (lambda: simple().set_line_separator("x"), "set_line_separator"),
        (
            lambda: CsvReaderFormat.for_schema(
                simple()
                .add_array_column("a")
                .set_array_element_separator("|")
                .disable_array_element_separator()
                .build()
            ),
            "separator",
        ),
        (lambda: CsvRowSerializationSchema.Builder(Types.INT()), "row type"),  # type: ignore[arg-type]
        (
            lambda: CsvRowSerializationSchema.Builder(Types.ROW([Types.MAP(Types.STRING(), Types.STRING())])).build(),
            "no form",
        ),
        (lambda: CsvReaderFormat.for_schema(simple().build()).on_malformed("skip"), "OnMalformed.SKIP"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError, match=message):
            make()
    builder = simple().add_array_column("a")
    assert builder.size() == 3
    assert builder.remove_array_element_separator(2).build().columns[2].type_info == Types.STRING()
    assert CsvSchema.builder().add_columns_from(builder.build()).build().size() == 3
    assert builder.clear_columns().size() == 0


# ---------------------------------------------------------------- json


def test_json_messages_of_every_type() -> None:
    row_type, row = row_of(SCALARS + LISTS + NESTED)
    out = pickle.loads(pickle.dumps(JsonRowSerializationSchema.builder().with_type_info(row_type).build()))
    back = pickle.loads(pickle.dumps(JsonRowDeserializationSchema.builder().type_info(row_type).build()))
    assert back.deserialize(out.serialize(row)) == row
    empty = Row(**dict.fromkeys(row._fields or ()))
    assert back.deserialize(out.serialize(empty)) == empty


def test_json_numbers_are_exact() -> None:
    row_type = Types.ROW_NAMED(["d", "i", "l"], [Types.BIG_DEC(), Types.BIG_INT(), Types.LONG()])
    back = JsonRowDeserializationSchema.builder().type_info(row_type).build()
    row = back.deserialize(b'{"d": 0.1000000000000000000000001, "i": 123456789012345678901234567890, "l": 3.0}')
    assert row == Row(d=Decimal("0.1000000000000000000000001"), i=123456789012345678901234567890, l=3)


def test_json_missing_fields_and_bad_messages() -> None:
    row_type = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.ROW_NAMED(["c"], [Types.STRING()])])
    lenient = JsonRowDeserializationSchema.builder().type_info(row_type).build()
    assert lenient.deserialize(b'{"b": {"other": 1}}') == Row(a=None, b=Row(c=None))
    strict = JsonRowDeserializationSchema.builder().type_info(row_type).fail_on_missing_field().build()
    with pytest.raises(TidegateError, match="the field 'a' is missing"):
        strict.deserialize(b'{"b": null}')
    for message, reason in (
        (b"{", "not a json object"),
        (b"null", "null is not an object"),
        (b"[1]", "is not an object"),
        (b'{"a": "1"}', "field 'a': '1' is not a whole number"),
        (b'{"a": true}', "field 'a'"),
        (b'{"a": 1.5}', "not a whole number"),
        (b'{"b": {"c": 1}}', "field 'b': field 'c': 1 is not a text"),
        (b"\xff", "not a json object"),
        (b"[" * 100_000, "not a json object"),
    ):
        with pytest.raises(TidegateError, match=reason):
            lenient.deserialize(message)
        ignoring = JsonRowDeserializationSchema.builder().type_info(row_type).ignore_parse_errors().build()
        assert ignoring.deserialize(message) is None


def test_json_builders_refuse_what_is_wrong() -> None:
    builder = JsonRowDeserializationSchema.builder
    row_type = Types.ROW_NAMED(["a"], [Types.INT()])
    for make, message in (
        (lambda: builder().build(), "give the type"),
        (lambda: builder().type_info(Types.INT()), "row type"),  # type: ignore[arg-type]
        (lambda: builder().type_info(row_type).ignore_parse_errors().fail_on_missing_field().build(), "contradict"),
        (lambda: builder().json_schema("{"), "not json"),
        (lambda: builder().json_schema('{"type": "object", "properties": {"a": {"$ref": "#"}}}'), "'a' of the schema"),
        (lambda: JsonRowSerializationSchema.builder().build(), "give the type"),
        (lambda: builder().type_info(Types.ROW([Types.PICKLED_BYTE_ARRAY()])).build(), "no form"),
        (lambda: builder().type_info(Types.ROW([Types.MAP(Types.INT(), Types.INT())])).build(), "keys"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make()


def test_json_schema_text() -> None:
    schema = """{"type": "object", "properties": {
        "i": {"type": "integer"}, "n": {"type": ["number", "null"]}, "s": {"type": "string"},
        "d": {"type": "string", "format": "date"}, "a": {"type": "array", "items": {"type": "boolean"}},
        "o": {"type": "object", "properties": {"x": {"type": "string", "contentEncoding": "base64"}}}}}"""
    back = JsonRowDeserializationSchema.builder().json_schema(schema).build()
    row = back.deserialize(b'{"i": 1, "n": 1.5, "s": "t", "d": "2026-01-02", "a": [true], "o": {"x": "AA=="}}')
    wanted = Row(i=1, n=Decimal("1.5"), s="t", d=datetime.date(2026, 1, 2), a=[True], o=Row(x=b"\0"))
    assert row == wanted


def test_json_lines(tmp_path: Path) -> None:
    row_type = Types.ROW_NAMED(["a"], [Types.INT()])
    text = "".join(f'{{"a": {i}}}\n' for i in range(20)) + "\n\n" + '{"a": "x"}\n{"a": 20}'
    write(tmp_path / "a.json", text)
    failing = source_of(JsonReaderFormat.for_type(row_type), tmp_path, split_bytes=60)
    with pytest.raises(MalformedLineError, match=r"a\.json, line 23: field 'a': 'x' is not a whole number"):
        read_all(failing)
    skipping = source_of(JsonReaderFormat.for_type(row_type).on_malformed(OnMalformed.SKIP), tmp_path, split_bytes=60)
    assert [row.a for row in read_all(skipping)] == list(range(21))
    apart = JsonReaderFormat.for_type(row_type).on_malformed(OnMalformed.SIDE_OUTPUT)
    source = source_of(apart, tmp_path, split_bytes=60)
    read = read_all(source)
    assert [r.line_number for r in read if isinstance(r, MalformedLine)] == [23]
    replay_everywhere(source)
    missing = JsonReaderFormat.for_type(Types.ROW_NAMED(["b"], [Types.INT()]), fail_on_missing_field=True)
    with pytest.raises(MalformedLineError, match="line 1: the field 'b' is missing"):
        read_all(source_of(missing, tmp_path))
