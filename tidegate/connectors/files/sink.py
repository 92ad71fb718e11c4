"""The exactly-once file sink: the builder that users call, and the committer. The writer is in `file_writer`."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import BulkWriterFactory, Encoder
from tidegate.connectors.files.bucket_assigner import BucketAssigner
from tidegate.connectors.files.compaction import (
    CompactionSettings,
    FileCommittable,
    FileCompactor,
    FileCompactStrategy,
    MergedFile,
    PendingFile,
)
from tidegate.connectors.files.output_file_config import OutputFileConfig
from tidegate.connectors.files.part_files import hidden_path, open_part_files
from tidegate.connectors.files.partitions import PartitionBucketAssigner, WithoutColumns
from tidegate.connectors.files.rolling_policy import RollingPolicy
from tidegate.connectors.files.writer import FileWriter, FileWriterSettings
from tidegate.contracts.connectors import Committer, Sink, SinkContext, StreamTransformer, SupportsPreprocessing
from tidegate.storage.location import StorageLocation


class FileSink(Sink[Any, FileCommittable], SupportsPreprocessing):
    """Writes records into part files below a folder, exactly once when the job takes checkpoints.

    A file is visible under its own name when it is finished: closed by the rolling policy, and the checkpoint that
    covers it complete. Before that its data lies under a hidden name (leading dot). Without checkpoints everything
    becomes visible when the job ends well, and nothing when it fails.

    Make one with `FileSink.for_row_format(path, encoder)...build()` or `FileSink.for_bulk_format(path, factory)...`.
    The path may be local or a URI that the checkpoint storage understands too (file, s3, gs, abfs, hdfs). On a cluster
    a local path has to be a shared folder.
    """

    def __init__(self, location: StorageLocation, settings: FileWriterSettings) -> None:
        self._location = location
        self._settings = settings

    @staticmethod
    def for_row_format(base_path: str, encoder: Encoder) -> RowFormatBuilder:
        """Records one after the other, each as `encoder` writes it."""
        return RowFormatBuilder(base_path, encoder)

    @staticmethod
    def for_bulk_format(base_path: str, writer_factory: BulkWriterFactory) -> BulkFormatBuilder:
        """Files of a bulk format such as `ParquetBulkWriters.for_row_type(...)`. Every checkpoint finishes a file."""
        return BulkFormatBuilder(base_path, writer_factory)

    def get_transformer(self) -> StreamTransformer | None:
        """The transformer of the stream; None when records need nothing done to them before the sink."""
        return None

    def for_declared_type(self) -> FileSink:
        encoder = self._settings.encoder
        if not isinstance(encoder, Encoder):
            return self
        return FileSink(self._location, dataclasses.replace(self._settings, encoder=encoder.for_declared_type()))

    def create_writer(self, context: SinkContext) -> FileWriter:
        return FileWriter(open_part_files(self._location), self._settings, context)

    def create_committer(self) -> FileCommitter:
        return FileCommitter(self._location)

    def discard_leftovers(self, job_id: str) -> None:
        files = open_part_files(self._location)
        for name in files.hidden_names(job_id):
            files.delete(hidden_path(job_id, name))
        files.delete_folder_if_empty(job_id)

    def __repr__(self) -> str:
        return f"FileSink({self._location})"


StreamingFileSink = FileSink
"""Its name in older versions of Flink."""


class _FormatBuilder:
    """What both builders share."""

    _DEFAULT_POLICY: RollingPolicy

    def __init__(self, base_path: str, encoder: Encoder | BulkWriterFactory, where: str) -> None:
        if not isinstance(base_path, str) or not base_path.strip():
            raise ConfigurationError(f"{where}: base_path has to be a path or a URI, got {base_path!r}")
        self._location = StorageLocation.parse(base_path)
        self._encoder = encoder
        self._assigner: BucketAssigner = BucketAssigner.date_time_bucket_assigner()
        self._policy = self._DEFAULT_POLICY
        self._files = OutputFileConfig()
        self._check_interval = 60_000
        self._compaction: CompactionSettings | None = None

    def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> Self:
        """Default: a folder per hour (`date_time_bucket_assigner`)."""
        if not isinstance(bucket_assigner, BucketAssigner):
            raise TypeError(f"with_bucket_assigner: takes a BucketAssigner, got {bucket_assigner!r}")
        self._assigner = bucket_assigner
        return self

    def with_rolling_policy(self, rolling_policy: RollingPolicy) -> Self:
        """When a file is finished and the next one begun. Files of a bulk format are finished at every checkpoint too,
        whatever the policy says."""
        if not isinstance(rolling_policy, RollingPolicy):
            raise TypeError(f"with_rolling_policy: takes a RollingPolicy, got {rolling_policy!r}")
        self._policy = rolling_policy
        return self

    def with_output_file_config(self, output_file_config: OutputFileConfig) -> Self:
        if not isinstance(output_file_config, OutputFileConfig):
            raise TypeError(f"with_output_file_config: takes an OutputFileConfig, got {output_file_config!r}")
        self._files = output_file_config
        return self

    def with_bucket_check_interval(self, interval: int) -> Self:
        """How often, in ms, the rolling policy is asked about the time."""
        if isinstance(interval, bool) or not isinstance(interval, int) or interval <= 0:
            raise ConfigurationError(f"with_bucket_check_interval: has to be milliseconds > 0, got {interval!r}")
        self._check_interval = interval
        return self

    def enable_compact(self, strategy: FileCompactStrategy, compactor: FileCompactor) -> Self:
        """Merge finished files of a bucket before they become visible (each subtask its own)."""
        self._compaction = CompactionSettings.checked(strategy, compactor)
        concatenable = isinstance(self._encoder, Encoder) or getattr(self._encoder, "concatenable", False)
        if compactor.merges and not concatenable:
            raise ConfigurationError(
                "enable_compact: files of this bulk format cannot be put one behind the other; "
                "FileCompactor.concat_file_compactor() is for row formats (and csv without a header). "
                "Let checkpoints be further apart to get larger files."
            )
        return self

    def disable_compact(self) -> Self:
        self._compaction = None
        return self

    def build(self) -> FileSink:
        encoder = self._encoder
        if isinstance(self._assigner, PartitionBucketAssigner) and isinstance(encoder, BulkWriterFactory):
            encoder = WithoutColumns(encoder, self._assigner.columns)
        settings = FileWriterSettings(
            encoder, self._assigner, self._policy, self._files, self._check_interval, self._compaction
        )
        return FileSink(self._location, settings)


class RowFormatBuilder(_FormatBuilder):
    """Made by `FileSink.for_row_format`. The rolling policy is `default_rolling_policy` unless another is set."""

    _DEFAULT_POLICY = RollingPolicy.default_rolling_policy()

    def __init__(self, base_path: str, encoder: Encoder) -> None:
        if not isinstance(encoder, Encoder):
            raise TypeError(
                "FileSink.for_row_format: encoder has to be an Encoder such as Encoder.simple_string_encoder(), "
                f"got {encoder!r}"
            )
        super().__init__(base_path, encoder, "FileSink.for_row_format")


class BulkFormatBuilder(_FormatBuilder):
    """Made by `FileSink.for_bulk_format`. A file per bucket and checkpoint unless a rolling policy makes more."""

    _DEFAULT_POLICY = RollingPolicy.on_checkpoint_rolling_policy()

    def __init__(self, base_path: str, writer_factory: BulkWriterFactory) -> None:
        if not isinstance(writer_factory, BulkWriterFactory):
            raise TypeError(
                "FileSink.for_bulk_format: writer_factory has to be a BulkWriterFactory such as "
                f"ParquetBulkWriters.for_row_type(...), got {writer_factory!r}"
            )
        super().__init__(base_path, writer_factory, "FileSink.for_bulk_format")


class FileCommitter(Committer[FileCommittable]):
    """Gives finished files their names. A file that has its name already is fine: it was committed before a crash."""

    def __init__(self, location: StorageLocation) -> None:
        self._files = open_part_files(location)

    def commit(self, committables: list[FileCommittable]) -> list[FileCommittable]:
        first_error: Exception | None = None
        for pending in committables:
            try:
                if isinstance(pending, MergedFile):
                    self._merge(pending)
                else:
                    self._publish(pending)
            except Exception as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return []

    def _publish(self, pending: PendingFile) -> None:
        if not pending.copy:
            self._files.publish(pending.hidden, pending.final, pending.length)
            return
        self._files.publish_copy(pending.hidden, pending.final, pending.length)
        if pending.delete_source:
            self._files.delete(pending.hidden)

    def _merge(self, merged: MergedFile) -> None:
        inputs = [(file.hidden, file.length) for file in merged.inputs]
        self._files.publish_joined(inputs, merged.final, merged.delimiter)
        for file in merged.inputs:
            if not file.copy or file.delete_source:
                self._files.delete(file.hidden)
