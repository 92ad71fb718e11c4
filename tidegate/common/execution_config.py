"""ExecutionConfig: PyFlink's typed view of the settings of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.common import options
from tidegate.common.config_options import ConfigOption
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.time import TimeLike, as_milliseconds


class ExecutionConfig:
    """Getters and setters over a `Configuration`, which holds the values: a change through one is seen by the other.

    Setters return the object itself, so that calls can be chained.
    """

    PARALLELISM_DEFAULT = -1
    """What `get_max_parallelism` gives when none is set."""
    PARALLELISM_UNKNOWN = -2
    """Flink's mark of a parallelism that is not to be changed; nothing here gives or takes it."""

    def __init__(self, configuration: Configuration | None = None) -> None:
        self._configuration = Configuration() if configuration is None else configuration

    def get_parallelism(self) -> int:
        return int(self._get(options.PARALLELISM))

    def set_parallelism(self, parallelism: int) -> ExecutionConfig:
        return self._set(options.PARALLELISM, parallelism)

    def get_max_parallelism(self) -> int:
        """The number of key groups, -1 when it was not set."""
        value = self._get(options.MAX_PARALLELISM)
        return self.PARALLELISM_DEFAULT if value is None else int(value)

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        return self._set(options.MAX_PARALLELISM, max_parallelism)

    def get_auto_watermark_interval(self) -> int:
        """The interval in milliseconds; 0 when there are no periodic watermarks."""
        return int(self._get(options.AUTO_WATERMARK_INTERVAL))

    def set_auto_watermark_interval(self, interval: TimeLike) -> ExecutionConfig:
        return self._set(options.AUTO_WATERMARK_INTERVAL, as_milliseconds(interval, "auto watermark interval"))

    def get_latency_tracking_interval(self) -> int:
        return int(self._get(options.LATENCY_TRACKING_INTERVAL))

    def set_latency_tracking_interval(self, interval: TimeLike) -> ExecutionConfig:
        return self._set(options.LATENCY_TRACKING_INTERVAL, as_milliseconds(interval, "latency tracking interval"))

    def get_task_cancellation_interval(self) -> int:
        return int(self._get(options.CANCELLATION_INTERVAL))

    def set_task_cancellation_interval(self, interval: TimeLike) -> ExecutionConfig:
        return self._set(options.CANCELLATION_INTERVAL, as_milliseconds(interval, "task cancellation interval"))

    def get_task_cancellation_timeout(self) -> int:
        return int(self._get(options.CANCELLATION_TIMEOUT))

    def set_task_cancellation_timeout(self, timeout: TimeLike) -> ExecutionConfig:
        return self._set(options.CANCELLATION_TIMEOUT, as_milliseconds(timeout, "task cancellation timeout"))

    def enable_object_reuse(self) -> ExecutionConfig:
        return self._set(options.OBJECT_REUSE, True)

    def disable_object_reuse(self) -> ExecutionConfig:
        return self._set(options.OBJECT_REUSE, False)

    def is_object_reuse_enabled(self) -> bool:
        return bool(self._get(options.OBJECT_REUSE))

    def enable_closure_cleaner(self) -> ExecutionConfig:
        """Without effect: functions are pickled with what they refer to, and nothing else."""
        return self._set(options.CLOSURE_CLEANER, "RECURSIVE")

    def disable_closure_cleaner(self) -> ExecutionConfig:
        """Without effect, like `enable_closure_cleaner`."""
        return self._set(options.CLOSURE_CLEANER, "NONE")

    def is_closure_cleaner_enabled(self) -> bool:
        return str(self._get(options.CLOSURE_CLEANER)) != "NONE"

    def enable_auto_generated_uids(self) -> ExecutionConfig:
        return self._set(options.AUTO_GENERATE_UIDS, True)

    def disable_auto_generated_uids(self) -> ExecutionConfig:
        """From then on every operator needs a uid of its own."""
        return self._set(options.AUTO_GENERATE_UIDS, False)

    def has_auto_generated_uids_enabled(self) -> bool:
        return bool(self._get(options.AUTO_GENERATE_UIDS))

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> ExecutionConfig:
        return self._set(options.SNAPSHOT_COMPRESSION, use_snapshot_compression)

    def is_use_snapshot_compression(self) -> bool:
        return bool(self._get(options.SNAPSHOT_COMPRESSION))

    def get_global_job_parameters(self) -> dict[str, str]:
        return dict(self._get(options.GLOBAL_JOB_PARAMETERS))

    def set_global_job_parameters(self, global_job_parameters_dict: Mapping[str, Any]) -> ExecutionConfig:
        """Pairs that functions can read through their runtime context; values are kept as text."""
        if not isinstance(global_job_parameters_dict, Mapping):
            raise ConfigurationError(f"Global job parameters are a dict, got {global_job_parameters_dict!r}.")
        return self._set(options.GLOBAL_JOB_PARAMETERS, dict(global_job_parameters_dict))

    def __eq__(self, other: object) -> bool:
        """The same settings, whether they were set or are the defaults."""
        return isinstance(other, ExecutionConfig) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(repr(self._identity()))

    def _identity(self) -> list[Any]:
        return [self._get(option) for option in _SETTINGS]

    def _get(self, option: ConfigOption) -> Any:
        return options.read(self._configuration, option)

    def _set(self, option: ConfigOption, value: Any) -> ExecutionConfig:
        self._configuration.set(option, value)
        return self


_SETTINGS = (
    options.PARALLELISM,
    options.MAX_PARALLELISM,
    options.AUTO_WATERMARK_INTERVAL,
    options.LATENCY_TRACKING_INTERVAL,
    options.CANCELLATION_INTERVAL,
    options.CANCELLATION_TIMEOUT,
    options.OBJECT_REUSE,
    options.CLOSURE_CLEANER,
    options.AUTO_GENERATE_UIDS,
    options.SNAPSHOT_COMPRESSION,
    options.GLOBAL_JOB_PARAMETERS,
)
"""What an ExecutionConfig is about."""
