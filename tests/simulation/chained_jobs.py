"""Random jobs of long chains, in which records are often left waiting between operators. Batches are larger than those
of other jobs, so that much is left."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.random_job import JobBuilder, _Stream
from tidegate.common import Time, options


class ChainedJobBuilder(JobBuilder):
    often_cut = True

    def __init__(self, rng: random.Random, size: int = 3, max_parallelism: int = 3) -> None:
        super().__init__(rng, size, max_parallelism)
        self._env._set(options.OPERATOR_CHAINING, True)
        self._groups = False

    def _exchange(self, s: _Stream, broadcast: bool = True) -> _Stream:
        return super()._exchange(s, broadcast) if self._rng.random() < 0.15 else s

    def _map(self, s: _Stream) -> _Stream:
        s = super()._map(s)
        return self._in_batches(s) if self._rng.random() < 0.3 else super()._map(s)

    def _in_batches(self, s: _Stream) -> _Stream:
        """Holds records back until there are enough, and hands them over before a barrier."""
        size = self._rng.randint(1, 7)
        return self._after(s, s.stream.map_batches(_same, size, Time.milliseconds(2)), "batches")

    def _sink(self, s: _Stream) -> None:
        super()._sink(self._map(s))


def _same(values: list[Any]) -> list[Any]:
    return values
