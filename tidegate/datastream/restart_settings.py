"""Writes a restart strategy of the API into the configuration, which is where the JobManager reads it."""

from __future__ import annotations

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.restart_strategy import (
    ExponentialDelayRestartStrategyConfiguration,
    FailureRateRestartStrategyConfiguration,
    FallbackRestartStrategyConfiguration,
    FixedDelayRestartStrategyConfiguration,
    NoRestartStrategyConfiguration,
    RestartStrategyConfiguration,
)


def write_restart_strategy(configuration: Configuration, strategy: RestartStrategyConfiguration) -> None:
    if isinstance(strategy, FallbackRestartStrategyConfiguration):
        for key in options.RESTART_STRATEGY.keys:
            configuration.remove_config(key)
    elif isinstance(strategy, NoRestartStrategyConfiguration):
        configuration.set(options.RESTART_STRATEGY, "none")
    elif isinstance(strategy, FixedDelayRestartStrategyConfiguration):
        if strategy.restart_attempts == 0:
            configuration.set(options.RESTART_STRATEGY, "none")
            return
        configuration.set(options.RESTART_STRATEGY, "fixed-delay")
        configuration.set(options.FIXED_DELAY_ATTEMPTS, strategy.restart_attempts)
        configuration.set(options.FIXED_DELAY_DELAY, strategy.delay_ms)
    elif isinstance(strategy, FailureRateRestartStrategyConfiguration):
        configuration.set(options.RESTART_STRATEGY, "failure-rate")
        configuration.set(options.FAILURE_RATE_MAX_FAILURES, strategy.max_failure_rate)
        configuration.set(options.FAILURE_RATE_INTERVAL, strategy.failure_interval_ms)
        configuration.set(options.FAILURE_RATE_DELAY, strategy.delay_ms)
    elif isinstance(strategy, ExponentialDelayRestartStrategyConfiguration):
        configuration.set(options.RESTART_STRATEGY, "exponential-delay")
        configuration.set(options.EXPONENTIAL_INITIAL_BACKOFF, strategy.initial_backoff_ms)
        configuration.set(options.EXPONENTIAL_MAX_BACKOFF, strategy.max_backoff_ms)
        configuration.set(options.EXPONENTIAL_MULTIPLIER, strategy.backoff_multiplier)
        configuration.set(options.EXPONENTIAL_RESET_THRESHOLD, strategy.reset_backoff_threshold_ms)
        configuration.set(options.EXPONENTIAL_JITTER, strategy.jitter_factor)
        attempts = strategy.attempts_before_reset_backoff
        configuration.set(options.EXPONENTIAL_ATTEMPTS, "infinite" if attempts is None else attempts)
    else:
        raise TypeError(
            f"set_restart_strategy: takes what RestartStrategies makes, for example "
            f"RestartStrategies.fixed_delay_restart(3, 1000), got {type(strategy).__name__}"
        )
