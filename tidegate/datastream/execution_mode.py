"""The runtime modes: who drives the operators of a job."""

from __future__ import annotations

import enum


class RuntimeExecutionMode(enum.Enum):
    STREAMING = 0  # one gang of Spark barrier tasks that runs the whole graph at once
    BATCH = 1  # bounded input as Spark stages
    AUTOMATIC = 2  # BATCH when all sources are bounded, otherwise STREAMING
    MICRO_BATCH = 3  # a query of Spark Structured Streaming; an addition to PyFlink's modes
