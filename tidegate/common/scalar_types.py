"""The base of all declared types, and those without parts: text, numbers, dates. Users import them from `typeinfo`."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from typing import Any

from tidegate.common import value_conversion as conversion
from tidegate.common.time import Instant
from tidegate.common.value_conversion import Conversion


class TypeInformation:
    """Base of all types. Immutable; equal when class and parameters are.

    The *internal* form of a value consists of numbers, strings, bytes, lists, dicts and tuples only, so that it can be
    stored in typed columns; `to_internal_type` and `from_internal_type` are inverse to each other.
    """

    def need_conversion(self) -> bool:
        """Whether the internal form differs from the value."""
        return False

    def to_internal_type(self, obj: Any) -> Any:
        return obj

    def from_internal_type(self, obj: Any) -> Any:
        return obj

    def conversion(self) -> Conversion | None:
        """How a value that a function returned becomes one of this type; None when any value will do."""
        return None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(str(self))

    def __repr__(self) -> str:
        return str(self)


# ---------------------------------------------------------------- scalars


class BasicType(enum.Enum):
    STRING = "String"
    BYTE = "Byte"
    BOOLEAN = "Boolean"
    SHORT = "Short"
    INT = "Integer"
    LONG = "Long"
    FLOAT = "Float"
    DOUBLE = "Double"
    CHAR = "Character"
    BIG_INT = "BigInteger"
    BIG_DEC = "BigDecimal"
    INSTANT = "Instant"


_BASIC_CONVERSIONS: dict[BasicType, Callable[[str], Conversion]] = {
    BasicType.STRING: conversion.to_string,
    BasicType.BOOLEAN: conversion.to_boolean,
    BasicType.BYTE: conversion.to_integer,
    BasicType.SHORT: conversion.to_integer,
    BasicType.INT: conversion.to_integer,
    BasicType.LONG: conversion.to_integer,
    BasicType.BIG_INT: conversion.to_integer,
    BasicType.FLOAT: conversion.to_float,
    BasicType.DOUBLE: conversion.to_float,
    BasicType.CHAR: conversion.to_character,
    BasicType.BIG_DEC: conversion.to_decimal,
}


class BasicTypeInfo(TypeInformation):
    """The type of a scalar: text, a number or a boolean."""

    def __init__(self, basic_type: BasicType) -> None:
        self._basic_type = basic_type

    @property
    def basic_type(self) -> BasicType:
        return self._basic_type

    def conversion(self) -> Conversion | None:
        make = _BASIC_CONVERSIONS.get(self._basic_type)
        return None if make is None else make(str(self))

    def __str__(self) -> str:
        return self._basic_type.value

    @staticmethod
    def STRING_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.STRING)

    @staticmethod
    def BOOLEAN_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.BOOLEAN)

    @staticmethod
    def BYTE_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.BYTE)

    @staticmethod
    def SHORT_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.SHORT)

    @staticmethod
    def INT_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.INT)

    @staticmethod
    def LONG_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.LONG)

    @staticmethod
    def FLOAT_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.FLOAT)

    @staticmethod
    def DOUBLE_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.DOUBLE)

    @staticmethod
    def CHAR_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.CHAR)

    @staticmethod
    def BIG_INT_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.BIG_INT)

    @staticmethod
    def BIG_DEC_TYPE_INFO() -> BasicTypeInfo:
        return BasicTypeInfo(BasicType.BIG_DEC)

    @staticmethod
    def INSTANT_TYPE_INFO() -> InstantTypeInfo:
        return InstantTypeInfo(BasicType.INSTANT)


class InstantTypeInfo(BasicTypeInfo):
    """The type of a `tidegate.common.Instant`, which is kept as microseconds since the epoch."""

    def need_conversion(self) -> bool:
        return True

    def to_internal_type(self, obj: Instant | None) -> int | None:
        return None if obj is None else obj.seconds * 1_000_000 + obj.nanos // 1000

    def from_internal_type(self, obj: int | None) -> Instant | None:
        if obj is None:
            return None
        seconds, micros = divmod(obj, 1_000_000)
        return Instant(seconds, micros * 1000)

    def conversion(self) -> Conversion | None:
        def of_datetime(moment: datetime.datetime) -> Instant | None:
            return self.from_internal_type(TimestampTypeInfo().to_internal_type(moment))

        return conversion.to_instance(
            str(self), Instant, datetime.datetime, of_datetime, "for milliseconds use Instant.of_epoch_milli(...)"
        )


class SqlTimeTypeInfo(TypeInformation):
    """Dates and times of Python's datetime module."""

    @staticmethod
    def DATE() -> DateTypeInfo:
        return DateTypeInfo()

    @staticmethod
    def TIME() -> TimeTypeInfo:
        return TimeTypeInfo()

    @staticmethod
    def TIMESTAMP() -> TimestampTypeInfo:
        return TimestampTypeInfo()

    def need_conversion(self) -> bool:
        return True


