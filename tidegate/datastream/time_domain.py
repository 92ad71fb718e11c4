"""PyFlink's path for `tidegate.contracts.time_domain`."""

from tidegate.contracts.time_domain import (
    TimeDomain,
)

__all__ = [
    "TimeDomain",
]
