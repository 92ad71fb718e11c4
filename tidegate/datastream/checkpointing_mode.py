"""What a checkpoint guarantees for the state of a job."""

from __future__ import annotations

import enum


class CheckpointingMode(enum.Enum):
    EXACTLY_ONCE = 0  # barriers are aligned (or in-flight records are snapshotted): no record counts twice
    AT_LEAST_ONCE = 1  # barriers never block: after a recovery some records may count twice
