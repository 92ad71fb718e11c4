"""Files: PyFlink's names in PyFlink's place."""

from __future__ import annotations

from tidegate.datastream.connectors.bucket_assigner import BucketAssigner, BucketContext
from tidegate.datastream.connectors.file_sink import FileSink, RowFormatBuilder, StreamingFileSink
from tidegate.datastream.connectors.output_file_config import OutputFileConfig
from tidegate.datastream.connectors.rolling_policy import (
    DefaultRollingPolicy,
    OnCheckpointRollingPolicy,
    PartFileInfo,
    RollingPolicy,
)

__all__ = [
    "FileSink",
    "StreamingFileSink",
    "RowFormatBuilder",
    "BucketAssigner",
    "BucketContext",
    "RollingPolicy",
    "DefaultRollingPolicy",
    "OnCheckpointRollingPolicy",
    "PartFileInfo",
    "OutputFileConfig",
]
