from __future__ import annotations

import dataclasses
import datetime

import pytest

from tidegate.common import Configuration, Duration, RestartStrategies
from tidegate.common import restart_strategy as rs
from tidegate.common.errors import ConfigurationError
from tidegate.common.restart_strategy import restart_strategy_of

DEFAULT_EXPONENTIAL = rs.ExponentialDelayRestartStrategyConfiguration(1000, 60_000, 1.5, 3_600_000, 0.1, None)


def test_delays_are_milliseconds_from_any_length_of_time() -> None:
    wanted = rs.FixedDelayRestartStrategyConfiguration(3, 2000)
    for delay in (2000, Duration.of_seconds(2), datetime.timedelta(seconds=2)):
        assert RestartStrategies.fixed_delay_restart(3, delay) == wanted


def test_each_strategy_describes_itself() -> None:
    strategies = [
        RestartStrategies.no_restart(),
        RestartStrategies.fall_back_restart(),
        RestartStrategies.fixed_delay_restart(3, 10),
        RestartStrategies.failure_rate_restart(3, Duration.of_minutes(5), 10),
        RestartStrategies.exponential_delay_restart(10, 100, 2, 1000, 0.5),
        RestartStrategies.exponential_delay_restart(10, 100, 2, 1000, 0.5, 7),
    ]
    descriptions = [s.get_description() for s in strategies]
    assert len(set(descriptions)) == len(descriptions)
    assert all(d.endswith(".") for d in descriptions)
    assert "#7" in descriptions[-1]


def test_strategies_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RestartStrategies.fixed_delay_restart(3, 10).delay_ms = 5  # type: ignore[attr-defined]


def test_pyflinks_nested_names() -> None:
    assert isinstance(RestartStrategies.no_restart(), RestartStrategies.NoRestartStrategyConfiguration)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RestartStrategies.fixed_delay_restart(-1, 10),
        lambda: RestartStrategies.fixed_delay_restart(1.5, 10),  # type: ignore[arg-type]
        lambda: RestartStrategies.fixed_delay_restart(1, -10),
        lambda: RestartStrategies.failure_rate_restart(0, 10, 10),
        lambda: RestartStrategies.failure_rate_restart(1, 0, 10),
        lambda: RestartStrategies.exponential_delay_restart(0, 100, 2, 1000, 0.5),
        lambda: RestartStrategies.exponential_delay_restart(200, 100, 2, 1000, 0.5),
        lambda: RestartStrategies.exponential_delay_restart(10, 100, 0.5, 1000, 0.5),
        lambda: RestartStrategies.exponential_delay_restart(10, 100, 2, 0, 0.5),
        lambda: RestartStrategies.exponential_delay_restart(10, 100, 2, 1000, 1.5),
        lambda: RestartStrategies.exponential_delay_restart(10, 100, 2, 1000, 0.5, 0),
    ],
)
def test_wrong_values_are_refused(make: object) -> None:
    with pytest.raises(ConfigurationError):
        make()  # type: ignore[operator]


def test_the_default_depends_on_checkpointing() -> None:
    assert restart_strategy_of(Configuration(), checkpointing=False) == rs.NoRestartStrategyConfiguration()
    assert restart_strategy_of(Configuration(), checkpointing=True) == DEFAULT_EXPONENTIAL


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"restart-strategy": "off"}, rs.NoRestartStrategyConfiguration()),
        (
            {
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "3",
                "restart-strategy.fixed-delay.delay": "5 s",
            },
            rs.FixedDelayRestartStrategyConfiguration(3, 5000),
        ),
        (
            {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": 2,
                "restart-strategy.failure-rate.failure-rate-interval": "1 h",
                "restart-strategy.failure-rate.delay": "0 s",
            },
            rs.FailureRateRestartStrategyConfiguration(2, 3_600_000, 0),
        ),
        ({"restart-strategy.type": "exponential-delay"}, DEFAULT_EXPONENTIAL),
        (
            {
                "restart-strategy.type": "exponential-delay",
                "restart-strategy.exponential-delay.initial-backoff": "10 ms",
                "restart-strategy.exponential-delay.max-backoff": "1 s",
                "restart-strategy.exponential-delay.backoff-multiplier": "3",
                "restart-strategy.exponential-delay.reset-backoff-threshold": "1 min",
                "restart-strategy.exponential-delay.jitter-factor": "0",
                "restart-strategy.exponential-delay.attempts-before-reset-backoff": "4",
            },
            rs.ExponentialDelayRestartStrategyConfiguration(10, 1000, 3.0, 60_000, 0.0, 4),
        ),
    ],
)
def test_strategies_from_the_configuration(settings: dict[str, object], wanted: object) -> None:
    assert restart_strategy_of(Configuration.from_dict(settings), checkpointing=True) == wanted
