"""Restart strategies as data: what the user asked for. The decisions are taken in `tidegate.jobmanager`."""

from __future__ import annotations

import abc
from dataclasses import dataclass

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.time import TimeLike, as_milliseconds


class RestartStrategyConfiguration(abc.ABC):
    """Base of all restart strategy configurations. Delays are in milliseconds."""

    @abc.abstractmethod
    def get_description(self) -> str:
        """Describes the strategy in one line, for people."""


@dataclass(frozen=True)
class NoRestartStrategyConfiguration(RestartStrategyConfiguration):
    """The first failure fails the job."""

    def get_description(self) -> str:
        return "Restart deactivated."


@dataclass(frozen=True)
class FallbackRestartStrategyConfiguration(RestartStrategyConfiguration):
    """Does what the configuration says, else the default: see `restart_strategy_of`."""

    def get_description(self) -> str:
        return "Cluster level default restart strategy."


@dataclass(frozen=True)
class FixedDelayRestartStrategyConfiguration(RestartStrategyConfiguration):
    """At most `restart_attempts` restarts over the life of the job, each after the same delay."""

    restart_attempts: int
    delay_ms: int

    def __post_init__(self) -> None:
        _check_int("restart_attempts", self.restart_attempts, minimum=0)
        _check_int("delay_between_attempts", self.delay_ms, minimum=0)

    def get_description(self) -> str:
        return f"Restart with fixed delay ({self.delay_ms} ms). #{self.restart_attempts} restart attempts."


@dataclass(frozen=True)
class FailureRateRestartStrategyConfiguration(RestartStrategyConfiguration):
    """Restarts as long as no more than `max_failure_rate` failures fall into any `failure_interval_ms`."""

    max_failure_rate: int
    failure_interval_ms: int
    delay_ms: int

    def __post_init__(self) -> None:
        _check_int("failure_rate", self.max_failure_rate, minimum=1)
        _check_int("failure_interval", self.failure_interval_ms, minimum=1)
        _check_int("delay_interval", self.delay_ms, minimum=0)

    def get_description(self) -> str:
        return (
            f"Failure rate restart with maximum of {self.max_failure_rate} failures within interval "
            f"{self.failure_interval_ms} ms and fixed delay {self.delay_ms} ms."
        )


@dataclass(frozen=True)
class ExponentialDelayRestartStrategyConfiguration(RestartStrategyConfiguration):
    """The delay grows from `initial_backoff_ms` by the multiplier up to `max_backoff_ms`, a random share of it more or
    less, and starts again when the job ran `reset_backoff_threshold_ms` without a failure.

    `attempts_before_reset_backoff` None: restarts without end."""

    initial_backoff_ms: int
    max_backoff_ms: int
    backoff_multiplier: float
    reset_backoff_threshold_ms: int
    jitter_factor: float
    attempts_before_reset_backoff: int | None = None

    def __post_init__(self) -> None:
        _check_int("initial_backoff", self.initial_backoff_ms, minimum=1)
        _check_int("max_backoff", self.max_backoff_ms, minimum=1)
        _check_int("reset_backoff_threshold", self.reset_backoff_threshold_ms, minimum=1)
        if self.max_backoff_ms < self.initial_backoff_ms:
            raise ConfigurationError(
                f"max_backoff ({self.max_backoff_ms} ms) must not be less than initial_backoff "
                f"({self.initial_backoff_ms} ms)."
            )
        if not _is_number(self.backoff_multiplier) or not 1 <= self.backoff_multiplier < float("inf"):
            raise ConfigurationError(f"backoff_multiplier must be at least 1, got {self.backoff_multiplier!r}.")
        if not _is_number(self.jitter_factor) or not 0 <= self.jitter_factor <= 1:
            raise ConfigurationError(f"jitter_factor must be from 0 to 1, got {self.jitter_factor!r}.")
        if self.attempts_before_reset_backoff is not None:
            _check_int("attempts_before_reset_backoff", self.attempts_before_reset_backoff, minimum=1)

    def get_description(self) -> str:
        attempts = self.attempts_before_reset_backoff
        return (
            f"Restart with exponential delay: starting at {self.initial_backoff_ms} ms, increasing by "
            f"{self.backoff_multiplier:g}, with maximum {self.max_backoff_ms} ms. Delay deviates randomly by a share "
            f"of {self.jitter_factor:g} and resets after {self.reset_backoff_threshold_ms} ms without a failure. "
            f"{'Unlimited' if attempts is None else f'#{attempts}'} restart attempts before a reset."
        )


