"""Spark's types, Arrow's types and declared types: one table, and the errors for what is in none of them.

| Spark | value in a stream | declared type |
|---|---|---|
| boolean, string | bool, str | BOOLEAN, STRING |
| tinyint … bigint, float, double | int, float | BYTE … LONG, FLOAT, DOUBLE |
| decimal | Decimal | BIG_DEC (the other way: decimal(38, 18)) |
| binary | bytes | PRIMITIVE_ARRAY(BYTE) |
| date | date | SQL_DATE |
| timestamp | datetime without a zone, in UTC | SQL_TIMESTAMP; INSTANT too is written as timestamp |
| timestamp_ntz | datetime as it stands | SQL_TIMESTAMP |
| interval day to second | timedelta | any |
| void | None | any |
| array, map, struct | list, dict, Row | LIST, MAP, ROW_NAMED |
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark_types
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

from tidegate.common.errors import ConfigurationError
from tidegate.common.type_schema import DATE, LIST, TIMESTAMP
from tidegate.common.typeinfo import MapTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from tidegate.formats.arrow_types import DECIMAL_SCALE
from tidegate.formats.text_values import kind_of
from tidegate.spark.dataframes.row_type import DataFrameRowTypeInfo

if TYPE_CHECKING:
    import pyarrow as pa

VALUE_COLUMN = "value"  # the name of the only column when records are no rows; Spark calls it so too

_DECLARED: dict[type[DataType], Any] = {
    spark_types.BooleanType: Types.BOOLEAN,
    spark_types.ByteType: Types.BYTE,
    spark_types.ShortType: Types.SHORT,
    spark_types.IntegerType: Types.INT,
    spark_types.LongType: Types.LONG,
    spark_types.FloatType: Types.FLOAT,
    spark_types.DoubleType: Types.DOUBLE,
    spark_types.StringType: Types.STRING,
    spark_types.DecimalType: Types.BIG_DEC,
    spark_types.DateType: Types.SQL_DATE,
    spark_types.TimestampType: Types.SQL_TIMESTAMP,
    spark_types.TimestampNTZType: Types.SQL_TIMESTAMP,
    spark_types.BinaryType: lambda: Types.PRIMITIVE_ARRAY(Types.BYTE()),
    spark_types.DayTimeIntervalType: Types.PICKLED_BYTE_ARRAY,
    spark_types.NullType: Types.PICKLED_BYTE_ARRAY,
}

_SPARK: dict[str, DataType] = {
    "STRING": spark_types.StringType(),
    "CHAR": spark_types.StringType(),
    "BOOLEAN": spark_types.BooleanType(),
    "BYTE": spark_types.ByteType(),
    "SHORT": spark_types.ShortType(),
    "INT": spark_types.IntegerType(),
    "LONG": spark_types.LongType(),
    "FLOAT": spark_types.FloatType(),
    "DOUBLE": spark_types.DoubleType(),
    "BIG_INT": DecimalType(38, 0),
    "BIG_DEC": DecimalType(38, DECIMAL_SCALE),
    "INSTANT": spark_types.TimestampType(),
    "BYTES": spark_types.BinaryType(),
    DATE: spark_types.DateType(),
    TIMESTAMP: spark_types.TimestampType(),
}


def _no_counterpart(where: str, column: str, kind: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: column '{column}' has the type {kind}, which has no counterpart in a stream; leave it out, or cast "
        "it (to string, for example)"
    )


def _check_fields(struct: StructType, where: str, column: str) -> None:
    """Files hold no struct without fields, nor do they count rows without columns."""
    if not struct.fields:
        what = f"column '{column}' is a struct without fields; leave it out" if column else "there are no columns"
        raise ConfigurationError(f"{where}: {what}")


def struct_from_json(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))


# ---------------------------------------------------------------- from Spark


def row_type_of(schema: StructType, where: str) -> DataFrameRowTypeInfo:
    """The declared type of a DataFrame's records. ConfigurationError with the column and its type when there is none,
    and for two columns of one name."""
    plain = _row_type(schema, where, "")
    return DataFrameRowTypeInfo(plain.get_field_types(), plain.get_field_names(), schema.json())


def _row_type(schema: StructType, where: str, prefix: str) -> RowTypeInfo:
    names = schema.names
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        inside = f" of column '{prefix.rstrip('.')}'" if prefix else ""
        raise ConfigurationError(
            f"{where}: there are several columns{inside} of the name {', '.join(map(repr, doubled))}; fields of a Row "
            "have names of their own, so rename them"
        )
    return Types.ROW_NAMED(names, [_declared(f.dataType, where, prefix + f.name) for f in schema.fields])


def _declared(kind: DataType, where: str, column: str) -> TypeInformation:
    if isinstance(kind, StructType):
        return _row_type(kind, where, f"{column}.")
    if isinstance(kind, ArrayType):
        return Types.LIST(_declared(kind.elementType, where, f"{column}[]"))
    if isinstance(kind, MapType):
        key = _declared(kind.keyType, where, f"{column}.key")
        return Types.MAP(key, _declared(kind.valueType, where, f"{column}.value"))
    make = _DECLARED.get(type(kind))
    if make is None:
        raise _no_counterpart(where, column, kind.simpleString())
    declared: TypeInformation = make()
    return declared


def arrow_schema_of(schema: StructType, where: str) -> pa.Schema:
    """What a DataFrame's columns are in files and on the way: timestamps in microseconds of UTC."""
    import pyarrow as pa

    _check_fields(schema, where, "")
    return pa.schema([pa.field(f.name, _arrow(f.dataType, where, f.name), f.nullable) for f in schema.fields])


