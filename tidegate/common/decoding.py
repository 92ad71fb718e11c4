"""What msgspec raises for bytes that anybody may have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""DecodeError (ValidationError is one) is not all: a text that is no UTF-8 raises what Python raises, and so do values
that are nested too deep."""


def from_json(data: bytes, kind: type[T], damaged: Callable[[str], Exception]) -> T:
    """The value that the bytes hold. For what is no such value `damaged` is raised, which is called with the cause."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise damaged(str(error)) from error
