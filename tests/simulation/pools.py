"""What the scheduler picks from, and the lives of what it picks."""

from __future__ import annotations

import enum
import random
from collections import deque
from collections.abc import Callable
from typing import Any


class Life(enum.Enum):
    STARTING = "starting"  # Spark has not started it yet
    ALIVE = "alive"
    LEFT = "left"  # by itself, after Leave
    DEAD = "dead"  # killed


class Pool:
    """A set of things that could happen next, with a uniform pick in constant time. Never picks what is frozen."""

    def __init__(self) -> None:
        self.items: list[Any] = []  # to be looked at only
        self._places: dict[int, int] = {}  # id of the item -> its place in items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Any:
        return iter(self.items)

    def add(self, item: Any) -> None:
        if id(item) not in self._places:
            self._places[id(item)] = len(self.items)
            self.items.append(item)

    def discard(self, item: Any) -> None:
        place = self._places.pop(id(item), None)
        if place is None:
            return
        last = self.items.pop()
        if last is not item:
            self.items[place] = last
            self._places[id(last)] = place

    def clear(self) -> None:
        self.items.clear()
        self._places.clear()

    def pick(self, rng: random.Random) -> Any:
        return self.items[int(rng.random() * len(self.items))]


class Event:
    """Something that happens once, at some later moment."""

    def __init__(self, what: str, happen: Callable[[], None]) -> None:
        self.what = what
        self.happen = happen
        self.slowness = 0.0


class Link:
    """An ordered queue between two parties. In `pool` while it holds anything and its receiver is not frozen.

    `slowness` is the probability that a pick of this link is passed over: some links are slow for a whole run."""

    def __init__(self, name: str, pool: Pool, deliver: Callable[[Any], None], slowness: float = 0.0) -> None:
        self.name = name
        self.queue: deque[Any] = deque()
        self.slowness = slowness
        self.dead = False  # takes nothing more
        self._pool = pool
        self._deliver = deliver
        self._frozen = False

    def push(self, item: Any) -> None:
        if not self.dead:
            self.queue.append(item)
            if not self._frozen:
                self._pool.add(self)

    def pop_and_deliver(self) -> Any:
        item = self.queue.popleft()
        if not self.queue:
            self._pool.discard(self)
        self._deliver(item)
        return item

    def cut(self, keep: int) -> None:
        """The sender is gone: only the first elements arrive."""
        self.dead = True
        while len(self.queue) > keep:
            self.queue.pop()
        if not self.queue:
            self._pool.discard(self)

    def freeze(self, frozen: bool) -> None:
        self._frozen = frozen
        if frozen or not self.queue:
            self._pool.discard(self)
        else:
            self._pool.add(self)
