"""The two clocks a timer can follow."""

from __future__ import annotations

import enum


class TimeDomain(enum.Enum):
    """Which clock made a timer fire."""

    EVENT_TIME = 0  # the watermark
    PROCESSING_TIME = 1  # the wall clock of the worker
