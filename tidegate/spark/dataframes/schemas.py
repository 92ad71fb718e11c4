"""Spark's types, Arrow's types and declared types, and the errors for what has no counterpart.

What a declared type is in Spark follows from what it is in Arrow (`formats.arrow_types`). docs/spark.md has the table.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark_types
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

from tidegate.common.errors import ConfigurationError
from tidegate.common.type_schema import ANY, LIST, kind_of, schema_of
from tidegate.common.typeinfo import MapTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from tidegate.formats.arrow_types import Place, arrow_type
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


@cache
def _arrow_types() -> dict[type[DataType], pa.DataType]:
    """Of Spark's types without parts and parameters. In files and on the way timestamps are microseconds of UTC."""
    import pyarrow as pa

    return {
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
    """What a DataFrame's columns are in files and on the way."""
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
    found = _arrow_types().get(type(kind))
    if found is None:
        raise _no_counterpart(where, column, kind.simpleString())
    return found


# ---------------------------------------------------------------- to Spark


def wanted_schema(declared: TypeInformation | None, given: Any, where: str) -> tuple[StructType, bool]:
    """The schema of a stream's DataFrame, and whether the records are themselves the values of its only column.

    `given` (a StructType, another DataType or a DDL string) goes before the declared type."""
    if given is not None:
        return given_schema(given, where)
    if isinstance(declared, DataFrameRowTypeInfo):
        return struct_from_json(declared.schema_json), False
    if declared is None or kind_of(declared) == ANY:
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
    import pyarrow as pa

    if isinstance(declared, DataFrameRowTypeInfo):
        return struct_from_json(declared.schema_json)
    schema = schema_of(declared)
    if isinstance(declared, RowTypeInfo | TupleTypeInfo):
        named = zip(schema.field_names, declared.get_field_types(), strict=True)
        return StructType([StructField(n, _spark(t, where, n)) for n, t in named])
    if isinstance(declared, MapTypeInfo):
        key = _spark(declared.key_type, where, f"{column}.key")
        return MapType(key, _spark(declared.value_type, where, f"{column}.value"))
    if schema.kind == LIST:
        return ArrayType(_spark(declared.element_type, where, f"{column}[]"))  # type: ignore[attr-defined]
    try:
        found = arrow_type(schema, Place.DATAFRAME)
    except ConfigurationError:
        raise ConfigurationError(
            f"{where}: column '{column}' has the declared type {declared}, which has no counterpart in Spark; give the "
            "schema: to_spark('name string, count bigint')"
        ) from None
    if pa.types.is_decimal(found):
        return DecimalType(found.precision, found.scale)
    return next(spark_type() for spark_type, arrow in _arrow_types().items() if arrow == found)
