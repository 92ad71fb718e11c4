"""What a configuration option is: a key with a type, a default and a description; and how its values are read.

Values may be set as text (as in a configuration file) or as the Python object. Text is read as Flink reads it: `10 s`,
`500ms`, `1 min` (a plain number is milliseconds), `5 mb`, `true`, `a;b;c`, `k1:v1,k2:v2`.
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import Duration, Time


class OptionType(enum.Enum):
    """The type of an option; the value is what the documentation calls it."""

    STRING = "text"
    INTEGER = "integer"
    FLOAT = "number"
    BOOLEAN = "boolean"
    DURATION = "duration"  # read as int, milliseconds
    MEMORY = "memory size"  # read as int, bytes
    ENUM = "one of"  # read as str, spelled as in `choices`
    LIST = "list"  # read as list[str]
    MAP = "map"  # read as dict[str, str]


@dataclass(frozen=True)
class ConfigOption:
    """One option. `default` None means "not set" and is given back as it is."""

    key: str
    type: OptionType = OptionType.STRING
    default: Any = None
    description: str = ""
    aliases: tuple[str, ...] = ()  # other keys for the same option, looked at in this order after `key`
    choices: tuple[str, ...] = ()  # ENUM: the allowed spellings
    synonyms: dict[str, str] = field(default_factory=dict, hash=False)  # ENUM: other spelling -> choice
    minimum: float | None = None
    maximum: float | None = None
    special: tuple[str, ...] = ()  # words allowed beside the type's own values, read as None, e.g. "infinite"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.aliases)

    def parse(self, value: Any, key: str | None = None) -> Any:
        """The typed value; ConfigurationError naming `key`, the value and what is allowed when it is wrong."""
        if isinstance(value, str) and value.strip().lower() in self.special:
            return None
        try:
            parsed = _READERS[self.type](self, value)
        except (ValueError, TypeError, OverflowError):
            raise ConfigurationError(
                f"{key or self.key} = {value!r} is not allowed: {self.allowed()} wanted."
            ) from None
        if (self.minimum is not None and parsed < self.minimum) or (self.maximum is not None and parsed > self.maximum):
            raise ConfigurationError(f"{key or self.key} = {value!r} is out of range: {self.allowed()} wanted.")
        return parsed

    def allowed(self) -> str:
        """Says in words what a value may be, for error messages."""
        text = _ALLOWED[self.type]
        if self.type is OptionType.ENUM:
            text = "one of " + ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            text += f" from {self.format(self.minimum)} to {self.format(self.maximum)}"
        elif self.minimum is not None:
            text += f" of at least {self.format(self.minimum)}"
        elif self.maximum is not None:
            text += f" of at most {self.format(self.maximum)}"
        return text + "".join(f" or '{word}'" for word in self.special)

    def format(self, value: Any) -> str:
        """The value as one would write it in a configuration."""
        if value is None:
            return self.special[0] if self.special else "(none)"
        if self.type is OptionType.DURATION:
            return format_duration(int(value))
        if self.type is OptionType.MEMORY:
            return format_memory(int(value))
        if self.type is OptionType.BOOLEAN:
            return "true" if value else "false"
        if self.type is OptionType.LIST:
            return ";".join(value)
        if self.type is OptionType.MAP:
            return ",".join(f"{k}:{v}" for k, v in value.items())
        return str(value)


# ---------------------------------------------------------------- reading values

_DURATION_UNITS: dict[tuple[str, ...], int] = {
    ("ns", "nano", "nanos", "nanosecond", "nanoseconds"): 1,
    ("us", "µs", "micro", "micros", "microsecond", "microseconds"): 1_000,
    ("", "ms", "milli", "millis", "millisecond", "milliseconds"): 1_000_000,
    ("s", "sec", "secs", "second", "seconds"): 1_000_000_000,
    ("m", "min", "mins", "minute", "minutes"): 60_000_000_000,
    ("h", "hour", "hours"): 3_600_000_000_000,
    ("d", "day", "days"): 86_400_000_000_000,
}
_MEMORY_UNITS: dict[tuple[str, ...], int] = {
    ("", "b", "byte", "bytes"): 1,
    ("k", "kb", "kib", "kibibytes"): 1 << 10,
    ("m", "mb", "mib", "mebibytes"): 1 << 20,
    ("g", "gb", "gib", "gibibytes"): 1 << 30,
    ("t", "tb", "tib", "tebibytes"): 1 << 40,
}
_NUMBER_AND_UNIT = re.compile(r"\s*(-?\d+)\s*([a-zµ]*)\s*", re.IGNORECASE)


def _in_units(text: str, units: dict[tuple[str, ...], int]) -> int:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match:
        unit = match.group(2).lower()
        for names, factor in units.items():
            if unit in names:
                return int(match.group(1)) * factor
    raise ValueError(text)


def parse_duration(value: Any) -> int:
    """Milliseconds; ValueError or TypeError for what is not a duration. Less than a millisecond rounds up to one."""
    if isinstance(value, bool):
        raise TypeError(value)
    if isinstance(value, int):
        return value
    if isinstance(value, Duration):
        nanos = value.to_nanos()
    elif isinstance(value, Time):
        nanos = value.to_milliseconds() * 1_000_000
    elif isinstance(value, datetime.timedelta):
        nanos = value // datetime.timedelta(microseconds=1) * 1000
    elif isinstance(value, str):
        nanos = _in_units(value, _DURATION_UNITS)
    else:
        raise TypeError(value)
    return 1 if 0 < nanos < 1_000_000 else nanos // 1_000_000


def parse_memory(value: Any) -> int:
    """Bytes; ValueError or TypeError for what is not a memory size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _in_units(value, _MEMORY_UNITS)
    raise TypeError(value)


