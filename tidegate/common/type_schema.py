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
    InstantTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)

ANY = "ANY"
CLASS = "CLASS"
LIST, MAP, TUPLE, ROW = "LIST", "MAP", "TUPLE", "ROW"
DATE, TIME, TIMESTAMP = "DATE", "TIME", "TIMESTAMP"


class TypeSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str  # a name of BasicType, or one of the constants above; ANY: undeclared, any pickled value
    names: tuple[str, ...] = ()  # of the fields; (): a ROW without names
    parts: tuple[TypeSchema, ...] = ()  # the fields' types, a LIST's element, a MAP's key and value
    class_name: str = ""  # CLASS: module and qualified name
    slots: bool = False  # CLASS: the values have no __dict__, so they are stored by position

    def __str__(self) -> str:
        if self.kind == CLASS:
            return f"dataclass {self.class_name}({', '.join(self.names)})"
        if self.kind == ROW:
            names = self.names or tuple(f"f{i}" for i in range(len(self.parts)))
            return f"ROW({', '.join(f'{n}: {p}' for n, p in zip(names, self.parts, strict=True))})"
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
    element = getattr(type_info, "element_type", None)
    if isinstance(element, TypeInformation):
        return TypeSchema(kind=LIST, parts=(schema_of(element),))
    for cls, kind in ((InstantTypeInfo, "INSTANT"), (DateTypeInfo, DATE), (TimeTypeInfo, TIME)):
        if isinstance(type_info, cls):
            return TypeSchema(kind=kind)
    if isinstance(type_info, TimestampTypeInfo):
        return TypeSchema(kind=TIMESTAMP)
    return UNDECLARED


def class_schema(cls: type) -> TypeSchema | None:
    """Of a dataclass; None for another class."""
    if not dataclasses.is_dataclass(cls):
        return None
    names = tuple(f.name for f in dataclasses.fields(cls))
    return TypeSchema(kind=CLASS, names=names, class_name=f"{cls.__module__}.{cls.__qualname__}", slots=_has_slots(cls))


def _has_slots(cls: Any) -> bool:
    return not hasattr(cls, "__dict__") or "__slots__" in vars(cls)
