"""User values to bytes: pickle protocol 5, and cloudpickle for what plain pickle refuses (classes of `__main__`,
lambdas)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.common.errors import SerializationError, SnapshotError
from tidegate.state.former_modules import find_former_modules

PROTOCOL = 5

find_former_modules()

unpickle: Callable[[bytes], Any] = pickle.loads
"""What reads stored values; see `class_mapping`."""


def dumps(value: Any) -> bytes:
    """Raises whatever cloudpickle raises when the value cannot be pickled at all."""
    try:
        return pickle.dumps(value, PROTOCOL)
    except Exception:
        import cloudpickle

        data: bytes = cloudpickle.dumps(value, PROTOCOL)
        return data


def dumps_entries(operator_name: str, state_name: str, keys: Sequence[Any], values: Sequence[Any]) -> bytes:
    """The pickled pair (keys, values). When that fails, the error names the first entry that cannot be pickled."""
    try:
        return dumps((keys, values))
    except Exception as error:
        for key, value in zip(keys, values, strict=True):
            for what, part in (("the key", key), ("the value", value)):
                try:
                    dumps(part)
                except Exception as cause:
                    raise _cannot_pickle(
                        operator_name, state_name, f"{what} of key {_short(key)}", part, cause
                    ) from cause
        raise _cannot_pickle(operator_name, state_name, "some entries", values, error) from error


def dumps_item(operator_name: str, state_name: str, item: Any, position: str) -> bytes:
    """The bytes of one item of an operator state."""
    try:
        return dumps(item)
    except Exception as cause:
        raise _cannot_pickle(operator_name, state_name, position, item, cause) from cause


def loads(operator_name: str, state_name: str, data: bytes) -> Any:
    """Reads what any of the functions above made."""
    try:
        return unpickle(data)
    except Exception as cause:
        raise SnapshotError(
            f"operator '{operator_name}': state '{state_name}' cannot be read back from the snapshot: "
            f"{type(cause).__name__}: {cause}; the classes of its values have to be importable under the names that "
            "they had when the snapshot was taken, or be mapped to their new ones with state.class-mapping"
        ) from cause


def _cannot_pickle(operator_name: str, state_name: str, where: str, part: Any, cause: Exception) -> SerializationError:
    return SerializationError(
        f"operator '{operator_name}': state '{state_name}' cannot be stored: {where} "
        f"({type(part).__module__}.{type(part).__qualname__}) cannot be pickled: {type(cause).__name__}: {cause}; "
        "keep plain data in state (no open files, sockets, locks or generators) and make the rest in open()"
    )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 100 else shown[:97] + "..."
