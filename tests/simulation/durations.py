"""The durations and limits of a run. Each is drawn for itself, every order of magnitude alike, so that which of two is
the longer one, and by how much, is open. What happens in a run takes some tens of milliseconds."""

from __future__ import annotations

import math
import random

from tidegate.common.restart_strategy import (
    ExponentialDelayRestartStrategyConfiguration,
    FailureRateRestartStrategyConfiguration,
    FixedDelayRestartStrategyConfiguration,
    NoRestartStrategyConfiguration,
    RestartStrategyConfiguration,
)
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings, Retention
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.network.elements import Alignment

NEVER_MS = 36_000_000.0
"""A timeout that nothing may have to wait for."""
MANY = 100_000


def any_ms(rng: random.Random, low: float = 1.0, high: float = 1000.0) -> float:
    """Every order of magnitude as likely as the others."""
    return float(10 ** rng.uniform(math.log10(low), math.log10(high)))


def draw_job_settings(rng: random.Random, faulty: bool) -> JobSettings:
    """Without faults no worker may be taken for dead: heartbeats have time then, however slow the connections."""
    interval, timeout, start = 50.0, 400.0 if faulty else 60_000.0, 60_000.0
    if faulty and rng.random() < 0.6:
        interval = any_ms(rng, 3.0, 300.0)
        timeout = interval * any_ms(rng, 1.1, 50.0)
        start = any_ms(rng, 5.0, 60_000.0)
    restore = math.inf
    if faulty and rng.random() < 0.7:
        restore = any_ms(rng, 20.0, 60_000.0)
    grace = math.inf if rng.random() < 0.05 else any_ms(rng)
    return JobSettings(
        "simulated",
        heartbeat_interval_ms=interval,
        heartbeat_timeout_ms=timeout,
        start_timeout_ms=start,
        restore_timeout_ms=restore,
        leave_grace_ms=grace,
    )


def draw_checkpoints(
    rng: random.Random, alignment: Alignment, most_at_once: int, long: bool, faulty: bool
) -> CheckpointSettings:
    """Most intervals are short, or there would be little to recover from; in long jobs all, for the sake of chains of
    increments."""
    tolerant = rng.random() < 0.7
    interval = 0.5 if long else any_ms(rng, 0.3, 8.0) if rng.random() < 0.85 else any_ms(rng, 8.0, 300.0)
    timeout = any_ms(rng, 0.5, 500.0) if tolerant and rng.random() < 0.4 else NEVER_MS
    pause = any_ms(rng, 0.1, 50.0) if most_at_once == 1 and rng.random() < 0.3 else 0.0
    retention = rng.choice(list(Retention)) if faulty else Retention.NO_EXTERNALIZED_CHECKPOINTS
    return CheckpointSettings(
        interval_ms=interval,
        alignment=alignment,
        alignment_timeout_ms=(math.ceil(any_ms(rng, 0.5, 50.0)) if alignment is Alignment.ALIGNED_WITH_TIMEOUT else 0),
        timeout_ms=timeout,
        min_pause_ms=pause,
        max_concurrent=most_at_once,
        tolerable_failures=1_000_000 if tolerant else rng.choice((0, 1, 2)),
        num_retained=rng.choice((1, 1, 2, 3)),
        retention=retention,
        after_tasks_finish=rng.random() < 0.8,
    )


def draw_restart(rng: random.Random, may_give_up: bool) -> RestartStrategyConfiguration:
    """All four kinds; those that give up less often, since they end a run early."""
    kind = rng.random()
    delay = 0 if rng.random() < 0.4 else round(any_ms(rng))
    if may_give_up and kind < 0.03:
        return NoRestartStrategyConfiguration()
    if may_give_up and kind < 0.09:
        return FixedDelayRestartStrategyConfiguration(rng.randint(0, 3), delay)
    if kind < 0.2:
        most = rng.randint(1, 4) if may_give_up else MANY
        return FailureRateRestartStrategyConfiguration(most, math.ceil(any_ms(rng, 1.0, 3000.0)), delay)
    if kind < 0.4:
        first = math.ceil(any_ms(rng, 1.0, 300.0))
        return ExponentialDelayRestartStrategyConfiguration(
            initial_backoff_ms=first,
            max_backoff_ms=math.ceil(first * any_ms(rng, 1.0, 10.0)),
            backoff_multiplier=rng.choice((1.0, 1.5, 2.0, 10.0)),
            reset_backoff_threshold_ms=math.ceil(any_ms(rng)),
            jitter_factor=rng.choice((0.0, 0.1, 1.0)),
            attempts_before_reset_backoff=rng.randint(1, 3) if may_give_up and rng.random() < 0.3 else None,
        )
    return FixedDelayRestartStrategyConfiguration(MANY, delay)
