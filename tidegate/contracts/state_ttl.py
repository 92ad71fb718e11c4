"""Time to live of keyed state; `StateTtlConfig` is exported by `tidegate.contracts.state`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import Duration, as_milliseconds

_DEFAULT_COMPACTION_DAYS = 30


class StateTtlConfig:
    """When entries of a state expire, and what is done with expired ones. Make it with `new_builder`."""

    class UpdateType(enum.Enum):
        """What starts an entry's time anew."""

        Disabled = 0  # no time to live at all
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(enum.Enum):
        """What is read of an entry that has expired."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(enum.Enum):
        ProcessingTime = 0

    def __init__(
        self,
        update_type: StateTtlConfig.UpdateType,
        state_visibility: StateTtlConfig.StateVisibility,
        ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic,
        ttl: Any,
        cleanup_strategies: StateTtlConfig.CleanupStrategies,
    ) -> None:
        self._update_type = update_type
        self._state_visibility = state_visibility
        self._ttl_time_characteristic = ttl_time_characteristic
        self._ttl = ttl
        self._ttl_ms = _milliseconds(ttl)
        self._cleanup_strategies = cleanup_strategies

    @staticmethod
    def new_builder(ttl: Any) -> StateTtlConfig.Builder:
        """`ttl` is a `Time` (or `Duration`, `datetime.timedelta`) greater than zero."""
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        return self._update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        return self._state_visibility

    def get_ttl(self) -> Any:
        """The time to live as it was given."""
        return self._ttl

    @property
    def ttl_ms(self) -> int:
        return self._ttl_ms

    def get_ttl_time_characteristic(self) -> StateTtlConfig.TtlTimeCharacteristic:
        return self._ttl_time_characteristic

    def is_enabled(self) -> bool:
        return self._update_type is not StateTtlConfig.UpdateType.Disabled

    def get_cleanup_strategies(self) -> StateTtlConfig.CleanupStrategies:
        return self._cleanup_strategies

    def __repr__(self) -> str:
        return f"StateTtlConfig({self._ttl_ms} ms, {self._update_type.name}, {self._state_visibility.name})"

    class Builder:
        """Each method returns the builder itself; `build` may be called several times."""

        def __init__(self, ttl: Any) -> None:
            _milliseconds(ttl)
            self._ttl = ttl
            self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
            self._state_visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
            self._ttl_time_characteristic = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
            self._is_cleanup_in_background = True
            self._strategies: dict[
                StateTtlConfig.CleanupStrategies.Strategies, StateTtlConfig.CleanupStrategies.CleanupStrategy
            ] = {}

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            self._update_type = _checked(update_type, StateTtlConfig.UpdateType, "set_update_type")
            return self

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            self._state_visibility = _checked(state_visibility, StateTtlConfig.StateVisibility, "set_state_visibility")
            return self

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            self._ttl_time_characteristic = _checked(
                ttl_time_characteristic, StateTtlConfig.TtlTimeCharacteristic, "set_ttl_time_characteristic"
            )
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Leave expired entries out of full snapshots."""
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.FULL_STATE_SCAN_SNAPSHOT] = strategies.EmptyCleanupStrategy()
            return self

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool
        ) -> StateTtlConfig.Builder:
            """Look at `cleanup_size` entries at each state access (and each record, when asked)."""
            _check_positive("cleanup_incrementally(cleanup_size)", cleanup_size)
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.INCREMENTAL_CLEANUP] = strategies.IncrementalCleanupStrategy(
                cleanup_size, run_cleanup_for_every_record
            )
            return self

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int = 1000, periodic_compaction_time: Any = None
        ) -> StateTtlConfig.Builder:
            """Drop expired entries when RocksDB compacts its files."""
            what = "cleanup_in_rocksdb_compact_filter(query_time_after_num_entries)"
            _check_positive(what, query_time_after_num_entries)
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.ROCKSDB_COMPACTION_FILTER] = (
                strategies.RocksdbCompactFilterCleanupStrategy(
                    query_time_after_num_entries,
                    _DEFAULT_COMPACTION_DAYS * 86_400_000
                    if periodic_compaction_time is None
                    else _milliseconds(periodic_compaction_time),
                )
            )
            return self

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            self._is_cleanup_in_background = False
            return self

        def set_ttl(self, ttl: Any) -> StateTtlConfig.Builder:
            _milliseconds(ttl)
            self._ttl = ttl
            return self

        def build(self) -> StateTtlConfig:
            return StateTtlConfig(
                self._update_type,
                self._state_visibility,
                self._ttl_time_characteristic,
                self._ttl,
                StateTtlConfig.CleanupStrategies(dict(self._strategies), self._is_cleanup_in_background),
            )

    @dataclass(frozen=True)
    class CleanupStrategies:
        """How expired entries are removed besides on access."""

        class Strategies(enum.Enum):
            FULL_STATE_SCAN_SNAPSHOT = 0
            INCREMENTAL_CLEANUP = 1
            ROCKSDB_COMPACTION_FILTER = 2

        class CleanupStrategy:
            """Base of the strategies."""

        class EmptyCleanupStrategy(CleanupStrategy):
            """A strategy without settings."""

        @dataclass(frozen=True)
        class IncrementalCleanupStrategy(CleanupStrategy):
            cleanup_size: int
            every_record: bool

            def get_cleanup_size(self) -> int:
                return self.cleanup_size

            def run_cleanup_for_every_record(self) -> bool:
                return self.every_record

        @dataclass(frozen=True)
        class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
            query_time_after_num_entries: int
            periodic_compaction_time_ms: int

            def get_query_time_after_num_entries(self) -> int:
                return self.query_time_after_num_entries

            def get_periodic_compaction_time(self) -> Duration:
                return Duration.of_millis(self.periodic_compaction_time_ms)

        strategies: dict[StateTtlConfig.CleanupStrategies.Strategies, Any] = field(default_factory=dict)
        cleanup_in_background: bool = True

        def is_cleanup_in_background(self) -> bool:
            return self.cleanup_in_background

        def in_full_snapshot(self) -> bool:
            return self.Strategies.FULL_STATE_SCAN_SNAPSHOT in self.strategies

        def get_incremental_cleanup_strategy(
            self,
        ) -> StateTtlConfig.CleanupStrategies.IncrementalCleanupStrategy | None:
            """The chosen one; with cleaning in the background a default of 5 entries per access."""
            chosen: StateTtlConfig.CleanupStrategies.IncrementalCleanupStrategy | None = self.strategies.get(
                self.Strategies.INCREMENTAL_CLEANUP
            )
            if chosen is None and self.cleanup_in_background:
                return self.IncrementalCleanupStrategy(5, False)
            return chosen

        def get_rocksdb_compact_filter_cleanup_strategy(
            self,
        ) -> StateTtlConfig.CleanupStrategies.RocksdbCompactFilterCleanupStrategy | None:
            """The chosen one; with cleaning in the background a default of 1000 entries."""
            chosen: StateTtlConfig.CleanupStrategies.RocksdbCompactFilterCleanupStrategy | None = self.strategies.get(
                self.Strategies.ROCKSDB_COMPACTION_FILTER
            )
            if chosen is None and self.cleanup_in_background:
                return self.RocksdbCompactFilterCleanupStrategy(1000, _DEFAULT_COMPACTION_DAYS * 86_400_000)
            return chosen


def _checked(value: Any, kind: type, method: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"StateTtlConfig builder, {method}: expected a {kind.__qualname__}, got {value!r}")
    return value


def _check_positive(what: str, value: int) -> None:
    if value <= 0:
        raise ConfigurationError(f"StateTtlConfig builder, {what} has to be greater than 0, got {value}")


def _milliseconds(ttl: Any) -> int:
    ms = as_milliseconds(ttl, "StateTtlConfig: the time to live")
    if ms <= 0:
        raise ConfigurationError(f"StateTtlConfig: the time to live has to be greater than 0, got {ms} ms")
    return ms
