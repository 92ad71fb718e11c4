from __future__ import annotations

import array
import datetime
import pickle
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest

from tidegate.common import Instant, Row, RowKind, Types
from tidegate.common.errors import ConfigurationError
from tidegate.common.typeinfo import (
    BasicTypeInfo,
    ExternalTypeInfo,
    LocalTimeTypeInfo,
    TypeInformation,
    value_converter,
)

ALL_TYPES = [
    Types.STRING(),
    Types.BYTE(),
    Types.BOOLEAN(),
    Types.SHORT(),
    Types.INT(),
    Types.LONG(),
    Types.FLOAT(),
    Types.DOUBLE(),
    Types.CHAR(),
    Types.BIG_INT(),
    Types.BIG_DEC(),
    Types.INSTANT(),
    Types.SQL_DATE(),
    Types.SQL_TIME(),
    Types.SQL_TIMESTAMP(),
    Types.PICKLED_BYTE_ARRAY(),
    Types.ROW([Types.INT()]),
    Types.ROW_NAMED(["a"], [Types.INT()]),
    Types.TUPLE([Types.INT(), Types.STRING()]),
    Types.PRIMITIVE_ARRAY(Types.INT()),
    Types.BASIC_ARRAY(Types.STRING()),
    Types.OBJECT_ARRAY(Types.ROW([Types.INT()])),
    Types.MAP(Types.STRING(), Types.INT()),
    Types.LIST(Types.STRING()),
    ExternalTypeInfo(Types.INT()),
    LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_DATE),
]


def convert(type_info: TypeInformation, value: object) -> object:
    converter = value_converter(type_info)
    assert converter is not None
    return converter(value)


@pytest.mark.parametrize("type_info", ALL_TYPES, ids=str)
def test_types_are_equal_hashable_and_picklable(type_info: TypeInformation) -> None:
    twin = pickle.loads(pickle.dumps(type_info))
    assert twin == type_info
    assert hash(twin) == hash(type_info)
    assert [t for t in ALL_TYPES if t == type_info] == [type_info]


@pytest.mark.parametrize("type_info", ALL_TYPES, ids=str)
def test_none_is_a_value_of_every_type(type_info: TypeInformation) -> None:
    converter = value_converter(type_info)
    assert converter is None or converter(None) is None
    assert type_info.to_internal_type(None) is None
    assert type_info.from_internal_type(None) is None


def test_str() -> None:
    assert (
        str(Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()]))
        == "RowTypeInfo(name: String, age: Integer)"
    )
    assert str(Types.ROW([Types.STRING()])) == "RowTypeInfo(f0: String)"
    assert str(Types.TUPLE([Types.STRING(), Types.LONG()])) == "TupleTypeInfo(String, Long)"
    assert str(Types.MAP(Types.STRING(), Types.LIST(Types.DOUBLE()))) == "Map<String, List<Double>>"
    assert str(Types.PRIMITIVE_ARRAY(Types.INT())) == "integer[]"
    assert str(BasicTypeInfo.BIG_DEC_TYPE_INFO()) == "BigDecimal"


def test_row_type_accessors() -> None:
    row_type = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
    assert row_type.get_field_names() == ["a", "b"]
    assert row_type.get_field_types() == [Types.INT(), Types.STRING()]
    assert row_type.get_field_index("b") == 1
    assert row_type.get_field_index("z") == -1
    assert Types.ROW([Types.INT(), Types.INT()]).get_field_names() == ["f0", "f1"]
    assert Types.TUPLE([Types.INT()]).get_field_types() == [Types.INT()]


