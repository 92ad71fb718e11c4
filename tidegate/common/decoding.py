"""What msgspec raises for bytes that anybody may have written."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""DecodeError (ValidationError is one) is not all: a text that is no UTF-8 raises what Python raises, and so do values
that are nested too deep."""