def parse_list(value: Any) -> list[str]:
    """A list, or text such as `a;b`, or `[a, b]`, or the lines `- a` and `- b`."""
    if isinstance(value, list | tuple):
        return [str(v) for v in value]
    if not isinstance(value, str):
        raise TypeError(value)
    text = value.strip()
    if text.startswith("[") and text.endswith("]"):
        parts = text[1:-1].split(",")
        return [_unquote(p) for p in parts if p.strip()]
    lines = text.splitlines()
    if lines and all(line.strip().startswith("- ") for line in lines):
        return [_unquote(line.strip()[2:]) for line in lines]
    return [_unquote(p) for p in text.split(";") if p.strip()]


def parse_map(value: Any) -> dict[str, str]:
    """Reads a dict, or text such as `k1:v1,k2:v2`."""
    if isinstance(value, dict):
        return {str(k): str(v) for k, v in value.items()}
    if not isinstance(value, str):
        raise TypeError(value)
    pairs = {}
    for part in value.split(","):
        if part.strip():
            key, colon, item = part.partition(":")
            if not colon:
                raise ValueError(value)
            pairs[_unquote(key)] = _unquote(item)
    return pairs


def parse_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError(value)


def parse_integer(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return int(value.strip() if isinstance(value, str) else value)


def parse_float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def _unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _normal(text: str) -> str:
    return text.strip().lower().replace("_", "-")


def _read_enum(option: ConfigOption, value: Any) -> str:
    text = _normal(value.name if isinstance(value, enum.Enum) else str(value))
    for choice in option.choices:
        if _normal(choice) == text:
            return choice
    for other, choice in option.synonyms.items():
        if _normal(other) == text:
            return choice
    raise ValueError(value)


def _read_string(option: ConfigOption, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_READERS: dict[OptionType, Callable[[ConfigOption, Any], Any]] = {
    OptionType.STRING: _read_string,
    OptionType.INTEGER: lambda _, value: parse_integer(value),
    OptionType.FLOAT: lambda _, value: parse_float(value),
    OptionType.BOOLEAN: lambda _, value: parse_boolean(value),
    OptionType.DURATION: lambda _, value: parse_duration(value),
    OptionType.MEMORY: lambda _, value: parse_memory(value),
    OptionType.ENUM: _read_enum,
    OptionType.LIST: lambda _, value: parse_list(value),
    OptionType.MAP: lambda _, value: parse_map(value),
}
_ALLOWED = {
    OptionType.STRING: "text",
    OptionType.INTEGER: "a whole number",
    OptionType.FLOAT: "a number",
    OptionType.BOOLEAN: "true or false",
    OptionType.DURATION: "a duration such as '500 ms', '10 s' or '1 min' (a plain number is milliseconds)",
    OptionType.MEMORY: "a memory size such as '512 kb' or '5 mb' (a plain number is bytes)",
    OptionType.ENUM: "one of a list",
    OptionType.LIST: "a list such as 'a;b'",
    OptionType.MAP: "pairs such as 'key1:value1,key2:value2'",
}


def format_duration(millis: int) -> str:
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if millis and millis % factor == 0:
            return f"{millis // factor} {unit}"
    return f"{millis} ms"


def format_memory(size: int) -> str:
    for unit, factor in (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} bytes"


# ---------------------------------------------------------------- PyFlink's builder


class ConfigOptions:
    """Builds an option of the user's own::

    ConfigOptions.key("my.threads").int_type().default_value(4)
    """

    @staticmethod
    def key(key: str) -> OptionBuilder:
        return OptionBuilder(key)


class OptionBuilder:
    """The second step of `ConfigOptions.key`: the type."""

    def __init__(self, key: str) -> None:
        if not key:
            raise ConfigurationError("The key of an option must not be empty.")
        self._key = key

    def boolean_type(self) -> TypedOptionBuilder:
        return TypedOptionBuilder(self._key, OptionType.BOOLEAN)

    def int_type(self) -> TypedOptionBuilder:
        return TypedOptionBuilder(self._key, OptionType.INTEGER)

    def long_type(self) -> TypedOptionBuilder:
        return TypedOptionBuilder(self._key, OptionType.INTEGER)

    def float_type(self) -> TypedOptionBuilder:
        return TypedOptionBuilder(self._key, OptionType.FLOAT)

    def double_type(self) -> TypedOptionBuilder:
        return TypedOptionBuilder(self._key, OptionType.FLOAT)

    def string_type(self) -> TypedOptionBuilder:
        return TypedOptionBuilder(self._key, OptionType.STRING)

    def duration_type(self) -> TypedOptionBuilder:
        return TypedOptionBuilder(self._key, OptionType.DURATION)

    def memory_type(self) -> TypedOptionBuilder:
        return TypedOptionBuilder(self._key, OptionType.MEMORY)

    def map_type(self) -> TypedOptionBuilder:
        return TypedOptionBuilder(self._key, OptionType.MAP)


class TypedOptionBuilder:
    """The third step of `ConfigOptions.key`: the default."""

    def __init__(self, key: str, option_type: OptionType) -> None:
        self._key = key
        self._type = option_type

    def default_value(self, value: Any) -> ConfigOption:
        return ConfigOption(self._key, self._type, ConfigOption(self._key, self._type).parse(value))

    def no_default_value(self) -> ConfigOption:
        return ConfigOption(self._key, self._type)
