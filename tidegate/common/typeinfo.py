"""Declared types of records and state. A declaration is optional; where there is one, values are converted to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.common import value_conversion as conversion
from tidegate.common.errors import ConfigurationError
from tidegate.common.scalar_types import (
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    InstantTypeInfo,
    LocalTimeTypeInfo,
    PickledBytesTypeInfo,
    SqlTimeTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TypeInformation,
)
from tidegate.common.types import Row, RowKind, make_row, values_of_fields
from tidegate.common.value_conversion import Conversion

__all__ = [
    "BasicArrayTypeInfo",
    "BasicType",
    "BasicTypeInfo",
    "DateTypeInfo",
    "ExternalTypeInfo",
    "InstantTypeInfo",
    "ListTypeInfo",
    "LocalTimeTypeInfo",
    "MapTypeInfo",
    "ObjectArrayTypeInfo",
    "PickledBytesTypeInfo",
    "PrimitiveArrayTypeInfo",
    "RowTypeInfo",
    "SqlTimeTypeInfo",
    "TimeTypeInfo",
    "TimestampTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
    "value_converter",
]


def value_converter(type_info: TypeInformation | None) -> Callable[[Any], Any] | None:
    """A fast function that turns a user-returned value into the declared type, or None when nothing needs doing.

    It raises TypeError with the expected type and the value, shortened, when the value does not fit."""
    if type_info is None:
        return None
    found = type_info.conversion()
    return None if found is None else found.convert


def _check_type(type_info: object, where: str) -> TypeInformation:
    if not isinstance(type_info, TypeInformation):
        hint = " (call it: Types.INT(), not Types.INT)" if callable(type_info) else ""
        raise ConfigurationError(f"{where} wants types such as Types.STRING(), got {type_info!r}{hint}.")
    return type_info


class ExternalTypeInfo(TypeInformation):
    """A type declared for a table source or sink; behaves like the type inside."""

    def __init__(self, type_info: TypeInformation) -> None:
        self._type_info = _check_type(type_info, "ExternalTypeInfo")

    def need_conversion(self) -> bool:
        return self._type_info.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        return self._type_info.to_internal_type(obj)

    def from_internal_type(self, obj: Any) -> Any:
        return self._type_info.from_internal_type(obj)

    def conversion(self) -> Conversion | None:
        return self._type_info.conversion()

    def __str__(self) -> str:
        return f"ExternalTypeInfo<{self._type_info}>"


# ---------------------------------------------------------------- collections


class _ElementsTypeInfo(TypeInformation):
    """Many values of one type, as a list."""

    def __init__(self, element_type: TypeInformation) -> None:
        self._element_type = _check_type(element_type, type(self).__name__)

    @property
    def element_type(self) -> TypeInformation:
        return self._element_type

    elem_type = element_type

    def need_conversion(self) -> bool:
        return self._element_type.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        if obj is None or not self.need_conversion():
            return obj
        return [self._element_type.to_internal_type(v) for v in obj]

    def from_internal_type(self, obj: Any) -> Any:
        if obj is None or not self.need_conversion():
            return obj
        return [self._element_type.from_internal_type(v) for v in obj]

    def conversion(self) -> Conversion | None:
        return conversion.to_list(str(self), self._element_type.conversion())


class ListTypeInfo(_ElementsTypeInfo):
    def __str__(self) -> str:
        return f"List<{self._element_type}>"


class PrimitiveArrayTypeInfo(_ElementsTypeInfo):
    """Numbers, booleans or characters, no None among them. An array of BYTE may also be bytes."""

    _PRIMITIVE = frozenset(BasicType) - {BasicType.STRING, BasicType.BIG_INT, BasicType.BIG_DEC, BasicType.INSTANT}

    def __init__(self, element_type: TypeInformation) -> None:
        super().__init__(element_type)
        if not (isinstance(element_type, BasicTypeInfo) and element_type.basic_type in self._PRIMITIVE):
            raise ConfigurationError(
                f"Types.PRIMITIVE_ARRAY takes a boolean, character or number type, got {element_type}; "
                "use Types.BASIC_ARRAY or Types.OBJECT_ARRAY."
            )

    def conversion(self) -> Conversion | None:
        is_bytes = self._element_type == Types.BYTE()
        return conversion.to_list(str(self), self._element_type.conversion(), bytes_allowed=is_bytes)

    def __str__(self) -> str:
        return f"{str(self._element_type).lower()}[]"


class BasicArrayTypeInfo(_ElementsTypeInfo):
    """An array of scalars, in which None may stand."""

    def __init__(self, element_type: TypeInformation) -> None:
        super().__init__(element_type)
        if not isinstance(element_type, BasicTypeInfo):
            raise ConfigurationError(
                f"Types.BASIC_ARRAY takes a basic type such as Types.STRING(), got {element_type}; "
                "use Types.OBJECT_ARRAY."
            )

    def __str__(self) -> str:
        return f"BasicArray<{self._element_type}>"


class ObjectArrayTypeInfo(_ElementsTypeInfo):
    def __str__(self) -> str:
        return f"ObjectArray<{self._element_type}>"


class MapTypeInfo(TypeInformation):
    def __init__(self, key_type_info: TypeInformation, value_type_info: TypeInformation) -> None:
        self._key_type_info = _check_type(key_type_info, "Types.MAP")
        self._value_type_info = _check_type(value_type_info, "Types.MAP")

    @property
    def key_type(self) -> TypeInformation:
        return self._key_type_info

    @property
    def value_type(self) -> TypeInformation:
        return self._value_type_info

    def need_conversion(self) -> bool:
        return self._key_type_info.need_conversion() or self._value_type_info.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        if obj is None or not self.need_conversion():
            return obj
        key, value = self._key_type_info, self._value_type_info
        return {key.to_internal_type(k): value.to_internal_type(v) for k, v in obj.items()}

    def from_internal_type(self, obj: Any) -> Any:
        if obj is None or not self.need_conversion():
            return obj
        key, value = self._key_type_info, self._value_type_info
        return {key.from_internal_type(k): value.from_internal_type(v) for k, v in obj.items()}

    def conversion(self) -> Conversion | None:
        return conversion.to_map(str(self), self._key_type_info.conversion(), self._value_type_info.conversion())

    def __str__(self) -> str:
        return f"Map<{self._key_type_info}, {self._value_type_info}>"


# ---------------------------------------------------------------- records


class _FieldsTypeInfo(TypeInformation):
    """A fixed number of fields, each with a type of its own."""

    def __init__(self, field_types: Sequence[TypeInformation]) -> None:
        self._field_types = tuple(_check_type(t, type(self).__name__) for t in field_types)

    def get_field_types(self) -> list[TypeInformation]:
        return list(self._field_types)

    def get_arity(self) -> int:
        return len(self._field_types)

    def _check_arity(self, values: Sequence[Any], original: Any) -> None:
        if len(values) != len(self._field_types):
            raise conversion.mismatch(str(self), original, f"{len(self._field_types)} fields wanted, got {len(values)}")


class TupleTypeInfo(_FieldsTypeInfo):
    def need_conversion(self) -> bool:
        return any(t.need_conversion() for t in self._field_types)

    def to_internal_type(self, obj: Any) -> Any:
        if obj is None:
            return None
        values = tuple(obj)
        self._check_arity(values, obj)
        return tuple(t.to_internal_type(v) for t, v in zip(self._field_types, values, strict=True))

    def from_internal_type(self, obj: Any) -> Any:
        if obj is None:
            return None
        self._check_arity(obj, obj)
        return tuple(t.from_internal_type(v) for t, v in zip(self._field_types, obj, strict=True))

    def conversion(self) -> Conversion | None:
        return conversion.to_tuple(str(self), [t.conversion() for t in self._field_types])

    def __str__(self) -> str:
        return f"TupleTypeInfo({', '.join(map(str, self._field_types))})"


class RowTypeInfo(_FieldsTypeInfo):
    """A Row; internally a tuple of the row kind's number and the values in internal form."""

    def __init__(self, field_types: Sequence[TypeInformation], field_names: Sequence[str] | None = None) -> None:
        super().__init__(field_types)
        self._named = field_names is not None
        self._field_names = (
            tuple(field_names) if field_names is not None else tuple(f"f{i}" for i in range(len(self._field_types)))
        )
        if len(self._field_names) != len(self._field_types):
            raise ConfigurationError(
                f"A row type with {len(self._field_types)} field types got {len(self._field_names)} field names "
                f"{list(self._field_names)}."
            )
        if len(set(self._field_names)) != len(self._field_names):
            raise ConfigurationError(f"Field names of a row type must differ: {list(self._field_names)}.")

    def get_field_names(self) -> list[str]:
        """The declared names, or f0, f1, ... when there are none."""
        return list(self._field_names)

    def get_field_index(self, field_name: str) -> int:
        """The position of a field, -1 when there is none of that name."""
        return self._field_names.index(field_name) if field_name in self._field_names else -1

    def need_conversion(self) -> bool:
        return True

    def to_internal_type(self, obj: Any) -> Any:
        if obj is None:
            return None
        kind = RowKind.INSERT
        values = values_of_fields(obj, self._field_names)
        if isinstance(obj, Row):
            kind = obj.get_row_kind()
        self._check_arity(values, obj)
        return (kind.value, *(t.to_internal_type(v) for t, v in zip(self._field_types, values, strict=True)))

    def from_internal_type(self, obj: Any) -> Any:
        if obj is None:
            return None
        values = obj[1:]
        self._check_arity(values, obj)
        return make_row(
            self._field_names,
            [t.from_internal_type(v) for t, v in zip(self._field_types, values, strict=True)],
            RowKind(obj[0]),
        )

    def conversion(self) -> Conversion | None:
        parts = [t.conversion() for t in self._field_types]
        return conversion.to_row(str(self), self._field_names, self._named, parts)

    def __str__(self) -> str:
        fields = ", ".join(f"{n}: {t}" for n, t in zip(self._field_names, self._field_types, strict=True))
        return f"RowTypeInfo({fields})"