@pytest.mark.parametrize(
    ("type_info", "value", "internal"),
    [
        (Types.SQL_DATE(), datetime.date(1970, 1, 11), 10),
        (Types.SQL_DATE(), datetime.date(1969, 12, 31), -1),
        (Types.SQL_TIME(), datetime.time(1, 2, 3, 4), 3_723_000_004),
        (Types.SQL_TIMESTAMP(), datetime.datetime(1970, 1, 1, 0, 0, 1, 5), 1_000_005),
        (Types.SQL_TIMESTAMP(), datetime.datetime(1969, 12, 31, 23, 59, 59), -1_000_000),
        (Types.INSTANT(), Instant(5, 7000), 5_000_007),
        (Types.TUPLE([Types.SQL_DATE(), Types.INT()]), (datetime.date(1970, 1, 2), 3), (1, 3)),
        (Types.LIST(Types.SQL_DATE()), [datetime.date(1970, 1, 2), None], [1, None]),
        (Types.MAP(Types.STRING(), Types.SQL_DATE()), {"a": datetime.date(1970, 1, 2)}, {"a": 1}),
        (Types.ROW_NAMED(["d"], [Types.SQL_DATE()]), Row(d=datetime.date(1970, 1, 2)), (0, 1)),
        (Types.ROW_NAMED(["s", "n"], [Types.STRING(), Types.INT()]), Row(n=1, s="a"), (0, "a", 1)),
        (Types.ROW([Types.INT()]), Row.of_kind(RowKind.DELETE, f0=4), (3, 4)),
        (Types.STRING(), "a", "a"),
    ],
)
def test_the_internal_form_goes_both_ways(type_info: TypeInformation, value: object, internal: object) -> None:
    assert type_info.to_internal_type(value) == internal
    assert type_info.from_internal_type(internal) == value
    assert type_info.need_conversion() or internal == value


def test_a_timestamp_with_a_zone_keeps_its_moment() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    moment = datetime.datetime(1970, 1, 1, 2, 0, 1, tzinfo=zone)
    assert Types.SQL_TIMESTAMP().to_internal_type(moment) == 1_000_000


ROW_TYPE = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])


@pytest.mark.parametrize(
    ("type_info", "value", "expected"),
    [
        (Types.INT(), 3, 3),
        (Types.LONG(), True, 1),
        (Types.SHORT(), 3.0, 3),
        (Types.BYTE(), np.int8(3), 3),
        (Types.BIG_INT(), np.float64(3), 3),
        (Types.FLOAT(), 3, 3.0),
        (Types.DOUBLE(), np.float32(0.5), 0.5),
        (Types.DOUBLE(), False, 0.0),
        (Types.STRING(), "a", "a"),
        (Types.BOOLEAN(), np.bool_(True), True),
        (Types.CHAR(), "c", "c"),
        (Types.BIG_DEC(), 3, Decimal(3)),
        (Types.SQL_DATE(), datetime.datetime(1970, 1, 2, 3), datetime.date(1970, 1, 2)),
        (Types.SQL_TIME(), datetime.time(1), datetime.time(1)),
        (Types.SQL_TIMESTAMP(), datetime.datetime(1970, 1, 2, 3), datetime.datetime(1970, 1, 2, 3)),
        (Types.INSTANT(), datetime.datetime(1970, 1, 1, 0, 0, 5), Instant(5, 0)),
        (Types.TUPLE([Types.STRING(), Types.DOUBLE()]), ["a", 1], ("a", 1.0)),
        (Types.TUPLE([Types.STRING(), Types.DOUBLE()]), Row("a", None), ("a", None)),
        (Types.TUPLE([Types.PICKLED_BYTE_ARRAY(), Types.INT()]), ({1}, 2.0), ({1}, 2)),
        (Types.LIST(Types.DOUBLE()), (1, 2), [1.0, 2.0]),
        (Types.LIST(ROW_TYPE), [("x", 1), {"name": "y"}], [Row(name="x", age=1), Row(name="y", age=None)]),
        (Types.MAP(Types.STRING(), Types.DOUBLE()), {"a": 1}, {"a": 1.0}),
        (Types.PRIMITIVE_ARRAY(Types.INT()), array.array("i", [1, 2]), [1, 2]),
        (Types.PRIMITIVE_ARRAY(Types.DOUBLE()), np.array([1, 2]), [1.0, 2.0]),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"ab", b"ab"),
        (Types.OBJECT_ARRAY(Types.TUPLE([Types.INT()])), [[1]], [(1,)]),
        (Types.BASIC_ARRAY(Types.STRING()), ["a", None], ["a", None]),
        (ROW_TYPE, ("x", 3), Row(name="x", age=3)),
        (ROW_TYPE, ["x", 3.0], Row(name="x", age=3)),
        (ROW_TYPE, {"age": 3, "name": "x"}, Row(name="x", age=3)),
        (ROW_TYPE, {"age": 3, "name": "x", "more": 1}, Row(name="x", age=3)),
        (ROW_TYPE, Row("x", 3), Row(name="x", age=3)),
        (ROW_TYPE, Row(age=3, name="x"), Row(name="x", age=3)),
        (ROW_TYPE, Row(n="x", a=3), Row(name="x", age=3)),
        (ROW_TYPE, Row.of_kind(RowKind.DELETE, "x", 3.0), Row.of_kind(RowKind.DELETE, name="x", age=3)),
        (Types.ROW([Types.STRING(), Types.INT()]), ("x", 3), Row(f0="x", f1=3)),
        (Types.ROW([Types.STRING(), Types.INT()]), Row("x", 3), Row(f0="x", f1=3)),
        (Types.ROW([Types.STRING(), Types.INT()]), Row("x", 3.0), Row(f0="x", f1=3)),
        (ROW_TYPE, SimpleNamespace(age=3, name="x"), Row(name="x", age=3)),
        (Types.ROW([Types.STRING(), Types.INT()]), Row(n="x", a=3.0), Row(n="x", a=3)),
        (Types.ROW_NAMED(["r"], [ROW_TYPE]), (("x", 3),), Row(r=Row(name="x", age=3))),
        (ExternalTypeInfo(Types.DOUBLE()), 1, 1.0),
    ],
)
def test_values_are_converted_to_the_declared_type(type_info: TypeInformation, value: object, expected: object) -> None:
    converted = convert(type_info, value)
    assert converted == expected
    assert type(converted) is type(expected)
    assert repr(converted) == repr(expected)  # tells 1 from 1.0 inside of collections


