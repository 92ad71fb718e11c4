"""Dataclasses whose fields have changed since their values were stored, wherever in a value they are.

A stored instance lacks the fields that the class has got since: they are put in, with their defaults. This reaches into
lists, tuples, dicts, sets, rows and other dataclasses, since a pickle stores those whole. Instances are changed in
place, frozen ones too.

Whether anything needs doing is decided by the first values (about `LOOK_AT` objects): a look at all of them would make
every restart slower.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from typing import Any

from tidegate.common.errors import SnapshotError
from tidegate.common.type_schema import TypeSchema, class_schema
from tidegate.common.types import Row

LOOK_AT = 10_000
_INSIDE = (list, tuple, Row, set, frozenset, deque)


class StateSchemaError(SnapshotError):
    """Stored state does not fit what the job declares."""


class DataclassUpgrade:
    """Brings the values of one state up to date. `removed`: the fields of `outermost` that it no longer has. Other
    attributes stay as they are, for the user's code may set more than fields."""

    def __init__(
        self, operator_name: str, state: str, outermost: type | None = None, removed: frozenset[str] = frozenset()
    ) -> None:
        self._where = f"operator '{operator_name}': state '{state}'"
        self._outermost = outermost
        self._removed = removed
        self._fields: dict[type, tuple[dataclasses.Field[Any], ...] | None] = {}  # None: no dataclass

    def is_needed(self, values: Iterable[Any]) -> bool:
        """Whether one of the first values lacks a field. It may have it afterwards."""
        left = LOOK_AT
        for value in values:
            looked_at, changed = self._walk(value, left)
            left -= looked_at
            if changed or left <= 0:
                return changed
        return False

    def __call__(self, value: Any) -> Any:
        self._walk(value, None)
        return value

    def _walk(self, value: Any, at_most: int | None) -> tuple[int, bool]:
        """Returns how many objects were looked at, and whether one of them was changed."""
        waiting, met, count, changed = [value], set(), 0, False
        while waiting and count != at_most:
            value = waiting.pop()
            count += 1
            cls = type(value)
            if cls in self._fields:
                fields = self._fields[cls]
            else:
                fields = self._fields[cls] = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else None
            inside: Iterable[Any] = ()
            if fields is not None:
                changed = self._complete(value, fields) or changed
                inside = vars(value).values() if hasattr(value, "__dict__") else _slot_values(value, fields)
            elif isinstance(value, dict):
                inside = (*value, *value.values())
            elif isinstance(value, _INSIDE):
                inside = value
            if inside and id(value) not in met:
                met.add(id(value))  # a value may hold itself
                waiting.extend(inside)
        return count, changed

    def _complete(self, value: Any, fields: tuple[dataclasses.Field[Any], ...]) -> bool:
        content = getattr(value, "__dict__", None)
        if content is None:
            missing = [f for f in fields if f.init and not hasattr(value, f.name)]
            if missing:
                raise self._by_position(type(value), [f.name for f in fields if hasattr(value, f.name)])
            return False
        # A field that the constructor does not set may be missing for as long as the object lives.
        missing = [f for f in fields if f.name not in content and (f.init or _has_default(f))]
        surplus = self._removed & content.keys() if type(value) is self._outermost else ()
        if not missing and not surplus:
            return False
        unknown = [f.name for f in missing if not _has_default(f)]
        if unknown:
            stored = [name for name in content if name not in unknown]
            raise StateSchemaError(
                f"{self._where} was stored as {_shown(type(value), stored)}, which is {class_schema(type(value))} now; "
                f"the new fields {', '.join(unknown)} need defaults, for the values that were stored without them"
            )
        for field in missing:
            content[field.name] = _default(field)
        for name in surplus:
            del content[name]
        return True

    def _by_position(self, cls: type, stored: Iterable[str]) -> StateSchemaError:
        return StateSchemaError(
            f"{self._where} was stored as {_shown(cls, stored)}, which is {class_schema(cls)} now; fields of a "
            "dataclass with slots are stored by position, so they can be neither added nor removed nor reordered"
        )


def dataclass_upgrade(
    operator_name: str, state: str, old: TypeSchema | None, part: Any, values: Iterable[Any]
) -> DataclassUpgrade | None:
    """The upgrade of a state's values; None when nothing needs doing. `old` and `part`: what was noted of the outermost
    dataclass when it was stored, and one of its values as it is now, when there are such."""
    upgrade = DataclassUpgrade(operator_name, state)
    now = None if part is None else class_schema(type(part))
    if old is not None and now is not None:
        if (now.slots or old.slots) and old.names != now.names:
            raise upgrade._by_position(type(part), old.names)
        removed = frozenset(old.names) - frozenset(now.names)
        if removed:
            return DataclassUpgrade(operator_name, state, type(part), removed)
    return upgrade if upgrade.is_needed(values) else None


def _slot_values(value: Any, fields: tuple[dataclasses.Field[Any], ...]) -> list[Any]:
    return [getattr(value, field.name) for field in fields if hasattr(value, field.name)]


def _shown(cls: type, names: Iterable[str]) -> str:
    return f"dataclass {cls.__module__}.{cls.__qualname__}({', '.join(names)})"


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
