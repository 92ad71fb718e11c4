"""Compaction of the file sink: small finished files are merged before anybody sees them.

A finished file does not become a committable at once but waits, hidden, in the writer's state. When enough has come
together in its bucket, the lot becomes one committable; the committer writes the merged file under a hidden name and
then gives it its own, which is idempotent like every commit. So a reader sees each record in exactly one file, and a
crash at any point leads to the same files.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.common.errors import ConfigurationError


@dataclass(frozen=True)
class PendingFile:
    """Committable: `length` bytes under the name `hidden` shall be visible as `final` (both relative to the base)."""

    hidden: str
    final: str
    length: int
    copy: bool = False  # only the first `length` bytes are valid, and an old worker may still have the file open
    delete_source: bool = False  # of a copy: the hidden file belongs to this job

    @property
    def hidden_names(self) -> list[str]:
        return [self.hidden]


@dataclass(frozen=True)
class MergedFile:
    """Committable: the inputs one behind the other shall be visible as `final`."""

    inputs: tuple[PendingFile, ...]
    final: str
    delimiter: bytes

    @property
    def hidden_names(self) -> list[str]:
        return [file.hidden for file in self.inputs]


FileCommittable = PendingFile | MergedFile


class FileCompactStrategy:
    """When the files of a bucket are merged. Made with `FileCompactStrategy.builder()`."""

    def __init__(self, size_threshold: int | None, checkpoints: int | None, threads: int) -> None:
        self.size_threshold = size_threshold  # bytes of all files that wait
        self.checkpoints = checkpoints  # that the oldest file has waited for
        self.threads = threads

    @staticmethod
    def builder() -> FileCompactStrategy.Builder:
        return FileCompactStrategy.Builder()

    class Builder:
        def __init__(self) -> None:
            self._size_threshold: int | None = None
            self._checkpoints: int | None = None
            self._threads = 1

        def set_size_threshold(self, size_threshold: int) -> FileCompactStrategy.Builder:
            """Merge when the files that wait have so many bytes together."""
            self._size_threshold = _positive(size_threshold, "set_size_threshold")
            return self

        def enable_compaction_on_checkpoint(
            self, num_checkpoints_before_compaction: int
        ) -> FileCompactStrategy.Builder:
            """Merge when a file has waited for so many checkpoints, however small it is."""
            self._checkpoints = _positive(num_checkpoints_before_compaction, "enable_compaction_on_checkpoint")
            return self

        def set_num_compact_threads(self, num_compact_threads: int) -> FileCompactStrategy.Builder:
            """Accepted without effect: the committer's helper thread does it."""
            self._threads = _positive(num_compact_threads, "set_num_compact_threads")
            return self

        def build(self) -> FileCompactStrategy:
            if self._size_threshold is None and self._checkpoints is None:
                raise ConfigurationError(
                    "FileCompactStrategy: say when files are merged: set_size_threshold or "
                    "enable_compaction_on_checkpoint"
                )
            return FileCompactStrategy(self._size_threshold, self._checkpoints, self._threads)


def _positive(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigurationError(f"{where}: has to be a whole number > 0, got {value!r}")
    return value


class FileCompactor:
    """Says how the files of a bucket become one."""

    def __init__(self, merges: bool, delimiter: bytes = b"") -> None:
        self.merges = merges
        self.delimiter = delimiter

    @staticmethod
    def concat_file_compactor(file_delimiter: bytes | None = None) -> FileCompactor:
        """One behind the other, with `file_delimiter` between them."""
        if file_delimiter is not None and not isinstance(file_delimiter, bytes):
            raise ConfigurationError(f"concat_file_compactor: file_delimiter has to be bytes, got {file_delimiter!r}")
        return FileCompactor(True, file_delimiter or b"")

    @staticmethod
    def identical_file_compactor() -> FileCompactor:
        """Each file stays as it is; the strategy only delays when it is seen."""
        return FileCompactor(False)


@dataclass(frozen=True)
class CompactionSettings:
    strategy: FileCompactStrategy
    compactor: FileCompactor

    @staticmethod
    def checked(strategy: object, compactor: object) -> CompactionSettings:
        if not isinstance(strategy, FileCompactStrategy):
            raise TypeError(f"enable_compact: strategy has to be a FileCompactStrategy, got {strategy!r}")
        if not isinstance(compactor, FileCompactor):
            raise TypeError(f"enable_compact: compactor has to be a FileCompactor, got {compactor!r}")
        return CompactionSettings(strategy, compactor)


class CompactionQueue:
    """The finished files of a writer that wait. No I/O."""

    def __init__(self, settings: CompactionSettings) -> None:
        self._strategy = settings.strategy
        self._compactor = settings.compactor
        self._waiting: dict[str, list[tuple[PendingFile, int]]] = {}  # bucket -> (file, checkpoints it has waited for)

    def add(self, bucket_id: str, file: PendingFile, waited: int = 0) -> None:
        self._waiting.setdefault(bucket_id, []).append((file, waited))

    def due(self, everything: bool) -> list[FileCommittable]:
        """Called once per checkpoint: what is merged now. The rest has waited for one more."""
        ready: list[FileCommittable] = []
        for bucket_id, files in list(self._waiting.items()):
            counted = [(file, waited + 1) for file, waited in files]
            if everything or self._is_due(counted):
                del self._waiting[bucket_id]
                ready += self._merged([file for file, _ in counted])
            else:
                self._waiting[bucket_id] = counted
        return ready

    def _is_due(self, files: list[tuple[PendingFile, int]]) -> bool:
        size, checkpoints = self._strategy.size_threshold, self._strategy.checkpoints
        if size is not None and sum(file.length for file, _ in files) >= size:
            return True
        return checkpoints is not None and max(waited for _, waited in files) >= checkpoints

    def _merged(self, files: list[PendingFile]) -> list[FileCommittable]:
        if len(files) == 1 or not self._compactor.merges:
            return list(files)
        return [MergedFile(tuple(files), files[0].final, self._compactor.delimiter)]

    def waiting(self) -> tuple[tuple[str, PendingFile, int], ...]:
        return tuple((bucket, file, waited) for bucket, files in self._waiting.items() for file, waited in files)
