"""Watermark strategies: where timestamps come from and how far behind them the watermark runs."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import TimeLike, as_milliseconds

_BEFORE_ALL = -(2**63)


class TimestampAssigner(abc.ABC):
    """Takes the event time of a record out of it."""

    @abc.abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Milliseconds since the epoch. `record_timestamp` is what the source gave it, or a negative number."""


class _CallableTimestampAssigner(TimestampAssigner):
    def __init__(self, function: Callable[[Any, int], int]) -> None:
        self.function = function

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return self.function(value, record_timestamp)


class WatermarkOutput(Protocol):
    """Where a generator sends its watermarks. One that is not higher than the last is ignored."""

    def emit_watermark(self, timestamp: int) -> None: ...

    def mark_idle(self) -> None: ...

    def mark_active(self) -> None: ...


class WatermarkGenerator(abc.ABC):
    """Makes watermarks, for one subtask or source split. A new one is made after a restart."""

    @abc.abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Called for every record, after its timestamp was assigned."""

    @abc.abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called every `pipeline.auto-watermark-interval`."""


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """The highest timestamp so far, less the bound, less 1."""

    def __init__(self, out_of_orderness_ms: int) -> None:
        self._delay = out_of_orderness_ms + 1
        self.max_timestamp: int | None = None

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if self.max_timestamp is None or event_timestamp > self.max_timestamp:
            self.max_timestamp = event_timestamp

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if self.max_timestamp is not None:
            output.emit_watermark(max(self.max_timestamp - self._delay, _BEFORE_ALL))


class NoWatermarksGenerator(WatermarkGenerator):
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        pass

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


class WatermarkKind(enum.Enum):
    """Who makes the watermarks of a strategy."""

    NONE = "none"
    BOUNDED_OUT_OF_ORDERNESS = "bounded out of orderness"  # monotonous timestamps are a bound of 0
    CUSTOM = "custom"


@dataclass(frozen=True)
class AlignmentGroup:
    """The sources of one group wait for each other: one whose watermark is more than `max_drift_ms` ahead of the
    lowest stops reading."""

    group: str
    max_drift_ms: int
    update_interval_ms: int


@dataclass(frozen=True)
class WatermarkStrategy:
    """Timestamps and watermarks of a stream. Immutable: every `with_*` method returns a new one."""

    kind: WatermarkKind
    out_of_orderness_ms: int = 0  # only BOUNDED_OUT_OF_ORDERNESS
    generator_factory: Callable[[], WatermarkGenerator] | None = None  # only CUSTOM
    timestamp_assigner: TimestampAssigner | None = None  # None: the source's own timestamps
    idleness_ms: int | None = None
    alignment: AlignmentGroup | None = None

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Timestamps only ever grow (per source split)."""
        return WatermarkStrategy(WatermarkKind.BOUNDED_OUT_OF_ORDERNESS)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: TimeLike) -> WatermarkStrategy:
        """A record is at most so much older than the newest before it."""
        return WatermarkStrategy(
            WatermarkKind.BOUNDED_OUT_OF_ORDERNESS,
            out_of_orderness_ms=as_milliseconds(max_out_of_orderness, "max_out_of_orderness"),
        )

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        return WatermarkStrategy(WatermarkKind.NONE)

    @staticmethod
    def for_generator(factory: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Watermarks of your own: `factory` makes a generator per subtask and must be picklable (a class is)."""
        if not callable(factory):
            raise ConfigurationError(f"for_generator takes a callable that makes a generator, got {factory!r}.")
        return WatermarkStrategy(WatermarkKind.CUSTOM, generator_factory=factory)

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner | Callable[[Any, int], int]
    ) -> WatermarkStrategy:
        """Take timestamps out of the records with a TimestampAssigner, or a callable (value, record_timestamp)."""
        if TimestampAssigner in getattr(timestamp_assigner, "__mro__", ()):
            name = getattr(timestamp_assigner, "__qualname__", "")
            raise ConfigurationError(
                f"with_timestamp_assigner got the class {name} itself; pass an instance: {name}()."
            )
        if not isinstance(timestamp_assigner, TimestampAssigner):
            if not callable(timestamp_assigner):
                raise ConfigurationError(
                    f"with_timestamp_assigner takes a TimestampAssigner or a callable, got {timestamp_assigner!r}."
                )
            timestamp_assigner = _CallableTimestampAssigner(timestamp_assigner)
        return replace(self, timestamp_assigner=timestamp_assigner)

    def with_idleness(self, idle_timeout: TimeLike) -> WatermarkStrategy:
        """A source without records for so long no longer holds the watermark back."""
        idleness = as_milliseconds(idle_timeout, "idle_timeout")
        if idleness == 0:
            raise ConfigurationError("idle_timeout must be more than 0.")
        return replace(self, idleness_ms=idleness)

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: TimeLike, update_interval: TimeLike | None = None
    ) -> WatermarkStrategy:
        """Sources of one group wait for each other, so that none runs ahead by more than the drift. They compare every
        `update_interval`, by default once a second."""
        interval = 1000 if update_interval is None else as_milliseconds(update_interval, "update_interval")
        if interval == 0:
            raise ConfigurationError("update_interval of a watermark alignment must be more than 0.")
        drift = as_milliseconds(max_allowed_watermark_drift, "max_allowed_watermark_drift")
        return replace(self, alignment=AlignmentGroup(watermark_group, drift, interval))

    @property
    def timestamp_function(self) -> Callable[[Any, int], int] | None:
        """What gives a record its timestamp, as a plain callable; None without an assigner."""
        assigner = self.timestamp_assigner
        if isinstance(assigner, _CallableTimestampAssigner):
            return assigner.function
        return None if assigner is None else assigner.extract_timestamp

    def create_generator(self) -> WatermarkGenerator:
        """A new generator; called once per subtask and start."""
        if self.kind is WatermarkKind.BOUNDED_OUT_OF_ORDERNESS:
            return BoundedOutOfOrdernessWatermarks(self.out_of_orderness_ms)
        if self.generator_factory is not None:
            return self.generator_factory()
        return NoWatermarksGenerator()


class AssignerWithPeriodicWatermarksWrapper:
    """An assigner in the old style, one object with `extract_timestamp(value, record_timestamp)` and
    `get_current_watermark()` (None: no watermark yet). `to_watermark_strategy` gives the strategy for it.

    The assigner must be picklable; each subtask works on a copy of its own.
    """

    def __init__(self, assigner: Any) -> None:
        for method in ("extract_timestamp", "get_current_watermark"):
            if not callable(getattr(assigner, method, None)):
                raise ConfigurationError(f"An assigner with periodic watermarks needs a method {method}: {assigner!r}.")
        self.assigner = assigner

    def to_watermark_strategy(self) -> WatermarkStrategy:
        adapter = _PeriodicAssigner(self.assigner)
        return WatermarkStrategy(
            WatermarkKind.CUSTOM, generator_factory=adapter.as_generator, timestamp_assigner=adapter
        )


class _PeriodicAssigner(TimestampAssigner, WatermarkGenerator):
    # One object in both roles: the bound method and the assigner stay the same object when they are pickled together.
    def __init__(self, assigner: Any) -> None:
        self._assigner = assigner

    def as_generator(self) -> WatermarkGenerator:
        return self

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(self._assigner.extract_timestamp(value, record_timestamp))

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        pass

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        watermark = self._assigner.get_current_watermark()
        if watermark is not None:
            output.emit_watermark(int(watermark))
