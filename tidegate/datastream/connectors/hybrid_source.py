"""PyFlink's path for `tidegate.connectors.hybrid_source`."""

from tidegate.connectors.hybrid_source import (
    HybridSource,
    HybridSourceBuilder,
    HybridSplit,
)

__all__ = [
    "HybridSource",
    "HybridSourceBuilder",
    "HybridSplit",
]
