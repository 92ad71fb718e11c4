"""PyFlink's path for `tidegate.contracts.connectors`."""

from tidegate.contracts.connectors import (
    Boundedness,
    Committer,
    DeliveryGuarantee,
    Sink,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceSplit,
    SplitReader,
    StreamTransformer,
    SupportsPreprocessing,
)

__all__ = [
    "Boundedness",
    "Committer",
    "DeliveryGuarantee",
    "Sink",
    "SinkContext",
    "SinkWriter",
    "Source",
    "SourceContext",
    "SourceSplit",
    "SplitReader",
    "StreamTransformer",
    "SupportsPreprocessing",
]