class Types:
    """The types a user declares. Each call gives an equal, immutable object."""

    STRING = staticmethod(BasicTypeInfo.STRING_TYPE_INFO)
    BYTE = staticmethod(BasicTypeInfo.BYTE_TYPE_INFO)
    BOOLEAN = staticmethod(BasicTypeInfo.BOOLEAN_TYPE_INFO)
    SHORT = staticmethod(BasicTypeInfo.SHORT_TYPE_INFO)
    INT = staticmethod(BasicTypeInfo.INT_TYPE_INFO)
    LONG = staticmethod(BasicTypeInfo.LONG_TYPE_INFO)
    FLOAT = staticmethod(BasicTypeInfo.FLOAT_TYPE_INFO)
    DOUBLE = staticmethod(BasicTypeInfo.DOUBLE_TYPE_INFO)
    CHAR = staticmethod(BasicTypeInfo.CHAR_TYPE_INFO)
    BIG_INT = staticmethod(BasicTypeInfo.BIG_INT_TYPE_INFO)
    BIG_DEC = staticmethod(BasicTypeInfo.BIG_DEC_TYPE_INFO)
    INSTANT = staticmethod(BasicTypeInfo.INSTANT_TYPE_INFO)
    SQL_DATE = staticmethod(SqlTimeTypeInfo.DATE)
    SQL_TIME = staticmethod(SqlTimeTypeInfo.TIME)
    SQL_TIMESTAMP = staticmethod(SqlTimeTypeInfo.TIMESTAMP)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> PickledBytesTypeInfo:
        return PickledBytesTypeInfo()

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TupleTypeInfo:
        return TupleTypeInfo(field_types)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> PrimitiveArrayTypeInfo:
        return PrimitiveArrayTypeInfo(element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> BasicArrayTypeInfo:
        return BasicArrayTypeInfo(element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> ObjectArrayTypeInfo:
        return ObjectArrayTypeInfo(element_type)

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> MapTypeInfo:
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> ListTypeInfo:
        return ListTypeInfo(element_type_info)
