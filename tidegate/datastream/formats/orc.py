"""PyFlink's path for `tidegate.formats.orc`."""

from tidegate.formats.orc import (
    OrcBulkWriters,
    OrcColumnarRowInputFormat,
)

__all__ = [
    "OrcBulkWriters",
    "OrcColumnarRowInputFormat",
]
