"""What becomes of the last checkpoints when a job is cancelled."""

from __future__ import annotations

import enum


class ExternalizedCheckpointRetention(enum.Enum):
    DELETE_ON_CANCELLATION = 0  # kept when the job fails, deleted when it is cancelled
    RETAIN_ON_CANCELLATION = 1  # kept in both cases: you delete them
    NO_EXTERNALIZED_CHECKPOINTS = 2  # deleted whenever the job ends
