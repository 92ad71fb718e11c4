"""One table from declared types to columns: files, savepoints, state tables, DataFrames and Delta agree on it but for
the exceptions that are stated, and the docs show it. What goes through a column comes back as it was, or is refused."""

from __future__ import annotations

import datetime
import decimal
import io
import math
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.common import Instant, Row, Types
from tidegate.common.errors import ConfigurationError
from tidegate.common.type_schema import schema_of
from tidegate.common.typeinfo import LocalTimeTypeInfo
from tidegate.connectors.delta.data_files import delta_schema
from tidegate.formats.arrow_columns import RecordMismatchError
from tidegate.formats.arrow_rows import ColumnsOfRecords, declared_rows
from tidegate.formats.arrow_types import Place, arrow_schema, arrow_type, exceptions
from tidegate.formats.orc import OrcBulkWriters
from tidegate.formats.parquet import ParquetBulkWriters
from tidegate.snapshots.columns import declared_column, encode
from tidegate.spark.dataframes.schemas import arrow_schema_of, wanted_schema
from tidegate.state.savepoint.values import decode_column, encode_column
from tidegate.state.serialization import unpickle

DOCS = Path(__file__).parents[3] / "docs" / "connectors.md"
MICROS = st.integers(-(10**15), 10**15)
HALF = st.floats(width=32, allow_nan=False)

