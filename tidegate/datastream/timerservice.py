"""PyFlink's path for `tidegate.contracts.timer_service`."""

from tidegate.contracts.timer_service import (
    TimerService,
)

__all__ = [
    "TimerService",
]
