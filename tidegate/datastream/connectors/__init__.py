"""Sources and sinks. Names are loaded when they are first used, so a worker imports only the connectors of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from tidegate.connectors.collection import CollectionSource
    from tidegate.connectors.datagen import DataGeneratorSource
    from tidegate.connectors.delta.sink import DeltaSink
    from tidegate.connectors.discard import DiscardingSink
    from tidegate.connectors.hybrid_source import HybridSource
    from tidegate.connectors.number_sequence import NumberSequenceSource
    from tidegate.connectors.print_sink import PrintSink
    from tidegate.contracts.collect_sink import CollectSink
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

_MODULES = {
    "Boundedness": "contracts.connectors",
    "BucketAssigner": "datastream.connectors.file_system",
    "BulkFormat": "datastream.connectors.file_system",
    "CollectSink": "contracts.collect_sink",
    "CollectionSource": "connectors.collection",
    "Committer": "contracts.connectors",
    "DataGeneratorSource": "connectors.datagen",
    "DeliveryGuarantee": "contracts.connectors",
    "DeltaSink": "connectors.delta.sink",
    "DiscardingSink": "connectors.discard",
    "FileCompactStrategy": "datastream.connectors.file_system",
    "FileCompactor": "datastream.connectors.file_system",
    "FileEnumeratorProvider": "datastream.connectors.file_system",
    "FileSink": "datastream.connectors.file_system",
    "FileSource": "datastream.connectors.file_system",
    "FileSourceBuilder": "datastream.connectors.file_system",
    "FileSplitAssignerProvider": "datastream.connectors.file_system",
    "HybridSource": "connectors.hybrid_source",
    "NumberSequenceSource": "connectors.number_sequence",
    "OutputFileConfig": "datastream.connectors.file_system",
    "PrintSink": "connectors.print_sink",
    "RollingPolicy": "datastream.connectors.file_system",
    "Sink": "contracts.connectors",
    "SinkContext": "contracts.connectors",
    "SinkWriter": "contracts.connectors",
    "Source": "contracts.connectors",
    "SourceContext": "contracts.connectors",
    "SourceSplit": "contracts.connectors",
    "SplitReader": "contracts.connectors",
    "StreamFormat": "datastream.connectors.file_system",
    "StreamTransformer": "contracts.connectors",
    "SupportsPreprocessing": "contracts.connectors",
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

__getattr__, __dir__ = lazy_names(__name__, {name: f"tidegate.{module}" for name, module in _MODULES.items()})
