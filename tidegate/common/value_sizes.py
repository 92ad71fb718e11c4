"""How many bytes a value of the user takes, roughly and quickly: for bounds on memory, not for accounts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

from tidegate.common.types import Row

_SMALL = frozenset((int, float, bool, type(None), complex))
_SAMPLED = 16  # items of a container that are looked at; the others are taken to be like them
_DEPTH = 4  # containers within containers that are opened


def estimated_size(value: Any, depth: int = _DEPTH) -> int:
    """Exact but for a constant where it matters: strings, bytes and everything that says `nbytes` (NumPy, Arrow, memory
    views). A container is the sum of its items; of a long one, the first items stand for all."""
    kind = type(value)
    if kind in _SMALL:
        return 8
    if kind is str or kind is bytes:
        return len(value)
    if kind is tuple or kind is list:
        return _of_items(value, len(value), depth) if depth else sys.getsizeof(value)
    if kind is Row:
        return _of_items(value._values, len(value), depth) if depth else sys.getsizeof(value)
    return _of_object(value, depth)


def _of_items(items: Iterable[Any], count: int, depth: int) -> int:
    size = 0
    for item in items if count <= _SAMPLED else islice(items, _SAMPLED):
        size += 8 if type(item) in _SMALL else estimated_size(item, depth - 1)
    return size if count <= _SAMPLED else size * count // _SAMPLED


def _of_object(value: Any, depth: int) -> int:
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if depth:
        if isinstance(value, dict):
            return _of_items(value.keys(), len(value), depth) + _of_items(value.values(), len(value), depth)
        if isinstance(value, (tuple, list, set, frozenset)):
            return _of_items(value, len(value), depth)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and attributes:
            return _of_items(attributes.values(), len(attributes), depth)
        slots = getattr(type(value), "__slots__", None)
        if isinstance(slots, (tuple, list)):
            return _of_items([getattr(value, name, None) for name in slots], len(slots), depth)
    try:
        return sys.getsizeof(value)
    except Exception:  # a __sizeof__ of the user's own: a wrong estimate must not end the job
        return 8