# The name in the docs -> (declared type, its column, values that files give back as they are)
TYPES: dict[str, tuple[Any, str, st.SearchStrategy[Any]]] = {
    "STRING": (Types.STRING(), "string", st.text()),
    "CHAR": (Types.CHAR(), "string", st.characters(codec="utf-8")),
    "BOOLEAN": (Types.BOOLEAN(), "bool", st.booleans()),
    "BYTE": (Types.BYTE(), "int8", st.integers(-(2**7), 2**7 - 1)),
    "SHORT": (Types.SHORT(), "int16", st.integers(-(2**15), 2**15 - 1)),
    "INT": (Types.INT(), "int32", st.integers(-(2**31), 2**31 - 1)),
    "LONG": (Types.LONG(), "int64", st.integers(-(2**63), 2**63 - 1)),
    "FLOAT": (Types.FLOAT(), "float", HALF),
    "DOUBLE": (Types.DOUBLE(), "double", st.floats(allow_nan=False)),
    "BIG_INT": (Types.BIG_INT(), "decimal128(38, 0)", st.integers(1 - 10**38, 10**38 - 1)),
    "BIG_DEC": (
        Types.BIG_DEC(),
        "decimal128(38, 18)",
        st.decimals(-(10**19), 10**19, allow_nan=False, places=18),
    ),
    "PRIMITIVE_ARRAY(BYTE)": (Types.PRIMITIVE_ARRAY(Types.BYTE()), "binary", st.binary()),
    "SQL_DATE": (Types.SQL_DATE(), "date32[day]", st.dates()),
    "SQL_TIME": (Types.SQL_TIME(), "time64[us]", st.times()),
    "SQL_TIMESTAMP": (Types.SQL_TIMESTAMP(), "timestamp[us]", st.datetimes()),
    "INSTANT": (Types.INSTANT(), "timestamp[us, tz=UTC]", MICROS.map(lambda n: Instant(n // 10**6, n % 10**6 * 1000))),
    "LIST": (Types.LIST(Types.INT()), "list<int32>", st.lists(st.integers(0, 9))),
    "MAP": (Types.MAP(Types.STRING(), Types.BIG_INT()), "map", st.dictionaries(st.text(), st.integers(0, 9))),
    "ROW": (
        Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.INSTANT()]),
        "struct",
        st.builds(lambda a: Row(a=a, b=Instant(a, 0)), st.integers(0, 9)),
    ),
    "TUPLE": (Types.TUPLE([Types.INT(), Types.STRING()]), "struct", st.tuples(st.integers(0, 9), st.text())),
}
SCALARS = [name for name, (_, column, _) in TYPES.items() if column.partition("<")[0] not in ("list", "map", "struct")]
WHOLE = Types.ROW_NAMED(list(TYPES), [declared for declared, _, _ in TYPES.values()])


def columns_of(declared: Any) -> dict[Place, pa.DataType | None]:
    """The column of the type in every place, as the place itself makes it; None when it refuses the type."""
    row = Types.ROW_NAMED(["c"], [declared])

    def parquet() -> pa.DataType:
        stream = io.BytesIO()
        ParquetBulkWriters.for_row_type(row).create(stream).finish()
        return pq.read_schema(io.BytesIO(stream.getvalue())).field("c").type

    def orc() -> pa.DataType:
        OrcBulkWriters.for_row_type(row)
        return arrow_schema(row, Place.ORC).field("c").type

    def dataframe() -> pa.DataType:
        return arrow_schema_of(wanted_schema(row, None, "here")[0], "here").field("c").type

    def state_table() -> pa.DataType:
        found = declared_column(schema_of(declared))
        return pa.string() if found is None else found.type

    found: dict[Place, pa.DataType | None] = {}
    for place, make in {
        Place.PARQUET: parquet,
        Place.ORC: orc,
        Place.DELTA: lambda: delta_schema(row).field("c").type,
        Place.DATAFRAME: dataframe,
        Place.SAVEPOINT: lambda: encode_column([None], schema_of(declared))[0].type,
        Place.STATE_TABLE: state_table,
    }.items():
        try:
            found[place] = make()
        except ConfigurationError:
            found[place] = None
    return found


@pytest.mark.parametrize("name", TYPES)
def test_all_places_agree_but_for_the_exceptions_that_are_stated(name: str) -> None:
    declared, column, _ = TYPES[name]
    kind = schema_of(declared).kind
    stated = {place: e.type for e in exceptions() if e.kind == kind for place in e.places}
    for place, found in columns_of(declared).items():
        if name in SCALARS:
            assert found == stated.get(place, arrow_type(schema_of(declared))), place
        else:  # the names of inner fields differ: item, element
            assert str(found).startswith(column.partition("<")[0]), place
    assert str(arrow_type(schema_of(declared))).startswith(column.partition("<")[0])


def test_java_s_local_times_are_columns_like_the_others() -> None:
    kinds = [arrow_type(schema_of(LocalTimeTypeInfo(t))) for t in LocalTimeTypeInfo.TimeType]
    assert kinds == [pa.date32(), pa.time64("us"), pa.timestamp("us")]


def test_the_docs_show_the_table_and_every_exception() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `([^`]+)` \| ([^|]*)\|", DOCS.read_text(), re.MULTILINE)
    shown = {name: (column, more) for names, column, more in rows for name in names.split(", ")}
    for name in SCALARS:
        declared, column, _ = TYPES[name]
        assert shown[name][0] == column, name
        for e in exceptions():
            if e.kind == schema_of(declared).kind:
                what = "none" if e.type is None else f"`{e.type}`"
                for place in e.places:
                    assert re.search(rf"{place.value}[^:;]*: {re.escape(what)}", shown[name][1]), (name, place)


# ---------------------------------------------------------------- values


@settings(max_examples=15, deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", TYPES)
def test_a_value_comes_back_from_a_file_and_from_a_savepoint(name: str, data: st.DataObject) -> None:
    declared, _, strategy = TYPES[name]
    values = [*data.draw(st.lists(strategy, max_size=4)), None]
    row = Types.ROW_NAMED(["c"], [declared])
    batch = ColumnsOfRecords(arrow_schema(row)).batch([(v,) for v in values])
    assert [found.c for found in declared_rows(row)(batch)] == values
    column, pickles = encode_column(values, schema_of(declared))
    assert list(map(exactly, decode_column(column, pickles, unpickle))) == list(map(exactly, values))
    if name in SCALARS and name != "BIG_DEC":  # 1.50 is 1.5 in a column
        assert pickles.null_count == len(values) or name in ("SQL_TIME", "SQL_TIMESTAMP")


ANYTHING = st.one_of(
    *(strategy for _, _, strategy in TYPES.values()),
    st.integers(),
    st.floats(),
    st.decimals(),
    st.text(st.characters()),
    st.datetimes(timezones=st.timezones()),
    st.times(timezones=st.timezones()),
    st.builds(Instant, st.integers(-(10**18), 10**18), st.integers(0, 999_999_999)),
    st.sets(st.integers(), max_size=1),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(ANYTHING, max_size=4))
@pytest.mark.parametrize("name", TYPES)
def test_whatever_is_stored_as_a_type_comes_back_from_a_savepoint(name: str, values: list[Any]) -> None:
    column, pickles = encode_column(values, schema_of(TYPES[name][0]))
    assert list(map(exactly, decode_column(column, pickles, unpickle))) == list(map(exactly, values))


@settings(max_examples=20, deadline=None)
@given(st.lists(ANYTHING, max_size=4))
@pytest.mark.parametrize("name", TYPES)
def test_a_state_table_shows_a_value_or_has_its_bytes(name: str, values: list[Any]) -> None:
    found = declared_column(schema_of(TYPES[name][0]))
    if found is not None:
        column, pickles = encode(values, found)
        for value, shown, pickled in zip(values, column, pickles, strict=True):
            assert pickled.as_py() is not None or shown.is_valid
            assert pickled.as_py() is None or exactly(unpickle(pickled.as_py())) == exactly(value)


@settings(max_examples=40, deadline=None)
@given(ANYTHING)
@pytest.mark.parametrize("name", SCALARS)
def test_a_file_holds_the_same_value_or_refuses_it(name: str, value: Any) -> None:
    """The same in the declared class: 2.0 is the integer 2, a moment is the same in UTC."""
    row = Types.ROW_NAMED(["c"], [TYPES[name][0]])
    try:
        batch = ColumnsOfRecords(arrow_schema(row)).batch([(value,)])
    except RecordMismatchError:
        return
    ((found,),) = declared_rows(row)(batch)
    if isinstance(found, datetime.datetime | Instant):
        found, value = micros(found), micros(value)
    if isinstance(value, list | tuple):
        value = bytes(value)
    if isinstance(found, float) and name == "FLOAT":  # the nearest of 32 bits
        assert math.isclose(found, value, rel_tol=1e-7, abs_tol=1e-44) or (math.isnan(found) and math.isnan(value))
    else:
        assert found == value or (found != found and value != value)


def micros(moment: datetime.datetime | Instant) -> int:
    if isinstance(moment, Instant):
        assert moment.nanos % 1000 == 0
        return moment.seconds * 10**6 + moment.nanos // 1000
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return (zoned - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


def exactly(value: Any) -> str:
    """Told apart: 1 and 1.0 and True, 1.5 and 1.50, 0.0 and -0.0, folds and zones."""
    return f"{type(value).__name__} {value!r} {getattr(value, 'fold', '')}"


@pytest.mark.parametrize(
    ("declared", "value", "reason"),
    [
        (Types.FLOAT(), 1e300, "too large for 32 bits"),
        (Types.INSTANT(), Instant(1, 1), "with nanoseconds"),
        (Types.BIG_DEC(), decimal.Decimal("1e-19"), "data loss"),
        (Types.BIG_INT(), 10**38, "precision"),
        (Types.SQL_TIME(), datetime.time(1, tzinfo=datetime.UTC), "without a zone"),
        (Types.STRING(), b"x", "a str is wanted"),
    ],
)
def test_what_a_file_would_round_or_lose_is_refused(declared: Any, value: Any, reason: str) -> None:
    with pytest.raises(RecordMismatchError, match=f"column 'c' of type .* cannot hold .*{reason}"):
        ColumnsOfRecords(arrow_schema(Types.ROW_NAMED(["c"], [declared]))).batch([(value,)])
