from __future__ import annotations

import random

import pytest

from tidegate.common.configuration import Configuration
from tidegate.common.errors import InternalError
from tidegate.common.restart_strategy import RestartStrategies, restart_strategy_of
from tidegate.jobmanager.restart_strategies import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    GiveUp,
    NoRestart,
    RestartAfter,
    make_restart_strategy,
)


def exponential(jitter: float = 0.0, attempts: int | None = None) -> ExponentialDelay:
    return ExponentialDelay(1_000, 10_000, 2.0, 60_000, jitter, random.Random(1), attempts)


def test_no_restart_gives_up_at_once() -> None:
    assert isinstance(NoRestart().on_failure(0), GiveUp)


def test_fixed_delay_restarts_as_often_as_allowed() -> None:
    strategy = FixedDelay(2, 500)
    assert [strategy.on_failure(n) for n in range(2)] == [RestartAfter(500), RestartAfter(500)]
    assert isinstance(strategy.on_failure(10**9), GiveUp)


def test_failure_rate_gives_up_when_failures_come_too_fast() -> None:
    strategy = FailureRate(2, 1_000, 10)
    assert strategy.on_failure(0) == RestartAfter(10)
    assert strategy.on_failure(600) == RestartAfter(10)
    assert isinstance(strategy.on_failure(900), GiveUp)


def test_failure_rate_goes_on_for_ever_when_failures_are_far_apart() -> None:
    strategy = FailureRate(2, 1_000, 10)
    assert all(strategy.on_failure(n * 501) == RestartAfter(10) for n in range(1_000))


def test_exponential_delay_doubles_up_to_its_maximum() -> None:
    strategy = exponential()
    delays = [strategy.on_failure(n) for n in range(6)]
    assert delays == [RestartAfter(d) for d in (1_000, 2_000, 4_000, 8_000, 10_000, 10_000)]


def test_exponential_delay_starts_anew_after_a_long_run_only() -> None:
    strategy = exponential()
    strategy.on_failure(0)
    strategy.on_running(1_000)
    assert strategy.on_failure(60_999) == RestartAfter(2_000)
    strategy.on_running(70_000)
    assert strategy.on_failure(130_000) == RestartAfter(1_000)


def test_time_spent_without_running_does_not_reset_the_delay() -> None:
    strategy = exponential()
    strategy.on_failure(0)
    assert strategy.on_failure(10**9) == RestartAfter(2_000)


def test_exponential_delay_counts_attempts_between_resets() -> None:
    strategy = exponential(attempts=2)
    assert [type(strategy.on_failure(n)) for n in range(3)] == [RestartAfter, RestartAfter, GiveUp]


def test_jitter_stays_within_its_share_and_below_the_maximum() -> None:
    seen = set()
    for seed in range(200):
        strategy = ExponentialDelay(1_000, 1_050, 2.0, 60_000, 0.1, random.Random(seed))
        decision = strategy.on_failure(0)
        assert isinstance(decision, RestartAfter)
        assert 900 <= decision.delay_ms <= 1_050
        seen.add(decision.delay_ms)
    assert len(seen) > 50


@pytest.mark.parametrize(
    ("keys", "checkpointing", "kind"),
    [
        ({}, False, NoRestart),
        ({}, True, ExponentialDelay),
        ({"restart-strategy.type": "none"}, True, NoRestart),
        ({"restart-strategy.type": "fixed-delay"}, False, FixedDelay),
        ({"restart-strategy": "failure-rate"}, False, FailureRate),
        ({"restart-strategy.type": "exponential-delay"}, False, ExponentialDelay),
    ],
)
def test_the_configuration_picks_the_strategy(keys: dict[str, str], checkpointing: bool, kind: type) -> None:
    wanted = restart_strategy_of(Configuration.from_dict(keys), checkpointing)
    assert isinstance(make_restart_strategy(wanted, random.Random(0)), kind)


def test_the_settings_of_a_strategy_reach_it() -> None:
    strategy = make_restart_strategy(RestartStrategies.fixed_delay_restart(1, 42), random.Random(0))
    assert strategy.on_failure(0) == RestartAfter(42)
    assert isinstance(strategy.on_failure(0), GiveUp)
    rate = make_restart_strategy(RestartStrategies.failure_rate_restart(1, 100, 7), random.Random(0))
    assert rate.on_failure(0) == RestartAfter(7)
    assert isinstance(rate.on_failure(100), GiveUp)


def test_the_default_with_checkpointing_is_the_one_of_flink() -> None:
    strategy = make_restart_strategy(restart_strategy_of(Configuration(), True), random.Random(0))
    delays = [strategy.on_failure(0.0) for _ in range(30)]
    assert all(isinstance(d, RestartAfter) for d in delays)
    assert 900 <= delays[0].delay_ms <= 1_100
    assert 54_000 <= delays[-1].delay_ms <= 60_000


def test_a_fallback_must_be_resolved_first() -> None:
    with pytest.raises(InternalError):
        make_restart_strategy(RestartStrategies.fall_back_restart(), random.Random(0))
