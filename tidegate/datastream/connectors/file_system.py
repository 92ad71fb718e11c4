"""Files: PyFlink's names in PyFlink's place."""

from __future__ import annotations

from tidegate.datastream.connectors.bucket_assigner import BucketAssigner, BucketContext
from tidegate.datastream.connectors.file_compaction import FileCompactor, FileCompactStrategy
from tidegate.datastream.connectors.file_formats import BulkFormat, FileFormat, FileRecordReader, StreamFormat
from tidegate.datastream.connectors.file_sink import BulkFormatBuilder, FileSink, RowFormatBuilder, StreamingFileSink
from tidegate.datastream.connectors.file_source import (
    FileEnumeratorProvider,
    FileSource,
    FileSourceBuilder,
    FileSplitAssignerProvider,
)
from tidegate.datastream.connectors.output_file_config import OutputFileConfig
from tidegate.datastream.connectors.rolling_policy import (
    DefaultRollingPolicy,
    OnCheckpointRollingPolicy,
    PartFileInfo,
    RollingPolicy,
)

__all__ = [
    "FileSource",
    "FileSourceBuilder",
    "FileEnumeratorProvider",
    "FileSplitAssignerProvider",
    "StreamFormat",
    "BulkFormat",
    "FileFormat",
    "FileRecordReader",
    "FileSink",
    "StreamingFileSink",
    "RowFormatBuilder",
    "BulkFormatBuilder",
    "FileCompactStrategy",
    "FileCompactor",
    "BucketAssigner",
    "BucketContext",
    "RollingPolicy",
    "DefaultRollingPolicy",
    "OnCheckpointRollingPolicy",
    "PartFileInfo",
    "OutputFileConfig",
]
