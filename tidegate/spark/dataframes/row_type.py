"""The row type of a DataFrame's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.common.typeinfo import RowTypeInfo, TypeInformation

if TYPE_CHECKING:
    import pyarrow as pa


class DataFrameRowTypeInfo(RowTypeInfo):
    """`Types.ROW_NAMED` that also remembers the DataFrame's schema, which says more than declared types can: the
    precision of decimals, timestamps with and without a zone. So `to_spark` of such a stream gives the same columns.

    Equal to the plain row type with the same names and types."""

    def __init__(self, field_types: Sequence[TypeInformation], field_names: Sequence[str], schema_json: str) -> None:
        super().__init__(field_types, field_names)
        self.schema_json = schema_json  # of the StructType

    def arrow_schema(self) -> pa.Schema:
        from pyspark.sql.types import StructType

        from tidegate.spark.dataframes.schemas import arrow_schema_of, struct_from_json

        struct: StructType = struct_from_json(self.schema_json)
        return arrow_schema_of(struct, "the DataFrame")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RowTypeInfo)
            and other._named
            and self._field_names == other._field_names
            and self._field_types == other._field_types
        )

    __hash__ = RowTypeInfo.__hash__
