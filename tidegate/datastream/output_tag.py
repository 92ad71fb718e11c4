"""PyFlink's path for `tidegate.contracts.output_tag`."""

from tidegate.contracts.output_tag import (
    OutputTag,
)

__all__ = [
    "OutputTag",
]
