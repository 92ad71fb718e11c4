from __future__ import annotations

import datetime
import pickle

import pytest

from tidegate.common import Duration, Instant, Time
from tidegate.common.errors import ConfigurationError
from tidegate.common.time import as_milliseconds


def test_durations() -> None:
    assert Duration.of_days(1) == Duration.of_hours(24) == Duration.of_minutes(1440) == Duration.of_seconds(86_400)
    assert Duration.of_millis(5) == Duration.of_nanos(5_000_000)
    assert Duration.of_seconds(1).to_milliseconds() == 1000
    assert Duration.of_nanos(1_999_999).to_milliseconds() == 1
    assert Duration.of_seconds(1, 5).to_nanos() == 1_000_000_005
    assert Duration.of_millis(1) < Duration.of_seconds(1)
    assert Duration.of_seconds(2).to_timedelta() == datetime.timedelta(seconds=2)
    assert [repr(d) for d in (Duration.of_nanos(1), Duration.of_millis(1), Duration.of_minutes(1))] == [
        "Duration.of_nanos(1)",
        "Duration.of_millis(1)",
        "Duration.of_seconds(60)",
    ]


def test_instants() -> None:
    assert Instant.of_epoch_milli(1500) == Instant(1, 500_000_000)
    assert Instant.of_epoch_milli(-1).to_epoch_milli() == -1
    assert Instant(1) < Instant(1, 1) < Instant(2)
    assert repr(Instant(1, 2)) == "Instant<1, 2>"
    with pytest.raises(ValueError, match="nanoseconds"):
        Instant(0, 1_000_000_000)


def test_times() -> None:
    assert Time.days(1) == Time.hours(24) == Time.minutes(1440) == Time.seconds(86_400) == Time.milliseconds(86_400_000)
    assert Time.seconds(2).to_milliseconds() == 2000
    assert Time.seconds(1) < Time.seconds(2)
    assert repr(Time.seconds(1)) == "Time.milliseconds(1000)"


def test_all_are_hashable_and_picklable() -> None:
    for value in (Duration.of_millis(1), Instant(1, 2), Time.seconds(1)):
        assert pickle.loads(pickle.dumps(value)) == value
        assert len({value, pickle.loads(pickle.dumps(value))}) == 1


def test_as_milliseconds() -> None:
    values = [5, Duration.of_millis(5), Time.milliseconds(5), datetime.timedelta(milliseconds=5)]
    assert [as_milliseconds(v, "x") for v in values] == [5] * 4
    for wrong in ("5 s", 1.5, True, None):
        with pytest.raises(ConfigurationError, match="the delay must be a number of milliseconds"):
            as_milliseconds(wrong, "the delay")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must not be negative"):
        as_milliseconds(-1, "the delay")
