"""PyFlink's path for `tidegate.connectors.datagen`."""

from tidegate.connectors.datagen import (
    DataGeneratorReader,
    DataGeneratorSource,
    DataGeneratorSplit,
)

__all__ = [
    "DataGeneratorReader",
    "DataGeneratorSource",
    "DataGeneratorSplit",
]