@pytest.mark.parametrize(
    ("type_info", "value"),
    [
        (Types.INT(), "3"),
        (Types.INT(), 3.5),
        (Types.LONG(), float("nan")),
        (Types.DOUBLE(), "1.0"),
        (Types.DOUBLE(), Decimal(1)),
        (Types.STRING(), 3),
        (Types.STRING(), b"a"),
        (Types.BOOLEAN(), 1),
        (Types.CHAR(), "ab"),
        (Types.BIG_DEC(), 0.1),
        (Types.SQL_DATE(), "1970-01-02"),
        (Types.SQL_TIME(), datetime.datetime(1970, 1, 2, 3)),
        (Types.SQL_TIMESTAMP(), datetime.date(1970, 1, 2)),
        (Types.LIST(Types.INSTANT()), [5]),
        (Types.TUPLE([Types.INT()]), 3),
        (Types.TUPLE([Types.INT()]), (1, 2)),
        (Types.LIST(Types.INT()), "abc"),
        (Types.LIST(Types.INT()), ["a"]),
        (Types.MAP(Types.STRING(), Types.INT()), [1]),
        (Types.MAP(Types.STRING(), Types.INT()), {1: 1}),
        (ROW_TYPE, 3),
        (ROW_TYPE, ("x",)),
        (ROW_TYPE, {"nam": "x", "age": 1}),
        (ROW_TYPE, ("x", "y")),
    ],
)
def test_values_that_do_not_fit_are_refused(type_info: TypeInformation, value: object) -> None:
    with pytest.raises(TypeError, match="Expected a value of type"):
        convert(type_info, value)


def test_the_error_names_the_type_the_field_and_the_value_shortened() -> None:
    with pytest.raises(TypeError) as caught:
        convert(ROW_TYPE, ("x", "y" * 10_000))
    message = str(caught.value)
    assert message.startswith(
        "In field 'age' of RowTypeInfo(name: String, age: Integer): Expected a value of type Integer, got str"
    )
    assert len(message) < 300


def test_conversion_leaves_the_input_alone_and_right_values_as_they_are() -> None:
    row = Row("x", 3.0)
    assert convert(ROW_TYPE, row) is not row
    assert row == Row("x", 3.0)
    right = Row(name="x", age=3)
    assert convert(ROW_TYPE, right) is right
    pair = ("x", 3)
    assert convert(Types.TUPLE([Types.STRING(), Types.INT()]), pair) is pair


def test_types_that_need_no_conversion_have_no_converter() -> None:
    for type_info in (Types.PICKLED_BYTE_ARRAY(), None):
        assert value_converter(type_info) is None


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Types.INT\(\), not Types.INT"):
        Types.LIST(Types.INT)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="2 field types got 1 field names"):
        Types.ROW_NAMED(["a"], [Types.INT(), Types.INT()])
    with pytest.raises(ConfigurationError, match="must differ"):
        Types.ROW_NAMED(["a", "a"], [Types.INT(), Types.INT()])
    with pytest.raises(ConfigurationError, match="PRIMITIVE_ARRAY"):
        Types.PRIMITIVE_ARRAY(Types.STRING())
    with pytest.raises(ConfigurationError, match="BASIC_ARRAY"):
        Types.BASIC_ARRAY(Types.ROW([Types.INT()]))
