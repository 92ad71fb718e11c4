"""The order in which the results of overlapping calls are emitted. No I/O.

Records and marks (watermarks, idleness) are added as they come; `take` hands out, in the order in which they are to be
emitted, what can be emitted now.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tidegate.common.errors import InternalError


@dataclass(eq=False)
class Call:
    """One record and what became of its call."""

    value: Any
    timestamp: int | None
    results: list[Any] | None = None  # None: not finished
    tries: int = 0  # so far, the one under way included
    generation: int = 0  # grows when the call is tried again or given up: what comes of an older one is dropped
    segment: Segment | None = None  # only UnorderedResults


@dataclass(frozen=True)
class Mark:
    """A watermark (`watermark`) or a change of idleness (`idle`)."""

    watermark: int | None = None
    idle: bool | None = None


@dataclass(eq=False)
class Segment:
    """The calls between two marks."""

    waiting: dict[int, Call] = field(default_factory=dict)  # id of the call -> call, in the order of their coming
    ready: list[Call] = field(default_factory=list)  # in the order of their finishing
    end: Mark | None = None  # None: the last segment, still open


class Results(abc.ABC):
    """What has come and was not emitted yet."""

    def __init__(self) -> None:
        self.calls = 0  # not emitted yet

    @abc.abstractmethod
    def add(self, call: Call) -> None: ...

    @abc.abstractmethod
    def add_mark(self, mark: Mark) -> None: ...

    @abc.abstractmethod
    def finished(self, call: Call) -> None:
        """`call.results` was set."""

    @property
    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether `take` would give something."""

    @abc.abstractmethod
    def take(self) -> Iterator[Call | Mark]: ...

    @abc.abstractmethod
    def pending(self) -> Iterator[Call | Mark]:
        """Everything that is not emitted yet, in the order in which it came, as far as that matters."""

    @property
    @abc.abstractmethod
    def empty(self) -> bool: ...


class OrderedResults(Results):
    """In the order of the records, everything."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Call | Mark] = deque()

    def add(self, call: Call) -> None:
        self.calls += 1
        self._queue.append(call)

    def add_mark(self, mark: Mark) -> None:
        self._queue.append(mark)

    def finished(self, call: Call) -> None:
        pass

    @property
    def ready(self) -> bool:
        if not self._queue:
            return False
        head = self._queue[0]
        return isinstance(head, Mark) or head.results is not None

    def take(self) -> Iterator[Call | Mark]:
        while self.ready:
            head = self._queue.popleft()
            self.calls -= isinstance(head, Call)
            yield head

    def pending(self) -> Iterator[Call | Mark]:
        return iter(self._queue)

    @property
    def empty(self) -> bool:
        return not self._queue


class UnorderedResults(Results):
    """As the calls finish, but never across a mark."""

    def __init__(self) -> None:
        super().__init__()
        self._segments: deque[Segment] = deque([Segment()])

    def add(self, call: Call) -> None:
        self.calls += 1
        call.segment = self._segments[-1]
        call.segment.waiting[id(call)] = call

    def add_mark(self, mark: Mark) -> None:
        self._segments[-1].end = mark
        self._segments.append(Segment())

    def finished(self, call: Call) -> None:
        if call.segment is None:
            raise InternalError("a call has finished that was never added")
        del call.segment.waiting[id(call)]
        call.segment.ready.append(call)

    @property
    def ready(self) -> bool:
        first = self._segments[0]
        return bool(first.ready) or (first.end is not None and not first.waiting)

    def take(self) -> Iterator[Call | Mark]:
        while self.ready:
            first = self._segments[0]
            ready, first.ready = first.ready, []
            self.calls -= len(ready)
            yield from ready
            if first.end is not None and not first.waiting:
                self._segments.popleft()
                yield first.end

    def pending(self) -> Iterator[Call | Mark]:
        for segment in self._segments:
            yield from segment.ready
            yield from segment.waiting.values()
            if segment.end is not None:
                yield segment.end

    @property
    def empty(self) -> bool:
        first = self._segments[0]
        return first.end is None and not first.waiting and not first.ready