def _arrow(kind: DataType, where: str, column: str) -> pa.DataType:
    import pyarrow as pa

    if isinstance(kind, StructType):
        _check_fields(kind, where, column)
        return pa.struct([pa.field(f.name, _arrow(f.dataType, where, f"{column}.{f.name}")) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow(kind.elementType, where, f"{column}[]"))
    if isinstance(kind, MapType):
        key = _arrow(kind.keyType, where, f"{column}.key")
        return pa.map_(key, _arrow(kind.valueType, where, f"{column}.value"))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    scalars: dict[type[DataType], pa.DataType] = {
        spark_types.BooleanType: pa.bool_(),
        spark_types.ByteType: pa.int8(),
        spark_types.ShortType: pa.int16(),
        spark_types.IntegerType: pa.int32(),
        spark_types.LongType: pa.int64(),
        spark_types.FloatType: pa.float32(),
        spark_types.DoubleType: pa.float64(),
        spark_types.StringType: pa.string(),
        spark_types.BinaryType: pa.binary(),
        spark_types.DateType: pa.date32(),
        spark_types.TimestampType: pa.timestamp("us", "UTC"),
        spark_types.TimestampNTZType: pa.timestamp("us"),
        spark_types.DayTimeIntervalType: pa.duration("us"),
        spark_types.NullType: pa.null(),
    }
    if type(kind) not in scalars:
        raise _no_counterpart(where, column, kind.simpleString())
    return scalars[type(kind)]


# ---------------------------------------------------------------- to Spark


def wanted_schema(declared: TypeInformation | None, given: Any, where: str) -> tuple[StructType, bool]:
    """The schema of a stream's DataFrame, and whether the records are themselves the values of its only column.

    `given` (a StructType, another DataType or a DDL string) goes before the declared type."""
    if given is not None:
        return given_schema(given, where)
    if isinstance(declared, DataFrameRowTypeInfo):
        return struct_from_json(declared.schema_json), False
    if declared is None or kind_of(declared) == "ANY":
        raise ConfigurationError(
            f"{where}: the type of the records is not known. Declare it (map(..., output_type=Types.ROW_NAMED([...], "
            "[...]))), or give the schema: to_spark('name string, count bigint')"
        )
    found = _spark(declared, where, VALUE_COLUMN)
    if isinstance(found, StructType):
        return found, False
    return StructType([StructField(VALUE_COLUMN, found)]), True


def given_schema(given: Any, where: str) -> tuple[StructType, bool]:
    if isinstance(given, str):
        try:
            parsed: Any = spark_types._parse_datatype_string(given)
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ConfigurationError(f"{where}: '{given}' is no schema that Spark understands: {first}") from error
    else:
        parsed = given
    if not isinstance(parsed, DataType):
        raise TypeError(
            f"{where}: schema has to be a StructType or a text such as 'name string, count bigint', got {given!r}"
        )
    single = not isinstance(parsed, StructType)
    schema = parsed if isinstance(parsed, StructType) else StructType([StructField(VALUE_COLUMN, parsed)])
    arrow_schema_of(schema, where)
    return schema, single


def _spark(declared: TypeInformation, where: str, column: str) -> DataType:
    if isinstance(declared, DataFrameRowTypeInfo):
        return struct_from_json(declared.schema_json)
    if isinstance(declared, RowTypeInfo | TupleTypeInfo):
        types = declared.get_field_types()
        numbered = [f"f{i}" for i in range(len(types))]
        names = declared.get_field_names() if isinstance(declared, RowTypeInfo) else numbered
        return StructType([StructField(n, _spark(t, where, n)) for n, t in zip(names, types, strict=True)])
    if isinstance(declared, MapTypeInfo):
        key = _spark(declared.key_type, where, f"{column}.key")
        return MapType(key, _spark(declared.value_type, where, f"{column}.value"))
    kind = kind_of(declared)
    if kind == LIST:
        return ArrayType(_spark(declared.element_type, where, f"{column}[]"))  # type: ignore[attr-defined]
    if kind not in _SPARK:
        raise ConfigurationError(
            f"{where}: column '{column}' has the declared type {declared}, which has no counterpart in Spark; give the "
            "schema: to_spark('name string, count bigint')"
        )
    return _SPARK[kind]
