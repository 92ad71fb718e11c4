"""PyFlink's path for `tidegate.connectors.number_sequence`."""

from tidegate.connectors.number_sequence import (
    NumberSequenceReader,
    NumberSequenceSource,
    NumberSequenceSplit,
)

__all__ = [
    "NumberSequenceReader",
    "NumberSequenceSource",
    "NumberSequenceSplit",
]
