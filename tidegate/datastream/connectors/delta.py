"""PyFlink's path for `tidegate.connectors.delta.sink`."""

from tidegate.connectors.delta.sink import (
    CommittedLots,
    DeltaCommitter,
    DeltaSink,
    DeltaWriter,
    Lot,
)

__all__ = [
    "CommittedLots",
    "DeltaCommitter",
    "DeltaSink",
    "DeltaWriter",
    "Lot",
]
