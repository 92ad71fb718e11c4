"""Files: PyFlink's names in PyFlink's place."""

from __future__ import annotations

from tidegate.connectors.files.bucket_assigner import BucketAssigner, BucketContext
from tidegate.connectors.files.compaction import FileCompactor, FileCompactStrategy
from tidegate.connectors.files.output_file_config import OutputFileConfig
from tidegate.connectors.files.partitions import PartitionBucketAssigner
from tidegate.connectors.files.rolling_policy import (
    DefaultRollingPolicy,
    OnCheckpointRollingPolicy,
    PartFileInfo,
    RollingPolicy,
)
from tidegate.connectors.files.sink import BulkFormatBuilder, FileSink, RowFormatBuilder, StreamingFileSink
from tidegate.connectors.files.source import (
    FileEnumeratorProvider,
    FileSource,
    FileSourceBuilder,
    FileSplitAssignerProvider,
)
from tidegate.contracts.file_formats import BulkFormat, FileFormat, FileRecordReader
from tidegate.formats.text_lines import StreamFormat

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
    "PartitionBucketAssigner",
    "RollingPolicy",
    "DefaultRollingPolicy",
    "OnCheckpointRollingPolicy",
    "PartFileInfo",
    "OutputFileConfig",
]