class DateTypeInfo(SqlTimeTypeInfo):
    """The type of a datetime.date, which is kept as days since the epoch."""

    EPOCH_ORDINAL = datetime.date(1970, 1, 1).toordinal()

    def to_internal_type(self, obj: datetime.date | None) -> int | None:
        return None if obj is None else obj.toordinal() - self.EPOCH_ORDINAL

    def from_internal_type(self, obj: int | None) -> datetime.date | None:
        return None if obj is None else datetime.date.fromordinal(obj + self.EPOCH_ORDINAL)

    def conversion(self) -> Conversion | None:
        return conversion.to_instance(str(self), datetime.date, datetime.datetime, datetime.datetime.date)

    def __str__(self) -> str:
        return "Date"


class TimeTypeInfo(SqlTimeTypeInfo):
    """datetime.time without a time zone; internally microseconds since midnight."""

    def to_internal_type(self, obj: datetime.time | None) -> int | None:
        if obj is None:
            return None
        return ((obj.hour * 60 + obj.minute) * 60 + obj.second) * 1_000_000 + obj.microsecond

    def from_internal_type(self, obj: int | None) -> datetime.time | None:
        if obj is None:
            return None
        seconds, micros = divmod(obj, 1_000_000)
        return datetime.time(seconds // 3600, seconds // 60 % 60, seconds % 60, micros)

    def conversion(self) -> Conversion | None:
        return conversion.to_instance(str(self), datetime.time)

    def __str__(self) -> str:
        return "Time"


class TimestampTypeInfo(SqlTimeTypeInfo):
    """datetime.datetime; internally microseconds since the epoch.

    A datetime without a time zone is taken as UTC, so that the result does not depend on the machine. One with a zone
    comes back as the same moment in UTC, without a zone.
    """

    _EPOCH = datetime.datetime(1970, 1, 1)

    def to_internal_type(self, obj: datetime.datetime | None) -> int | None:
        if obj is None:
            return None
        if obj.tzinfo is not None:
            obj = obj.astimezone(datetime.UTC).replace(tzinfo=None)
        return (obj - self._EPOCH) // datetime.timedelta(microseconds=1)

    def from_internal_type(self, obj: int | None) -> datetime.datetime | None:
        return None if obj is None else self._EPOCH + datetime.timedelta(microseconds=obj)

    def conversion(self) -> Conversion | None:
        return conversion.to_instance(str(self), datetime.datetime)

    def __str__(self) -> str:
        return "Timestamp"


class LocalTimeTypeInfo(TypeInformation):
    """Local dates and times of Java's time API; here the classes of the datetime module, as they are."""

    class TimeType(enum.Enum):
        LOCAL_DATE = "LocalDate"
        LOCAL_TIME = "LocalTime"
        LOCAL_DATE_TIME = "LocalDateTime"

    def __init__(self, time_type: LocalTimeTypeInfo.TimeType) -> None:
        self._time_type = time_type

    def __str__(self) -> str:
        return self._time_type.value


class PickledBytesTypeInfo(TypeInformation):
    """Any Python object. The type of everything that has no declared type."""

    def __str__(self) -> str:
        return "PickledByteArray"
