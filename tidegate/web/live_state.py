"""Keyed state over HTTP: keys come as text and become what the operator's keys are, values go as JSON.

Nothing that comes in is unpickled. A key is JSON, or text where the keys are strings; a value that JSON has no word for
is shown as its `repr`.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import decimal
import enum
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import msgspec

from tidegate.common.errors import ConfigurationError, WrongKeyError
from tidegate.common.texts import bounded, encodable
from tidegate.common.typeinfo import TypeInformation, Types
from tidegate.common.types import Row
from tidegate.formats.json_values import from_json
from tidegate.jobmanager.job_view import JobView
from tidegate.jobmanager.live_state import StateAnswer, StateHandle, StateLevel

_SHOWN = 2_000  # characters of a text for people
_DEFAULT_LIMIT = 100
_FIELDS = ("key", "level", "window", "limit")
_SAFE_INTEGER = 1 << 63


@dataclass(frozen=True)
class StateQuestion:
    """What is asked of one state. Without keys: some entries, at most `limit`."""

    keys: tuple[str, ...] = ()
    level: str = StateLevel.LIVE.value
    window: str = ""  # JSON, such as [0, 1000]; "": all windows of the key
    limit: int = _DEFAULT_LIMIT

    @staticmethod
    def parse(query: str) -> StateQuestion:
        """Of the part of an address behind its `?`. Raises ConfigurationError."""
        try:
            fields = parse_qs(query, keep_blank_values=True, strict_parsing=True, errors="strict") if query else {}
        except ValueError as error:
            raise ConfigurationError(f"the query is not key=...&level=...: {error}") from None
        if unknown := fields.keys() - set(_FIELDS):
            raise ConfigurationError(f"there is no {', '.join(sorted(unknown))} here: only {', '.join(_FIELDS)}")
        twice = [name for name, values in fields.items() if name != "key" and len(values) > 1]
        if twice:
            raise ConfigurationError(f"'{twice[0]}' was given twice")
        limit = fields.get("limit", [str(_DEFAULT_LIMIT)])[0]
        if not (limit.isascii() and limit.isdigit() and len(limit) < 9):
            raise ConfigurationError(f"'limit' is a number, not '{limit}'")
        return StateQuestion(
            keys=tuple(fields.get("key", ())),
            level=fields.get("level", [StateLevel.LIVE.value])[0],
            window=fields.get("window", [""])[0],
            limit=int(limit),
        )

    def query(self) -> str:
        """The inverse of `parse`."""
        fields: list[tuple[str, str]] = [("key", key) for key in self.keys]
        fields += [("level", self.level), ("limit", str(self.limit))]
        if self.window:
            fields.append(("window", self.window))
        return urlencode(fields)


def path_of(operator: str, state: str, question: StateQuestion) -> str:
    """Below the address of a job."""
    return f"/state/{quote(operator, safe='')}/{quote(state, safe='')}?{question.query()}"


def answer(handle: StateHandle, question: StateQuestion) -> dict[str, Any]:
    """Raises what the handle raises."""
    level = StateLevel.of(question.level)
    if question.keys:
        keys = [_key(handle, text) for text in question.keys]
        found = handle.get_many(keys, level=level, window=_window(question.window))
    else:
        found = handle.scan(question.limit, level=level)
    return {
        "operator": handle.operator,
        "state": handle.state,
        "level": (found[0].level if found else level).value,
        "answers": [_document(one) for one in found],
    }


def states(view: JobView) -> dict[str, Any]:
    """The keyed states of a job with their sizes."""
    return {"states": [msgspec.to_builtins(state) for state in view.states]}


# ---------------------------------------------------------------- keys


def _key(handle: StateHandle, text: str) -> Any:
    """Raises WrongKeyError, which says what the keys are."""
    declared, observed = handle.key_type, handle.key_types
    try:
        return key_of_text(text, declared, observed)
    except (ValueError, TypeError, ArithmeticError) as error:
        types = str(declared) if declared is not None else " or ".join(observed)
        raise WrongKeyError(
            f"the keys of state '{handle.state}' of operator '{handle.operator}' are {types}: "
            f"'{bounded(text, 200)}' is none ({error})"
        ) from None


def key_of_text(text: str, declared: TypeInformation | None, observed: tuple[str, ...]) -> Any:
    """What a text stands for, for keys of a declared type, or else of the observed classes. Raises ValueError or
    TypeError."""
    if declared == Types.STRING() or (declared is None and observed == ("str",)):
        parsed = _json(text) if text[:1] == '"' else text
        return parsed if isinstance(parsed, str) else text
    value = _json(text)
    if declared is not None:
        return from_json(declared, True)(value)
    made = _FROM_TEXT.get(observed[0]) if len(observed) == 1 else None
    return made(text if not isinstance(value, str) else value) if made is not None else _hashable(value)


def _json(text: str) -> Any:
    """Text that is no JSON is itself."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        raise TypeError("an object is no key")
    return value


_FROM_TEXT: Mapping[str, Callable[[str], Any]] = {
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "date": datetime.date.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
}


def _window(text: str) -> tuple[Any, ...] | None:
    if not text:
        return None
    value = _json(text)
    if not isinstance(value, list):
        raise ConfigurationError(f"a window is a list, such as [0, 1000] from 0 to 1000 ms, not '{bounded(text, 200)}'")
    return tuple(map(_hashable, value))


# ---------------------------------------------------------------- values


def _document(one: StateAnswer) -> dict[str, Any]:
    document: dict[str, Any] = {
        "key": shown(one.key),
        "found": one.found,
        "checkpoint": one.checkpoint,
        "watermark": one.watermark,
        "attempt": one.attempt,
    }
    if one.by_window:
        document["windows"] = [{"window": shown(window), **shown(value)} for window, value in one.value.items()]
        return document
    if one.window is not None:
        document["window"] = shown(one.window)
    return {**document, **(shown(one.value) if one.found else {})}


def shown(value: Any) -> dict[str, Any]:
    """`text` for people, `type`, and `value` when JSON can say it."""
    cls = type(value)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:  # of the user's class
        text = f"<{name} whose repr raises {type(error).__name__}>"
    document: dict[str, Any] = {"type": encodable(name), "text": bounded(encodable(text), _SHOWN)}
    with contextlib.suppress(_NoWordError, RecursionError):
        document["value"] = _as_json(value)
    return document


class _NoWordError(Exception):
    """JSON cannot say it."""


def _as_json(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _as_json(value.name)
    if isinstance(value, str):
        return encodable(str(value))
    if isinstance(value, int):
        if not -_SAFE_INTEGER <= value < _SAFE_INTEGER:
            raise _NoWordError
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _NoWordError
        return float(value)
    if isinstance(value, Row):
        fields = getattr(value, "_fields", None)
        parts = [_as_json(part) for part in value]
        return dict(zip(map(str, fields), parts, strict=True)) if fields else parts
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {encodable(key): _as_json(part) for key, part in value.items()}
        return [[_as_json(key), _as_json(part)] for key, part in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    raise _NoWordError
