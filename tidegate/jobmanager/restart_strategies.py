"""Restart strategies: whether and when a job that failed is started again.

A strategy is asked once per failed attempt (`on_failure`) and told when an attempt runs (`on_running`). Time comes in
as an argument, jitter from the random generator that is passed in.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tidegate.common.errors import check_internal
from tidegate.common.restart_strategy import (
    ExponentialDelayRestartStrategyConfiguration,
    FailureRateRestartStrategyConfiguration,
    FixedDelayRestartStrategyConfiguration,
    NoRestartStrategyConfiguration,
    RestartStrategyConfiguration,
)


@dataclass(frozen=True)
class RestartAfter:
    """Start the next attempt this long after the failure."""

    delay_ms: float


@dataclass(frozen=True)
class GiveUp:
    """No further restart; the reason is shown to the user."""

    reason: str


RestartDecision = RestartAfter | GiveUp


class RestartStrategy(Protocol):
    def on_failure(self, now_ms: float) -> RestartDecision: ...

    def on_running(self, now_ms: float) -> None:
        """All tasks of an attempt were told to start."""


class NoRestart:
    def on_failure(self, now_ms: float) -> RestartDecision:
        return GiveUp("no restart strategy is set (restart-strategy.type)")

    def on_running(self, now_ms: float) -> None:
        pass


class FixedDelay:
    """A fixed number of restarts in the life of the job, each after the same delay."""

    def __init__(self, attempts: int, delay_ms: float) -> None:
        self._attempts = attempts
        self._delay_ms = delay_ms
        self._failures = 0

    def on_failure(self, now_ms: float) -> RestartDecision:
        self._failures += 1
        if self._failures > self._attempts:
            return GiveUp(f"the fixed-delay restart strategy allows {_times(self._attempts)}")
        return RestartAfter(self._delay_ms)

    def on_running(self, now_ms: float) -> None:
        pass


class FailureRate:
    """Restarts as long as there are not more than `max_failures` failures in any `interval_ms`."""

    def __init__(self, max_failures: int, interval_ms: float, delay_ms: float) -> None:
        self._max_failures = max_failures
        self._interval_ms = interval_ms
        self._delay_ms = delay_ms
        self._recent: deque[float] = deque(maxlen=max_failures + 1)  # times of the latest failures, oldest first

    def on_failure(self, now_ms: float) -> RestartDecision:
        self._recent.append(now_ms)
        if len(self._recent) > self._max_failures and now_ms - self._recent[0] <= self._interval_ms:
            return GiveUp(
                f"the failure-rate restart strategy allows {self._max_failures} failures in "
                f"{self._interval_ms / 1000:g} s; these were {len(self._recent)} in "
                f"{(now_ms - self._recent[0]) / 1000:g} s"
            )
        return RestartAfter(self._delay_ms)

    def on_running(self, now_ms: float) -> None:
        pass


class ExponentialDelay:
    """The delay grows by a factor with each failure, up to a maximum, and starts anew after the job has run for
    `reset_threshold_ms` without one. `attempts` bounds the restarts between two such resets (None: no bound)."""

    def __init__(
        self,
        initial_ms: float,
        max_ms: float,
        multiplier: float,
        reset_threshold_ms: float,
        jitter: float,
        rng: random.Random,
        attempts: int | None = None,
    ) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._multiplier = multiplier
        self._reset_threshold_ms = reset_threshold_ms
        self._jitter = jitter
        self._rng = rng
        self._attempts = attempts
        self._delay_ms = initial_ms  # of the next restart, without jitter
        self._restarts = 0  # since the last reset
        self._running_since: float | None = None

    def on_failure(self, now_ms: float) -> RestartDecision:
        if self._running_since is not None and now_ms - self._running_since >= self._reset_threshold_ms:
            self._delay_ms = self._initial_ms
            self._restarts = 0
        self._running_since = None
        if self._attempts is not None and self._restarts >= self._attempts:
            return GiveUp(
                f"the exponential-delay restart strategy allows {_times(self._attempts)} until the job has run for "
                f"{self._reset_threshold_ms / 1000:g} s without a failure"
            )
        self._restarts += 1
        delay = self._delay_ms
        self._delay_ms = min(self._delay_ms * self._multiplier, self._max_ms)
        offset = delay * self._jitter
        return RestartAfter(min(max(delay + self._rng.uniform(-offset, offset), 0.0), self._max_ms))

    def on_running(self, now_ms: float) -> None:
        self._running_since = now_ms


def _times(restarts: int) -> str:
    return f"{restarts} restart" if restarts == 1 else f"{restarts} restarts"


def make_restart_strategy(configuration: RestartStrategyConfiguration, rng: random.Random) -> RestartStrategy:
    """The strategy of `common.restart_strategy.restart_strategy_of(config, checkpointing)`, which picks the default."""
    if isinstance(configuration, FixedDelayRestartStrategyConfiguration):
        return FixedDelay(configuration.restart_attempts, configuration.delay_ms)
    if isinstance(configuration, FailureRateRestartStrategyConfiguration):
        return FailureRate(configuration.max_failure_rate, configuration.failure_interval_ms, configuration.delay_ms)
    if isinstance(configuration, ExponentialDelayRestartStrategyConfiguration):
        return ExponentialDelay(
            initial_ms=configuration.initial_backoff_ms,
            max_ms=configuration.max_backoff_ms,
            multiplier=configuration.backoff_multiplier,
            reset_threshold_ms=configuration.reset_backoff_threshold_ms,
            jitter=configuration.jitter_factor,
            rng=rng,
            attempts=configuration.attempts_before_reset_backoff,
        )
    check_internal(
        isinstance(configuration, NoRestartStrategyConfiguration),
        f"the restart strategy was not resolved: {configuration.get_description()}",
    )
    return NoRestart()
