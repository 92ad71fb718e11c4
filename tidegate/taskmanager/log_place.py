"""Which operator is at work, for its lines in the log.

Nothing notes that while records are processed: it would cost every record something. It is found out when a line is
logged, by going up the stack to the nearest operator. A coroutine has none above it: it carries the operator that
started it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import FrameType

from tidegate.taskmanager.operator_context import OperatorContext

_MAX_FRAMES = 200  # a recursion of the user's may be deeper: then the line is of no operator

_started_by: ContextVar[OperatorContext | None] = ContextVar("tidegate_started_by", default=None)


@contextlib.contextmanager
def starting_for(operator: OperatorContext) -> Iterator[None]:
    """Coroutines that are handed to the event loop within it belong to the operator."""
    token = _started_by.set(operator)
    try:
        yield
    finally:
        _started_by.reset(token)


def operator_at_work() -> OperatorContext | None:
    """Of this thread; None when no operator is."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            context = getattr(frame.f_locals.get("self"), "context", None)
            if isinstance(context, OperatorContext):
                return context
        frame = frame.f_back
    return _started_by.get()
