"""Texts of users on their way through the system: always encodable, never without bound.

An exception's message may be anything: half of a surrogate pair, or fifty megabytes.
"""

from __future__ import annotations

from typing import Any

_LEFT_OUT = "\n… [{:,} characters are left out here; the worker's log has them] …\n"


def encodable(text: str) -> str:
    """The text as it is when UTF-8 can say it; otherwise with what it cannot say as escapes (`\\ud800`)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def all_encodable(value: Any) -> Any:
    """Dicts, lists and tuples, as deep as they are, with every text in them `encodable`; other values as they are."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {all_encodable(k): all_encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [all_encodable(v) for v in value]
    return value


def bounded(text: str, limit: int) -> str:
    """At most `limit` characters (of at least 200): a longer text keeps its beginning and its end, and says how much is
    missing in between."""
    if len(text) <= limit:
        return text
    kept = limit - len(_LEFT_OUT.format(len(text)))
    head = kept // 2
    return text[:head] + _LEFT_OUT.format(len(text) - kept) + text[len(text) - (kept - head) :]
