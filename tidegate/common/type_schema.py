"""Declared types as plain data: stored with a snapshot, compared when a job starts from it, turned into columns.

A schema is made from the declaration (`schema_of`) or, for dataclasses, from the class of the values (`class_schema`):
nobody declares those, and yet their fields may change between two versions of a program.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from tidegate.common.typeinfo import (
    BasicTypeInfo,
    DateTypeInfo,
    ExternalTypeInfo,
    LocalTimeTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)

ANY = "ANY"
CLASS = "CLASS"
LIST, MAP, TUPLE, ROW = "LIST", "MAP", "TUPLE", "ROW"
BYTES = "BYTES"
DATE, TIME, TIMESTAMP = "DATE", "TIME", "TIMESTAMP"

_LOCAL = LocalTimeTypeInfo.TimeType
_LOCAL_KINDS = {_LOCAL.LOCAL_DATE: DATE, _LOCAL.LOCAL_TIME: TIME, _LOCAL.LOCAL_DATE_TIME: TIMESTAMP}


class TypeSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str  # a name of BasicType, or one of the constants above; ANY: undeclared, any pickled value
    names: tuple[str, ...] = ()  # of the fields; (): a ROW without names
    parts: tuple[TypeSchema, ...] = ()  # the fields' types, a LIST's element, a MAP's key and value
    class_name: str = ""  # CLASS: module and qualified name
    slots: bool = False  # CLASS: the values have no __dict__, so they are stored by position

    @property
    def field_names(self) -> tuple[str, ...]:
        """Of a ROW or TUPLE: f0, f1, ... where none were declared."""
        return self.names or tuple(f"f{i}" for i in range(len(self.parts)))

    def __str__(self) -> str:
        if self.kind == CLASS:
            return f"dataclass {self.class_name}({', '.join(self.names)})"
        if self.kind == ROW:
            return f"ROW({', '.join(f'{n}: {p}' for n, p in zip(self.field_names, self.parts, strict=True))})"
        inside = ", ".join(map(str, self.parts))
        return f"{self.kind}({inside})" if inside else self.kind


UNDECLARED = TypeSchema(kind=ANY)


def schema_of(type_info: TypeInformation | None) -> TypeSchema:
    if isinstance(type_info, ExternalTypeInfo):
        return schema_of(type_info._type_info)
    if isinstance(type_info, BasicTypeInfo):
        return TypeSchema(kind=type_info.basic_type.name)
    if type_info is None or isinstance(type_info, PickledBytesTypeInfo):
        return UNDECLARED
    if isinstance(type_info, RowTypeInfo):
        names = tuple(type_info.get_field_names()) if type_info._named else ()
        return TypeSchema(kind=ROW, names=names, parts=tuple(map(schema_of, type_info.get_field_types())))
    if isinstance(type_info, TupleTypeInfo):
        return TypeSchema(kind=TUPLE, parts=tuple(map(schema_of, type_info.get_field_types())))
    if isinstance(type_info, MapTypeInfo):
        return TypeSchema(kind=MAP, parts=(schema_of(type_info.key_type), schema_of(type_info.value_type)))
    if isinstance(type_info, PrimitiveArrayTypeInfo) and type_info.element_type == Types.BYTE():
        return TypeSchema(kind=BYTES)
    element = getattr(type_info, "element_type", None)
    if isinstance(element, TypeInformation):
        return TypeSchema(kind=LIST, parts=(schema_of(element),))
    if isinstance(type_info, LocalTimeTypeInfo):
        return TypeSchema(kind=_LOCAL_KINDS[type_info._time_type])
    for cls, kind in ((DateTypeInfo, DATE), (TimeTypeInfo, TIME), (TimestampTypeInfo, TIMESTAMP)):
        if isinstance(type_info, cls):
            return TypeSchema(kind=kind)
    return UNDECLARED


def kind_of(type_info: TypeInformation | None) -> str:
    return schema_of(type_info).kind


def class_schema(cls: type) -> TypeSchema | None:
    """The schema of a dataclass; None when the class is not one."""
    if not dataclasses.is_dataclass(cls):
        return None
    names = tuple(f.name for f in dataclasses.fields(cls))
    return TypeSchema(kind=CLASS, names=names, class_name=f"{cls.__module__}.{cls.__qualname__}", slots=_has_slots(cls))


def _has_slots(cls: Any) -> bool:
    return not hasattr(cls, "__dict__") or "__slots__" in vars(cls)
