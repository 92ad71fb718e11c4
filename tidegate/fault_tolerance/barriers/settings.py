"""The checkpoint settings of a job, read and checked once."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.network.elements import Alignment


class Retention(enum.Enum):
    """What happens to the completed checkpoints when the job ends. Those of a FINISHED job are always deleted."""

    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"  # kept only when the job has failed
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"  # kept when it has failed and when it was cancelled
    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"  # deleted in any case


@dataclass(frozen=True)
class CheckpointSettings:
    """All times in ms."""

    interval_ms: float  # inf: checkpointing is off, there are only the savepoints that users ask for
    alignment: Alignment = Alignment.ALIGNED
    alignment_timeout_ms: int = 0  # only for ALIGNED_WITH_TIMEOUT
    timeout_ms: float = 600_000.0
    min_pause_ms: float = 0.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    num_retained: int = 1
    retention: Retention = Retention.NO_EXTERNALIZED_CHECKPOINTS
    after_tasks_finish: bool = True  # periodic ones go on when some tasks are at the end of their data
    history_size: int = 100  # checkpoints that the statistics remember
    warnings: tuple[str, ...] = ()  # for the user, about settings that have no effect

    def __post_init__(self) -> None:
        for key, value, least in (
            ("execution.checkpointing.max-concurrent-checkpoints", self.max_concurrent, 1),
            ("execution.checkpointing.num-retained", self.num_retained, 1),
            ("execution.checkpointing.tolerable-failed-checkpoints", self.tolerable_failures, 0),
            ("execution.checkpointing.min-pause", self.min_pause_ms, 0),
        ):
            if value < least:
                raise ConfigurationError(f"{key} must be at least {least}, not {value:g}")
        for key, time in (
            ("execution.checkpointing.interval", self.interval_ms),
            ("execution.checkpointing.timeout", self.timeout_ms),
        ):
            if time <= 0:
                raise ConfigurationError(f"{key} must be positive, not {time:g} ms")
        if (self.alignment is Alignment.ALIGNED_WITH_TIMEOUT) != (self.alignment_timeout_ms > 0):
            raise ConfigurationError("an alignment timeout goes with ALIGNED_WITH_TIMEOUT, and only with it")

    @property
    def enabled(self) -> bool:
        """Checkpoints are taken, not only savepoints."""
        return self.interval_ms < math.inf

    @staticmethod
    def savepoints_only(configuration: Configuration) -> CheckpointSettings:
        return CheckpointSettings(
            interval_ms=math.inf,
            timeout_ms=options.read(configuration, options.CHECKPOINT_TIMEOUT),
            history_size=options.read(configuration, options.CHECKPOINT_HISTORY_SIZE),
        )

    @staticmethod
    def from_configuration(configuration: Configuration) -> CheckpointSettings | None:
        """None when checkpointing is off."""
        interval = options.read(configuration, options.CHECKPOINT_INTERVAL)
        if interval is None:
            return None
        max_concurrent = options.read(configuration, options.MAX_CONCURRENT_CHECKPOINTS)
        alignment, timeout, warnings = _alignment(configuration)
        if alignment in (Alignment.UNALIGNED, Alignment.ALIGNED_WITH_TIMEOUT) and max_concurrent > 1:
            raise ConfigurationError(
                f"{options.UNALIGNED_ENABLED.key} needs {options.MAX_CONCURRENT_CHECKPOINTS.key} = 1, not "
                f"{max_concurrent}: in-flight records cannot belong to two checkpoints at once"
            )
        return CheckpointSettings(
            interval_ms=interval,
            alignment=alignment,
            alignment_timeout_ms=timeout,
            timeout_ms=options.read(configuration, options.CHECKPOINT_TIMEOUT),
            min_pause_ms=options.read(configuration, options.CHECKPOINT_MIN_PAUSE),
            max_concurrent=max_concurrent,
            tolerable_failures=options.read(configuration, options.TOLERABLE_FAILED_CHECKPOINTS),
            num_retained=options.read(configuration, options.NUM_RETAINED),
            retention=Retention(options.read(configuration, options.EXTERNALIZED_RETENTION)),
            after_tasks_finish=options.read(configuration, options.CHECKPOINTS_AFTER_TASKS_FINISH),
            history_size=options.read(configuration, options.CHECKPOINT_HISTORY_SIZE),
            warnings=warnings,
        )


def _alignment(configuration: Configuration) -> tuple[Alignment, int, tuple[str, ...]]:
    """(alignment, its timeout, warnings)."""
    unaligned = options.read(configuration, options.UNALIGNED_ENABLED)
    timeout = options.read(configuration, options.ALIGNED_CHECKPOINT_TIMEOUT)
    if options.read(configuration, options.CHECKPOINT_MODE) == "AT_LEAST_ONCE":
        warning = (
            f"{options.UNALIGNED_ENABLED.key} has no effect with {options.CHECKPOINT_MODE.key} = AT_LEAST_ONCE: "
            "unaligned checkpoints are exactly-once"
        )
        return Alignment.AT_LEAST_ONCE, 0, (warning,) if unaligned else ()
    if not unaligned:
        return Alignment.ALIGNED, 0, ()
    return (Alignment.ALIGNED_WITH_TIMEOUT, timeout, ()) if timeout > 0 else (Alignment.UNALIGNED, 0, ())
