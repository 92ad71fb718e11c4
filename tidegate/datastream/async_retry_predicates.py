"""Ready-made predicates for retry strategies: is this result, or this error, a reason to call again?"""

from __future__ import annotations

from typing import Any


def empty_result_predicate(result: list[Any] | None) -> bool:
    """Call again when nothing came back."""
    return not result


def has_exception_predicate(error: BaseException | None) -> bool:
    """Call again after any error."""
    return error is not None


def exception_type_predicate(
    error: BaseException | None, expected_error_type: type[BaseException] | tuple[type[BaseException], ...]
) -> bool:
    """Call again after errors of one type; `functools.partial` gives it the type."""
    return isinstance(error, expected_error_type)
