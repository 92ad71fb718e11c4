"""Lengths of time and points in time."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from tidegate.common.errors import ConfigurationError


@dataclass(frozen=True, order=True, slots=True, repr=False)
class Duration:
    """A length of time, exact to the nanosecond. Made with the `of_*` methods."""

    nanos: int

    @classmethod
    def of_days(cls, days: int) -> Duration:
        return cls.of_hours(24 * days)

    @classmethod
    def of_hours(cls, hours: int) -> Duration:
        return cls.of_minutes(60 * hours)

    @classmethod
    def of_minutes(cls, minutes: int) -> Duration:
        return cls.of_seconds(60 * minutes)

    @classmethod
    def of_seconds(cls, seconds: int, nano_adjustment: int = 0) -> Duration:
        return cls(int(seconds * 1_000_000_000) + nano_adjustment)

    @classmethod
    def of_millis(cls, millis: int) -> Duration:
        return cls(int(millis * 1_000_000))

    @classmethod
    def of_nanos(cls, nanos: int) -> Duration:
        return cls(int(nanos))

    def to_milliseconds(self) -> int:
        """The duration in whole milliseconds; the rest is dropped."""
        return self.nanos // 1_000_000

    def to_nanos(self) -> int:
        return self.nanos

    def to_timedelta(self) -> datetime.timedelta:
        return datetime.timedelta(microseconds=self.nanos // 1000)

    def __repr__(self) -> str:
        if self.nanos % 1_000_000:
            return f"Duration.of_nanos({self.nanos})"
        if self.nanos % 1_000_000_000:
            return f"Duration.of_millis({self.nanos // 1_000_000})"
        return f"Duration.of_seconds({self.nanos // 1_000_000_000})"


@dataclass(frozen=True, order=True, slots=True, repr=False)
class Instant:
    """A point on the time line: seconds since 1970-01-01T00:00:00Z, and nanoseconds within that second."""

    seconds: int
    nanos: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.nanos < 1_000_000_000:
            raise ValueError(f"The nanoseconds of an Instant are 0 to 999,999,999, got {self.nanos}.")

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        seconds, millis = divmod(epoch_milli, 1000)
        return Instant(seconds, millis * 1_000_000)

    def to_epoch_milli(self) -> int:
        return self.seconds * 1000 + self.nanos // 1_000_000

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"


@dataclass(frozen=True, order=True, slots=True, repr=False)
class Time:
    """A length of time in milliseconds, as windows and state TTL take it. Made with `milliseconds`, `seconds`, ..."""

    millis: int

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        return Time(int(milliseconds))

    @staticmethod
    def seconds(seconds: int) -> Time:
        return Time.milliseconds(seconds * 1000)

    @staticmethod
    def minutes(minutes: int) -> Time:
        return Time.seconds(minutes * 60)

    @staticmethod
    def hours(hours: int) -> Time:
        return Time.minutes(hours * 60)

    @staticmethod
    def days(days: int) -> Time:
        return Time.hours(days * 24)

    def to_milliseconds(self) -> int:
        return self.millis

    def __repr__(self) -> str:
        return f"Time.milliseconds({self.millis})"


TimeLike = int | Duration | Time | datetime.timedelta
"""What our methods take for a length of time; an int is milliseconds."""


def as_milliseconds(value: TimeLike, what: str) -> int:
    """`value` in whole milliseconds. A wrong or negative one is refused with `what` as the setting's name."""
    if isinstance(value, Duration | Time):
        millis = value.to_milliseconds()
    elif isinstance(value, datetime.timedelta):
        millis = value // datetime.timedelta(milliseconds=1)
    elif isinstance(value, int) and not isinstance(value, bool):
        millis = value
    else:
        raise ConfigurationError(
            f"{what} must be a number of milliseconds (int), a Duration, a Time or a timedelta, got {value!r}."
        )
    if millis < 0:
        raise ConfigurationError(f"{what} must not be negative, got {value!r}.")
    return millis
