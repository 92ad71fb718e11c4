"""The restart strategy of a simulated job, beside a second opinion: what its configuration says, worked out from the
whole history of failures each time."""

from __future__ import annotations

import random

from tests.simulation.verify import check
from tidegate.common.restart_strategy import (
    ExponentialDelayRestartStrategyConfiguration,
    FailureRateRestartStrategyConfiguration,
    FixedDelayRestartStrategyConfiguration,
    RestartStrategyConfiguration,
)
from tidegate.jobmanager.restart_strategies import GiveUp, RestartAfter, RestartDecision, make_restart_strategy

_ROUNDING_MS = 1e-6


class CheckedStrategy:
    """Implements `RestartStrategy`."""

    def __init__(self, configuration: RestartStrategyConfiguration, rng: random.Random) -> None:
        self._configuration = configuration
        self._strategy = make_restart_strategy(configuration, rng)
        self._failures: list[float] = []
        self._since_reset: list[float] = []  # failures since the exponential delay last began anew
        self._running_since: float | None = None
        self.gave_up = False

    def on_running(self, now_ms: float) -> None:
        self._running_since = now_ms
        self._strategy.on_running(now_ms)

    def on_failure(self, now_ms: float) -> RestartDecision:
        check(not self.gave_up, "the restart strategy is asked after it has given up")
        self._failures.append(now_ms)
        lowest, highest = self._delay(now_ms)
        decision = self._strategy.on_failure(now_ms)
        if isinstance(decision, GiveUp):
            check(highest < 0, f"the strategy gives up too early: {decision.reason}, failures at {self._failures}")
            self.gave_up = True
        else:
            assert isinstance(decision, RestartAfter)
            check(
                lowest - _ROUNDING_MS <= decision.delay_ms <= highest + _ROUNDING_MS,
                f"{decision}, but {self._configuration.get_description()} after failures at {self._failures}",
            )
        return decision

    def _delay(self, now_ms: float) -> tuple[float, float]:
        """(shortest, longest) delay before the next attempt; negative: there is to be none."""
        none = (-1.0, -1.0)
        match self._configuration:
            case FixedDelayRestartStrategyConfiguration(attempts, delay):
                return (delay, delay) if len(self._failures) <= attempts else none
            case FailureRateRestartStrategyConfiguration(most, interval, delay):
                recent = [time for time in self._failures if time >= now_ms - interval]
                return (delay, delay) if len(recent) <= most else none
            case ExponentialDelayRestartStrategyConfiguration() as exponential:
                return self._exponential(exponential, now_ms)
            case _:
                return none

    def _exponential(self, c: ExponentialDelayRestartStrategyConfiguration, now_ms: float) -> tuple[float, float]:
        if self._running_since is not None and now_ms - self._running_since >= c.reset_backoff_threshold_ms:
            self._since_reset.clear()
        self._running_since = None
        restarts = len(self._since_reset)
        if c.attempts_before_reset_backoff is not None and restarts >= c.attempts_before_reset_backoff:
            return -1.0, -1.0
        self._since_reset.append(now_ms)
        delay = min(c.initial_backoff_ms * c.backoff_multiplier ** min(restarts, 100), c.max_backoff_ms)
        spread = delay * c.jitter_factor
        return max(delay - spread, 0.0), min(delay + spread, c.max_backoff_ms)
