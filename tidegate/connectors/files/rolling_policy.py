"""When the file sink closes a part file and begins the next one."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError


@dataclass
class PartFileInfo:
    """The open part file of a bucket, as a policy sees it. Times in ms of the worker's clock."""

    bucket_id: str
    creation_time: float
    last_update_time: float
    size: int  # bytes


class RollingPolicy(abc.ABC):
    """Subclass it for a policy of your own; an instance is pickled to the workers.

    A closed file becomes visible when the next checkpoint is complete: a policy decides on the size of files, and the
    checkpoint interval on how soon they are seen. On storage where a file exists only once it is closed (object
    stores, HDFS) every checkpoint closes the file, whatever the policy says.
    """

    @abc.abstractmethod
    def should_roll_on_checkpoint(self, part: PartFileInfo) -> bool:
        """Says whether the part file is finished at a checkpoint. Asked before every one."""

    @abc.abstractmethod
    def should_roll_on_event(self, part: PartFileInfo, element: Any) -> bool:
        """Asked before `element` is written: True writes it into a new file."""

    @abc.abstractmethod
    def should_roll_on_processing_time(self, part: PartFileInfo, current_time: float) -> bool:
        """Asked every bucket check interval while records come, and before every checkpoint."""

    @staticmethod
    def default_rolling_policy(
        part_size: int = 128 << 20, rollover_interval: int = 60_000, inactivity_interval: int = 60_000
    ) -> DefaultRollingPolicy:
        """Finishes a part file by its size in bytes, its age and its idleness in milliseconds."""
        return DefaultRollingPolicy(part_size, rollover_interval, inactivity_interval)

    @staticmethod
    def on_checkpoint_rolling_policy() -> OnCheckpointRollingPolicy:
        """A new file after every checkpoint, never in between."""
        return OnCheckpointRollingPolicy()


class DefaultRollingPolicy(RollingPolicy):
    def __init__(self, part_size: int, rollover_interval: int, inactivity_interval: int) -> None:
        for name, value in (
            ("part_size", part_size),
            ("rollover_interval", rollover_interval),
            ("inactivity_interval", inactivity_interval),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ConfigurationError(f"default_rolling_policy({name}): has to be a whole number > 0, got {value!r}")
        self.part_size = part_size
        self.rollover_interval = rollover_interval
        self.inactivity_interval = inactivity_interval

    def should_roll_on_checkpoint(self, part: PartFileInfo) -> bool:
        return part.size >= self.part_size

    def should_roll_on_event(self, part: PartFileInfo, element: Any) -> bool:
        return part.size >= self.part_size

    def should_roll_on_processing_time(self, part: PartFileInfo, current_time: float) -> bool:
        return (
            current_time - part.creation_time >= self.rollover_interval
            or current_time - part.last_update_time >= self.inactivity_interval
        )


class OnCheckpointRollingPolicy(RollingPolicy):
    def should_roll_on_checkpoint(self, part: PartFileInfo) -> bool:
        return True

    def should_roll_on_event(self, part: PartFileInfo, element: Any) -> bool:
        return False

    def should_roll_on_processing_time(self, part: PartFileInfo, current_time: float) -> bool:
        return False
