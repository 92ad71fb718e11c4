"""Configuration: keys and values, as given by the user. `tidegate.common.options` knows what they mean."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from tidegate.common.config_options import ConfigOption, OptionType, parse_list
from tidegate.common.errors import ConfigurationError
from tidegate.common.secrets import shown

D = TypeVar("D")

DEFAULT = "default"
PROGRAM = "program"  # a call of the program: `env.set_parallelism`, `CheckpointConfig`, ...
CONFIGURATION = "configuration"  # the configuration that the program gave to its environment
COMMAND = "tidegate run"  # its arguments


class Configuration:
    """Keys and values. Setters return the configuration itself, so that calls can be chained.

    A getter converts what was set (also text) to its type, and raises ConfigurationError when it cannot.
    """

    def __init__(self, other: Configuration | None = None) -> None:
        self._values: dict[str, Any] = {} if other is None else dict(other._values)
        self._sources: dict[str, str] = {} if other is None else dict(other._sources)  # of keys not set by a call

    # ------------------------------------------------------------ PyFlink's methods

    def get_string(self, key: str, default_value: str | None = None) -> str | None:
        return self._typed(key, OptionType.STRING, default_value)

    def set_string(self, key: str, value: str) -> Configuration:
        return self._set(key, value)

    def get_integer(self, key: str, default_value: int | None = None) -> int | None:
        return self._typed(key, OptionType.INTEGER, default_value)

    def set_integer(self, key: str, value: int) -> Configuration:
        return self._set(key, self._checked(key, OptionType.INTEGER, value))

    def get_boolean(self, key: str, default_value: bool | None = None) -> bool | None:
        return self._typed(key, OptionType.BOOLEAN, default_value)

    def set_boolean(self, key: str, value: bool) -> Configuration:
        return self._set(key, self._checked(key, OptionType.BOOLEAN, value))

    def get_float(self, key: str, default_value: float | None = None) -> float | None:
        return self._typed(key, OptionType.FLOAT, default_value)

    def set_float(self, key: str, value: float) -> Configuration:
        return self._set(key, self._checked(key, OptionType.FLOAT, value))

    def get_bytearray(self, key: str, default_value: bytearray | None = None) -> bytearray | None:
        value = self._values.get(key)
        if value is None:
            return default_value
        if not isinstance(value, bytes | bytearray):
            raise ConfigurationError(f"{key} = {value!r} is not allowed: bytes wanted.")
        return bytearray(value)

    def set_bytearray(self, key: str, value: bytearray) -> Configuration:
        return self._set(key, bytes(value))

    def key_set(self) -> set[str]:
        return set(self._values)

    def contains_key(self, key: str) -> bool:
        return key in self._values

    def remove_config(self, key: str) -> bool:
        """Remove a key. Returns whether it was there."""
        return self._values.pop(key, None) is not None

    def add_all(self, other: Configuration, prefix: str | None = None) -> Configuration:
        """Take over all of `other`, with `prefix` before each key."""
        for key, value in other._values.items():
            full = (prefix or "") + key
            self._set(full, value)
            if key in other._sources:
                self._sources[full] = other._sources[key]
        return self

    def add_all_to_dict(self, target_dict: dict[str, Any]) -> None:
        target_dict.update(self._values)

    def to_dict(self) -> dict[str, str]:
        """Keys and values as text, the way a configuration file has them."""
        return {key: _as_text(value) for key, value in self._values.items()}

    @staticmethod
    def from_dict(map: Mapping[str, Any]) -> Configuration:
        result = Configuration()
        for key, value in map.items():
            result._set(key, value)
        return result

    @staticmethod
    def parse_list_value(value: str) -> list[str]:
        """The items of a list that is given as `a;b` or `[a, b]`."""
        return parse_list(value) if value else []

    # ------------------------------------------------------------ ours

    def get_raw(self, key: str) -> Any:
        """The value as it was set, None when it was not."""
        return self._values.get(key)

    def set(self, option: ConfigOption | str, value: Any) -> Configuration:
        """Set an option, checking the value; it then holds whichever alias was set before. A str is a plain key."""
        if isinstance(option, str):
            return self._set(option, value)
        parsed = option.parse(value)
        for alias in option.aliases:
            self._values.pop(alias, None)
        return self._set(option.key, option.special[0] if parsed is None and option.special else parsed)

    def get(self, option: ConfigOption) -> Any:
        """The typed value of an option: from its key, else from its first alias that is set, else its default."""
        for key in option.keys:
            value = self._values.get(key)
            if value is not None:
                return option.parse(value, key)
        return copy.copy(option.default)  # lists and dicts belong to the caller

    def come_from(self, source: str) -> Configuration:
        """All that is set so far came from there; what is set later comes from the program."""
        self._sources = dict.fromkeys(self._values, source)
        return self

    def source_of(self, *keys: str) -> str:
        """Where the value of the first of them that is set came from."""
        found = next((key for key in keys if key in self._values), "")
        return self._sources.get(found, PROGRAM)

    def contains(self, option: ConfigOption) -> bool:
        """Whether the option is set, under its key or an alias."""
        return any(key in self._values for key in option.keys)

    # ------------------------------------------------------------ helpers

    def _set(self, key: str, value: Any) -> Configuration:
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"The key of a setting is text that is not empty, got {key!r}.")
        if value is None:
            raise ConfigurationError(f"{key} = None is not allowed; use remove_config({key!r}) to take it out.")
        self._values[key] = value
        self._sources.pop(key, None)
        return self

    @staticmethod
    def _checked(key: str, option_type: OptionType, value: Any) -> Any:
        return ConfigOption(key, option_type).parse(value)

    def _typed(self, key: str, option_type: OptionType, default: D) -> D:
        value = self._values.get(key)
        if value is None:
            return default
        if option_type is OptionType.STRING:
            return _as_text(value)  # type: ignore[return-value]
        return self._checked(key, option_type, value)  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self.to_dict().items()))

    def __len__(self) -> int:
        return len(self._values)

    def __str__(self) -> str:
        """Keys and values as Flink shows them, `{a=1, b=2}`; what looks like a secret hidden."""
        return f"{{{', '.join(f'{key}={shown(key, value)}' for key, value in sorted(self.to_dict().items()))}}}"

    def __repr__(self) -> str:
        return f"Configuration({self})"


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ";".join(map(_as_text, value))
    if isinstance(value, dict):
        return ",".join(f"{k}:{_as_text(v)}" for k, v in value.items())
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return str(value)
