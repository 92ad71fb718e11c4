"""Removing expired entries that nobody reads any more.

Flink's strategies, and what they are here:

- *incremental clean-up* (heap): after each batch of records, `cleanup_size` entries are looked at for each access to
  the state in that batch (with "for every record" at least that many per batch). The sweep goes round and round.
- *RocksDB compaction filter*: there is no filter of ours inside RocksDB, so the RocksDB backend sweeps its files in the
  same way, one stored record for each access, at most `query_time_after_num_entries` per batch. RocksDB then drops the
  bytes when it compacts. The time of periodic compaction has no meaning here.
- *full snapshot* (heap): a full snapshot leaves expired entries out; the working state keeps them.

The first two are on unless clean-up in the background is disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.contracts.state import StateTtlConfig

if TYPE_CHECKING:
    from tidegate.state.named_states import Table
    from tidegate.state.ttl import TtlState

MAX_PER_BATCH = 10_000
"""The most entries that one sweep looks at, whatever the settings: a batch must not wait long for it."""

_KEYS_AHEAD = 65_536


class Sweep:
    def __init__(
        self,
        table: Table,
        state: TtlState,
        ttl_ms: int,
        clock: Callable[[], float],
        per_access: int,
        at_least: int,
        at_most: int,
    ) -> None:
        self._table = table
        self._state = state
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._per_access = per_access
        self._at_least = at_least
        self._at_most = min(at_most, MAX_PER_BATCH)

    def run(self) -> None:
        budget = min(max(self._state.accesses * self._per_access, self._at_least), self._at_most)
        self._state.accesses = 0
        if budget:
            limit = self._clock() - self._ttl_ms
            self._table.drop_expired(budget, lambda pair: pair[1] <= limit)


def make_sweep(
    table: Table, state: TtlState, config: StateTtlConfig, clock: Callable[[], float], by_compaction: bool
) -> Sweep | None:
    strategies = config.get_cleanup_strategies()
    if by_compaction:
        filtering = strategies.get_rocksdb_compact_filter_cleanup_strategy()
        if filtering is None:
            return None
        at_most = filtering.get_query_time_after_num_entries()
        return Sweep(table, state, config.ttl_ms, clock, 1, 0, at_most)
    incremental = strategies.get_incremental_cleanup_strategy()
    if incremental is None:
        return None
    size = incremental.get_cleanup_size()
    at_least = size if incremental.run_cleanup_for_every_record() else 0
    return Sweep(table, state, config.ttl_ms, clock, size, at_least, MAX_PER_BATCH)


def without_expired(kind: str, stored: Any, expired: Callable[[Any], bool]) -> Any:
    """What is left of an entry: the same object when nothing has expired, None when everything has."""
    if kind == "list":
        live = [pair for pair in stored if not expired(pair)]
        return stored if len(live) == len(stored) else live or None
    if kind == "map":
        kept = {key: pair for key, pair in stored.items() if not expired(pair)}
        return stored if len(kept) == len(stored) else kept or None
    return None if expired(stored) else stored


class KeyRounds:
    """Goes round the keys of dicts that change meanwhile, some at a time. Keys are taken ahead in portions, so that a
    key costs about the same however large the dicts are; a key may be met twice or late, none is left out forever."""

    def __init__(self, keys: Callable[[], Iterator[Any]]) -> None:
        self._keys = keys
        self._ahead: list[Any] = []
        self._position = 0

    def begin_at(self, position: int) -> None:
        """For rounds that go on where others of the same keys have been, which are gone. Position 0 is the beginning,
        and where those go on that begin behind the last key."""
        self._ahead, self._position = [], position

    def take(self, count: int) -> list[Any]:
        if not self._ahead:
            self._ahead = list(islice(self._keys(), self._position, self._position + _KEYS_AHEAD))
            if not self._ahead and self._position:  # there are fewer keys now
                self._position = 0
                self._ahead = list(islice(self._keys(), _KEYS_AHEAD))
            self._ahead.reverse()
            self._position = self._position + len(self._ahead) if len(self._ahead) == _KEYS_AHEAD else 0
        taken = self._ahead[-count:]
        del self._ahead[-count:]
        return taken
