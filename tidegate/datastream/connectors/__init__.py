"""Sources and sinks. Names are loaded when they are first used, so a worker imports only the connectors of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.datastream.connectors.base import (
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
    from tidegate.datastream.connectors.collect import CollectSink
    from tidegate.datastream.connectors.collection import CollectionSource
    from tidegate.datastream.connectors.datagen import DataGeneratorSource
    from tidegate.datastream.connectors.delta import DeltaSink
    from tidegate.datastream.connectors.discard import DiscardingSink
    from tidegate.datastream.connectors.file_system import (
        BucketAssigner,
        BulkFormat,
        FileCompactor,
        FileCompactStrategy,
        FileEnumeratorProvider,
        FileSink,
        FileSource,
        FileSourceBuilder,
        FileSplitAssignerProvider,
        OutputFileConfig,
        RollingPolicy,
        StreamFormat,
    )
    from tidegate.datastream.connectors.hybrid_source import HybridSource
    from tidegate.datastream.connectors.number_seq import NumberSequenceSource
    from tidegate.datastream.connectors.print_sink import PrintSink

_MODULES = {
    "Boundedness": "base",
    "BucketAssigner": "file_system",
    "BulkFormat": "file_system",
    "CollectSink": "collect",
    "CollectionSource": "collection",
    "Committer": "base",
    "DataGeneratorSource": "datagen",
    "DeliveryGuarantee": "base",
    "DeltaSink": "delta",
    "DiscardingSink": "discard",
    "FileCompactStrategy": "file_system",
    "FileCompactor": "file_system",
    "FileEnumeratorProvider": "file_system",
    "FileSink": "file_system",
    "FileSource": "file_system",
    "FileSourceBuilder": "file_system",
    "FileSplitAssignerProvider": "file_system",
    "HybridSource": "hybrid_source",
    "NumberSequenceSource": "number_seq",
    "OutputFileConfig": "file_system",
    "PrintSink": "print_sink",
    "RollingPolicy": "file_system",
    "Sink": "base",
    "SinkContext": "base",
    "SinkWriter": "base",
    "Source": "base",
    "SourceContext": "base",
    "SourceSplit": "base",
    "SplitReader": "base",
    "StreamFormat": "file_system",
    "StreamTransformer": "base",
    "SupportsPreprocessing": "base",
}

__all__ = [
    "Boundedness",
    "BucketAssigner",
    "BulkFormat",
    "CollectSink",
    "CollectionSource",
    "Committer",
    "DataGeneratorSource",
    "DeliveryGuarantee",
    "DeltaSink",
    "DiscardingSink",
    "FileCompactStrategy",
    "FileCompactor",
    "FileEnumeratorProvider",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "FileSplitAssignerProvider",
    "HybridSource",
    "NumberSequenceSource",
    "OutputFileConfig",
    "PrintSink",
    "RollingPolicy",
    "Sink",
    "SinkContext",
    "SinkWriter",
    "Source",
    "SourceContext",
    "SourceSplit",
    "SplitReader",
    "StreamFormat",
    "StreamTransformer",
    "SupportsPreprocessing",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