class RestartStrategies:
    """Makes restart strategy configurations. A delay is milliseconds (int), a Duration, a Time or a timedelta."""

    NoRestartStrategyConfiguration = NoRestartStrategyConfiguration
    FallbackRestartStrategyConfiguration = FallbackRestartStrategyConfiguration
    FixedDelayRestartStrategyConfiguration = FixedDelayRestartStrategyConfiguration
    FailureRateRestartStrategyConfiguration = FailureRateRestartStrategyConfiguration
    ExponentialDelayRestartStrategyConfiguration = ExponentialDelayRestartStrategyConfiguration

    @staticmethod
    def no_restart() -> RestartStrategyConfiguration:
        return NoRestartStrategyConfiguration()

    @staticmethod
    def fall_back_restart() -> RestartStrategyConfiguration:
        return FallbackRestartStrategyConfiguration()

    @staticmethod
    def fixed_delay_restart(restart_attempts: int, delay_between_attempts: TimeLike) -> RestartStrategyConfiguration:
        return FixedDelayRestartStrategyConfiguration(
            restart_attempts, as_milliseconds(delay_between_attempts, "delay_between_attempts")
        )

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: TimeLike, delay_interval: TimeLike
    ) -> RestartStrategyConfiguration:
        return FailureRateRestartStrategyConfiguration(
            failure_rate,
            as_milliseconds(failure_interval, "failure_interval"),
            as_milliseconds(delay_interval, "delay_interval"),
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: TimeLike,
        max_backoff: TimeLike,
        backoff_multiplier: float,
        reset_backoff_threshold: TimeLike,
        jitter_factor: float,
        attempts_before_reset_backoff: int | None = None,
    ) -> RestartStrategyConfiguration:
        """Waits longer after each failure. With `attempts_before_reset_backoff` None it restarts without end."""
        return ExponentialDelayRestartStrategyConfiguration(
            as_milliseconds(initial_backoff, "initial_backoff"),
            as_milliseconds(max_backoff, "max_backoff"),
            backoff_multiplier,
            as_milliseconds(reset_backoff_threshold, "reset_backoff_threshold"),
            jitter_factor,
            attempts_before_reset_backoff,
        )


def restart_strategy_of(config: Configuration, checkpointing: bool) -> RestartStrategyConfiguration:
    """The strategy that the configuration asks for, never a fallback.

    When it asks for none: exponential delay if checkpointing is on, no restart otherwise, as in Flink 2."""
    name = options.read(config, options.RESTART_STRATEGY) or ("exponential-delay" if checkpointing else "none")
    if name == "fixed-delay":
        return FixedDelayRestartStrategyConfiguration(
            options.read(config, options.FIXED_DELAY_ATTEMPTS), options.read(config, options.FIXED_DELAY_DELAY)
        )
    if name == "failure-rate":
        return FailureRateRestartStrategyConfiguration(
            options.read(config, options.FAILURE_RATE_MAX_FAILURES),
            options.read(config, options.FAILURE_RATE_INTERVAL),
            options.read(config, options.FAILURE_RATE_DELAY),
        )
    if name == "exponential-delay":
        return ExponentialDelayRestartStrategyConfiguration(
            options.read(config, options.EXPONENTIAL_INITIAL_BACKOFF),
            options.read(config, options.EXPONENTIAL_MAX_BACKOFF),
            options.read(config, options.EXPONENTIAL_MULTIPLIER),
            options.read(config, options.EXPONENTIAL_RESET_THRESHOLD),
            options.read(config, options.EXPONENTIAL_JITTER),
            options.read(config, options.EXPONENTIAL_ATTEMPTS),
        )
    return NoRestartStrategyConfiguration()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_int(name: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigurationError(f"{name} of a restart strategy must be a whole number from {minimum}, got {value!r}.")
