"""The file source: what users call. The readers are in `file_reading`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tidegate.common.errors import ConfigurationError, of_type
from tidegate.common.time import Duration
from tidegate.connectors.files.folder_watch import FolderEnumerator
from tidegate.connectors.files.input_files import FileStatus, InputFiles
from tidegate.connectors.files.reading import FileListReader, FileListSplit, FilePart, MonitorOffset, MonitorSplit
from tidegate.contracts.connectors import (
    Boundedness,
    Source,
    SourceContext,
    SourceSplit,
    SplitEnumerator,
    SplitReader,
)
from tidegate.contracts.file_formats import BulkFormat, FileFormat
from tidegate.formats.text_lines import StreamFormat
from tidegate.storage.location import StorageLocation

_SPLIT_BYTES = 64 << 20


class FileEnumeratorProvider:
    """Whether files are cut into parts that are read in parallel. `split_bytes`: the size of a part, None for whole
    files. A format that cannot be split is read as whole files either way."""

    def __init__(self, split_bytes: int | None) -> None:
        if split_bytes is not None and (not isinstance(split_bytes, int) or split_bytes <= 0):
            raise ConfigurationError(f"FileEnumeratorProvider(split_bytes): has to be bytes > 0, got {split_bytes!r}")
        self.split_bytes = split_bytes

    @staticmethod
    def default_splittable_file_enumerator() -> FileEnumeratorProvider:
        return FileEnumeratorProvider(_SPLIT_BYTES)

    @staticmethod
    def default_non_splittable_file_enumerator() -> FileEnumeratorProvider:
        return FileEnumeratorProvider(None)

    def parts(self, file_format: FileFormat, status: FileStatus) -> list[FilePart]:
        whole = FilePart.whole(status)
        size = self.split_bytes
        if size is None or status.size <= size or not file_format.is_splittable(status.path):
            return [whole]
        count = -(-status.size // size)
        cuts = [status.size * i // count for i in range(count + 1)]
        return [
            FilePart(status.path, status.size, status.modified_ns, start, end)
            for start, end in itertools.pairwise(cuts)
        ]


class FileSplitAssignerProvider:
    """Says which subtask reads which part of the files."""

    @staticmethod
    def locality_aware_split_assigner() -> FileSplitAssignerProvider:
        """Accepted for programs that come from PyFlink. Parts are dealt out in turn when the job is submitted; where
        their bytes lie has no effect."""
        return FileSplitAssignerProvider()


class FileSource(Source[Any]):
    """Reads files below one or more paths (folders are walked; names with a leading '.' or '_' are left out).

    Made with `FileSource.for_record_stream_format(format, *paths)...build()`. A path is local or a URI that checkpoint
    storage understands too (file, s3, gs, abfs, hdfs). Bounded by default: the files that are there when the job is
    submitted. With `monitor_continuously` also those that appear later, each once.

    Exactly once as long as files do not change: see docs/connectors.md.
    """

    gives_timestamps = False

    def __init__(
        self,
        file_format: FileFormat,
        locations: Sequence[StorageLocation],
        enumerator: FileEnumeratorProvider,
        interval_ms: int | None,
    ) -> None:
        self._format = file_format
        self._locations = tuple(locations)
        self._enumerator = enumerator
        self._interval_ms = interval_ms  # None: bounded
        self._files: InputFiles | None = None  # of this process

    @staticmethod
    def for_record_stream_format(stream_format: StreamFormat, *paths: str) -> FileSourceBuilder:
        if not isinstance(stream_format, StreamFormat):
            raise TypeError(
                "FileSource.for_record_stream_format: takes a StreamFormat such as StreamFormat.text_line_format(), "
                f"got {stream_format!r}"
            )
        return FileSourceBuilder(stream_format, paths)

    @staticmethod
    def for_bulk_file_format(bulk_format: BulkFormat, *paths: str) -> FileSourceBuilder:
        if not isinstance(bulk_format, BulkFormat):
            raise TypeError(
                "FileSource.for_bulk_file_format: takes a BulkFormat such as ParquetColumnarRowInputFormat(row_type), "
                f"got {bulk_format!r}"
            )
        return FileSourceBuilder(bulk_format, paths)

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._interval_ms is None else Boundedness.CONTINUOUS_UNBOUNDED

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        found = self._open_files().list_all()  # also says early when a path does not exist
        if self._interval_ms is not None:
            return []
        parts = [part for status in found for part in self._enumerator.parts(self._format, status)]
        lists = [tuple(parts[i::parallelism]) for i in range(min(parallelism, len(parts)))]
        return [FileListSplit(f"list-{i}", mine) for i, mine in enumerate(lists)]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        files, parts = self._open_files(), of_type(FileListSplit, split)
        return FileListReader(files, self._format, parts, offset, context, queued=self._interval_ms is not None)

    @property
    def reads_in_turn(self) -> bool:  # type: ignore[override]
        return self._interval_ms is not None

    @property
    def discovery_interval_ms(self) -> float | None:
        return self._interval_ms

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return FolderEnumerator(self._open_files(), parallelism)

    def restored_splits(self, split: SourceSplit, offset: Any, done: bool) -> list[tuple[SourceSplit, Any, bool]]:
        if not isinstance(split, MonitorSplit):
            return [(split, offset, done)]
        return [] if offset is None else of_type(MonitorOffset, offset).as_lists()

    def _open_files(self) -> InputFiles:
        if self._files is None:
            self._files = InputFiles(self._locations)
        return self._files

    def get_produced_type(self) -> Any:
        return self._format.get_produced_type()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": None}

    def __repr__(self) -> str:
        return f"FileSource({', '.join(map(str, self._locations))})"


class FileSourceBuilder:
    """Made by `FileSource.for_record_stream_format` and `for_bulk_file_format`."""

    def __init__(self, file_format: FileFormat, paths: Sequence[str]) -> None:
        if not paths:
            raise ConfigurationError("FileSource: no path given; name the files or folders to read")
        for path in paths:
            if not isinstance(path, str) or not path.strip():
                raise ConfigurationError(f"FileSource: a path has to be a path or a URI, got {path!r}")
        self._format = file_format
        self._locations = [StorageLocation.parse(path) for path in paths]
        self._enumerator = FileEnumeratorProvider.default_splittable_file_enumerator()
        self._interval_ms: int | None = None

    def monitor_continuously(self, discovery_interval: Duration) -> FileSourceBuilder:
        """Go on without end: look for new files every interval."""
        if not isinstance(discovery_interval, Duration) or discovery_interval.to_milliseconds() < 1:
            raise ConfigurationError(
                f"monitor_continuously: takes a Duration of at least 1 ms (Duration.of_seconds(10)), got "
                f"{discovery_interval!r}"
            )
        self._interval_ms = discovery_interval.to_milliseconds()
        return self

    def process_static_file_set(self) -> FileSourceBuilder:
        """The default: the files that are there when the job is submitted."""
        self._interval_ms = None
        return self

    def set_file_enumerator(self, file_enumerator: FileEnumeratorProvider) -> FileSourceBuilder:
        if not isinstance(file_enumerator, FileEnumeratorProvider):
            raise TypeError(f"set_file_enumerator: takes a FileEnumeratorProvider, got {file_enumerator!r}")
        self._enumerator = file_enumerator
        return self

    def set_split_assigner(self, split_assigner: FileSplitAssignerProvider) -> FileSourceBuilder:
        if not isinstance(split_assigner, FileSplitAssignerProvider):
            raise TypeError(f"set_split_assigner: takes a FileSplitAssignerProvider, got {split_assigner!r}")
        return self

    def build(self) -> FileSource:
        return FileSource(self._format, self._locations, self._enumerator, self._interval_ms)
