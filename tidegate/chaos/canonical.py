"""Values made comparable across processes: the same text for equal values, whatever made them."""

from __future__ import annotations

import hashlib
from typing import Any

from tidegate.common.types import Row
from tidegate.common.value_conversion import shorten

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def canonical(value: Any) -> str:
    """A text that equal values share. Sets and dicts are sorted; objects are taken apart as pickle does."""
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return f"{type(value).__name__}({','.join(map(canonical, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({','.join(sorted(map(canonical, value)))})"
    if type(value) is dict:
        return f"dict({','.join(sorted(f'{canonical(k)}:{canonical(v)}' for k, v in value.items()))})"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    return _taken_apart(value)


def _taken_apart(value: Any) -> str:
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:
        return repr(value)
    if isinstance(reduced, str):
        return reduced
    function, arguments, *rest = reduced
    parts = [canonical(function), canonical(list(arguments))]
    parts += [canonical(list(part) if hasattr(part, "__next__") else part) for part in rest if part is not None]
    return f"{type(value).__qualname__}({';'.join(parts)})"


def digest(value: Any) -> bytes:
    return hashlib.blake2b(canonical(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def shown(value: Any) -> str:
    return shorten(value)


def order_key(value: Any, order_by: str) -> bytes:
    """The digest of the field that has an order; b"" when the value has no such field. "auto": the first one."""
    if order_by == "none":
        return b""
    try:
        if order_by == "auto":
            field = value[0] if isinstance(value, (tuple, list, Row)) else None
        elif order_by.isdigit():
            field = value[int(order_by)]
        else:
            field = value[order_by] if isinstance(value, (dict, Row)) else getattr(value, order_by)
    except (LookupError, AttributeError, TypeError):
        return b""
    return b"" if field is None else digest(field)[:8]
