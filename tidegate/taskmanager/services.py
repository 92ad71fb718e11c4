"""What a task and its operators may ask from whoever runs them: a slot of a streaming job, or a batch task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.protocol.messages import Message
from tidegate.taskmanager.clock import Clock
from tidegate.taskmanager.result_port import ResultPort
from tidegate.taskmanager.time_limit import TimeLimit

Done = Callable[[Any, BaseException | None], None]
"""Called with the outcome of work that was done elsewhere (result, error), on the thread of the task."""


@dataclass(frozen=True)
class OperatorServices:
    """For the operators."""

    clock: Clock
    run_async: Callable[[Callable[[], Any], Done], None]
    """Takes work for a helper thread."""
    run_coroutine: Callable[[Callable[[], Awaitable[Any]], Done], Callable[[], None]]
    """Takes what makes a coroutine, which is awaited elsewhere with as many others as there are. Returns what cancels
    it: `done` may still be called then, or not."""
    results: ResultPort
    """Takes the results of `execute_and_collect`."""
    post: Callable[[Callable[[], None]], None] | None
    """Calls something on the thread of the task, soon. From any thread. None: that thread waits for nobody."""
    warn: Callable[[str], None]
    """Tells whoever watches the job of something that goes wrong and may still end well. From any thread."""
    limit: TimeLimit = field(default_factory=TimeLimit, kw_only=True)
    """How long a piece of work may take; nobody looks at it where there is nothing to keep waiting."""


@dataclass(frozen=True)
class TaskServices(OperatorServices):
    """For a task of a streaming job and its operators."""

    send: Callable[[Message], None]
    """Sends a control message to the JobManager."""
