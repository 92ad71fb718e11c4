"""CheckpointConfig: PyFlink's typed view of the settings of checkpoints."""

from __future__ import annotations

from typing import Any

from tidegate.common import options
from tidegate.common.config_options import ConfigOption
from tidegate.common.configuration import Configuration
from tidegate.common.time import Duration, TimeLike
from tidegate.datastream.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    checked_uri,
)
from tidegate.datastream.checkpointing_mode import CheckpointingMode
from tidegate.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention

UNLIMITED_TOLERABLE_FAILURE_NUMBER = 2**31 - 1


class CheckpointConfig:
    """Getters and setters over a `Configuration`, which holds the values: a change through one is seen by the other.

    Setters check the value (ConfigurationError) and return the object itself. A length of time is milliseconds, a
    `Duration`, a `Time` or a `timedelta`.
    """

    DEFAULT_MODE = CheckpointingMode.EXACTLY_ONCE
    DEFAULT_TIMEOUT = 10 * 60 * 1000
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS = 0
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS = 1

    def __init__(self, configuration: Configuration | None = None) -> None:
        self._configuration = Configuration() if configuration is None else configuration
        self._prefer_checkpoint_for_recovery = False

    # ------------------------------------------------------------ when

    def is_checkpointing_enabled(self) -> bool:
        return self.get_checkpoint_interval() > 0

    def get_checkpoint_interval(self) -> int:
        """Milliseconds between checkpoints, -1 when there are none."""
        interval = self._get(options.CHECKPOINT_INTERVAL)
        return -1 if interval is None else int(interval)

    def set_checkpoint_interval(self, checkpoint_interval: TimeLike) -> CheckpointConfig:
        return self._set(options.CHECKPOINT_INTERVAL, checkpoint_interval)

    def get_checkpoint_timeout(self) -> int:
        return int(self._get(options.CHECKPOINT_TIMEOUT))

    def set_checkpoint_timeout(self, checkpoint_timeout: TimeLike) -> CheckpointConfig:
        """A checkpoint that takes longer is given up."""
        return self._set(options.CHECKPOINT_TIMEOUT, checkpoint_timeout)

    def get_min_pause_between_checkpoints(self) -> int:
        return int(self._get(options.CHECKPOINT_MIN_PAUSE))

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: TimeLike) -> CheckpointConfig:
        """Sets the shortest time from the end of one checkpoint to the start of the next."""
        return self._set(options.CHECKPOINT_MIN_PAUSE, min_pause_between_checkpoints)

    def get_max_concurrent_checkpoints(self) -> int:
        return int(self._get(options.MAX_CONCURRENT_CHECKPOINTS))

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        return self._set(options.MAX_CONCURRENT_CHECKPOINTS, max_concurrent_checkpoints)

    # ------------------------------------------------------------ how

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return CheckpointingMode[self._get(options.CHECKPOINT_MODE)]

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        return self._set(options.CHECKPOINT_MODE, checkpointing_mode)

    get_checkpointing_consistency_mode = get_checkpointing_mode
    set_checkpointing_consistency_mode = set_checkpointing_mode

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return bool(self._get(options.UNALIGNED_ENABLED))

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Barriers overtake buffered records, which become part of the checkpoint: checkpoints stay short under
        back-pressure. Only with EXACTLY_ONCE."""
        return self._set(options.UNALIGNED_ENABLED, enabled)

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        return self.enable_unaligned_checkpoints(False)

    def get_aligned_checkpoint_timeout(self) -> Duration:
        return Duration.of_millis(self._get(options.ALIGNED_CHECKPOINT_TIMEOUT))

    def set_aligned_checkpoint_timeout(self, alignment_timeout: TimeLike) -> CheckpointConfig:
        """With unaligned checkpoints on: begin aligned, become unaligned after this time."""
        return self._set(options.ALIGNED_CHECKPOINT_TIMEOUT, alignment_timeout)

    get_alignment_timeout = get_aligned_checkpoint_timeout
    set_alignment_timeout = set_aligned_checkpoint_timeout

    def is_force_unaligned_checkpoints(self) -> bool:
        return bool(self._get(options.UNALIGNED_FORCED))

    def set_force_unaligned_checkpoints(self, force_unaligned_checkpoints: bool = True) -> CheckpointConfig:
        return self._set(options.UNALIGNED_FORCED, force_unaligned_checkpoints)

    # ------------------------------------------------------------ failures

    def get_tolerable_checkpoint_failure_number(self) -> int:
        return int(self._get(options.TOLERABLE_FAILED_CHECKPOINTS))

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> CheckpointConfig:
        """How many checkpoints in a row may fail before the job does."""
        return self._set(options.TOLERABLE_FAILED_CHECKPOINTS, tolerable_checkpoint_failure_number)

    def is_fail_on_checkpointing_errors(self) -> bool:
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> CheckpointConfig:
        """The old form of the tolerable number: none, or any number."""
        return self.set_tolerable_checkpoint_failure_number(
            0 if fail_on_checkpointing_errors else UNLIMITED_TOLERABLE_FAILURE_NUMBER
        )

    def is_prefer_checkpoint_for_recovery(self) -> bool:
        return self._prefer_checkpoint_for_recovery

    def set_prefer_checkpoint_for_recovery(self, prefer_checkpoint_for_recovery: bool) -> CheckpointConfig:
        """Accepted as in older Flink; recovery always takes the latest snapshot, checkpoint or savepoint."""
        self._prefer_checkpoint_for_recovery = bool(prefer_checkpoint_for_recovery)
        return self

    # ------------------------------------------------------------ where, and how long

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        return ExternalizedCheckpointRetention[self._get(options.EXTERNALIZED_RETENTION)]

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        """What becomes of the last checkpoints when the job ends."""
        return self._set(options.EXTERNALIZED_RETENTION, retention_mode)

    def is_externalized_checkpoints_enabled(self) -> bool:
        return (
            self.get_externalized_checkpoint_retention()
            is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        )

    def get_checkpoint_storage(self) -> CheckpointStorage | None:
        """The chosen storage; None when nothing was chosen (then it is the JobManager's memory)."""
        path = self._get(options.CHECKPOINT_DIR)
        kind = self._get(options.CHECKPOINT_STORAGE)
        if kind == "jobmanager":
            return JobManagerCheckpointStorage(path, self._get(options.MAX_MEMORY_STATE_SIZE))
        return None if path is None else FileSystemCheckpointStorage(path)

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> CheckpointConfig:
        if not isinstance(storage, CheckpointStorage):
            raise TypeError(
                f"set_checkpoint_storage: takes a CheckpointStorage, got {type(storage).__name__}; for a folder use "
                "set_checkpoint_storage_dir()"
            )
        storage.write_to(self._configuration)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        """Checkpoints in files under this URI."""
        checked_uri(checkpoint_path, "set_checkpoint_storage_dir")
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoint_path))

    # ------------------------------------------------------------ helpers

    def _get(self, option: ConfigOption) -> Any:
        return options.read(self._configuration, option)

    def _set(self, option: ConfigOption, value: Any) -> CheckpointConfig:
        self._configuration.set(option, value)
        return self
