"""What the JobMaster needs to know of the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError

_SELF_KILL_MS = 1_500.0
_QUICK_LEAVE_MS = 1_000.0


@dataclass(frozen=True)
class JobSettings:
    """All times in ms."""

    job_name: str
    heartbeat_interval_ms: float = 1_000.0
    heartbeat_timeout_ms: float = 8_000.0
    start_timeout_ms: float = 60_000.0  # from the submission of a gang until all its slots have registered
    restore_timeout_ms: float = math.inf  # from the deployment until all slots are ready; may be infinite
    leave_grace_ms: float = 2_500.0  # time to leave before Spark is asked to kill what is left; may be infinite
    allow_non_restored_state: bool = False  # state of operators that the job no longer has may be dropped
    max_repeated_failures: int = 0  # of the same kind, without a checkpoint in between, that end the job; 0: none do

    def __post_init__(self) -> None:
        times = ("heartbeat_interval_ms", "heartbeat_timeout_ms", "start_timeout_ms", "restore_timeout_ms")
        for name in (*times, "leave_grace_ms"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be positive, not {getattr(self, name)}")
        if self.heartbeat_timeout_ms <= self.heartbeat_interval_ms:
            raise ConfigurationError(
                f"heartbeat.timeout ({self.heartbeat_timeout_ms:.0f} ms) must be longer than heartbeat.interval "
                f"({self.heartbeat_interval_ms:.0f} ms): a worker would be given up between two heartbeats"
            )

    @staticmethod
    def from_configuration(job_name: str, configuration: Configuration) -> JobSettings:
        return JobSettings(
            job_name=job_name,
            heartbeat_interval_ms=options.read(configuration, options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_ms=options.read(configuration, options.HEARTBEAT_TIMEOUT),
            start_timeout_ms=options.read(configuration, options.SLOT_START_TIMEOUT),
            restore_timeout_ms=options.read(configuration, options.SLOT_RESTORE_TIMEOUT) or math.inf,
            leave_grace_ms=_leave_grace(cancellation_timeout_ms(configuration)),
            allow_non_restored_state=options.read(configuration, options.RECOVERY_IGNORE_UNCLAIMED_STATE),
            max_repeated_failures=max_repeated_failures(configuration),
        )


def cancellation_timeout_ms(configuration: Configuration) -> float:
    """How long a task may take to leave. Flink's default of three minutes would be downtime."""
    if not configuration.contains(options.CANCELLATION_TIMEOUT):
        return _QUICK_LEAVE_MS
    return float(options.read(configuration, options.CANCELLATION_TIMEOUT))


def max_repeated_failures(configuration: Configuration) -> int:
    """Who has chosen a restart strategy gets what it says, unless both were set."""
    chosen = configuration.contains(options.RESTART_STRATEGY)
    if chosen and not configuration.contains(options.STOP_ON_REPEATED_FAILURE):
        return 0
    return int(options.read(configuration, options.STOP_ON_REPEATED_FAILURE))


def _leave_grace(cancellation_timeout_ms: float) -> float:
    """A worker whose task does not leave in time ends itself; Spark is asked only when that did not help either."""
    return cancellation_timeout_ms + _SELF_KILL_MS if cancellation_timeout_ms > 0 else math.inf
