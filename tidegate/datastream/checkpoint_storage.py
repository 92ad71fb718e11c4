"""Where checkpoints are stored."""

from __future__ import annotations

import abc
import re
from pathlib import PurePath

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError


class CheckpointStorage(abc.ABC):
    """Base of the kinds of storage. An instance is only a choice: the configuration holds it."""

    def __init__(self, checkpoint_path: str | None) -> None:
        self._checkpoint_path = checkpoint_path

    def get_checkpoint_path(self) -> str | None:
        return self._checkpoint_path

    def get_savepoint_path(self) -> str | None:
        """Always None: the folder for savepoints is `env.set_default_savepoint_directory`."""
        return None

    @abc.abstractmethod
    def write_to(self, configuration: Configuration) -> None:
        """Writes this choice into the configuration."""


class JobManagerCheckpointStorage(CheckpointStorage):
    """Checkpoints in the memory of the JobManager: for small state and for tests; they are gone with the driver."""

    DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024

    def __init__(self, checkpoint_path: str | None = None, max_state_size: int | None = None) -> None:
        super().__init__(None if checkpoint_path is None else checked_uri(checkpoint_path, type(self).__name__))
        size = self.DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size
        if size <= 0:
            raise ConfigurationError(f"JobManagerCheckpointStorage(max_state_size) has to be > 0, got {size}")
        self._max_state_size = size

    def get_max_state_size(self) -> int:
        """Bytes of one subtask's state that one checkpoint may hold."""
        return self._max_state_size

    def write_to(self, configuration: Configuration) -> None:
        configuration.set(options.CHECKPOINT_STORAGE, "jobmanager")
        configuration.set(options.MAX_MEMORY_STATE_SIZE, self._max_state_size)
        if self._checkpoint_path is not None:
            configuration.set(options.CHECKPOINT_DIR, self._checkpoint_path)

    def __repr__(self) -> str:
        return f"JobManagerCheckpointStorage(max_state_size={self._max_state_size})"


class FileSystemCheckpointStorage(CheckpointStorage):
    """Checkpoints in files under a URI (`file:///...`, `s3://bucket/...`) that all workers and the driver can reach.

    The two sizes are accepted and kept for programs that set them in PyFlink; Tidegate chooses its own.
    """

    MAX_FILE_STATE_THRESHOLD = 1024 * 1024

    def __init__(
        self, checkpoint_path: str, file_state_size_threshold: int | None = None, write_buffer_size: int | None = None
    ) -> None:
        super().__init__(checked_uri(checkpoint_path, type(self).__name__))
        threshold = -1 if file_state_size_threshold is None else file_state_size_threshold
        threshold = 20 * 1024 if threshold == -1 else threshold
        if not 0 <= threshold <= self.MAX_FILE_STATE_THRESHOLD:
            raise ConfigurationError(
                f"FileSystemCheckpointStorage(file_state_size_threshold) has to be between 0 and "
                f"{self.MAX_FILE_STATE_THRESHOLD}, got {threshold}"
            )
        self._threshold = threshold
        self._write_buffer_size = 4096 if write_buffer_size in (None, -1) else write_buffer_size

    def get_min_file_size_threshold(self) -> int:
        return self._threshold

    def get_write_buffer_size(self) -> int | None:
        return self._write_buffer_size

    def write_to(self, configuration: Configuration) -> None:
        configuration.set(options.CHECKPOINT_STORAGE, "filesystem")
        configuration.set(options.CHECKPOINT_DIR, self._checkpoint_path)

    def __repr__(self) -> str:
        return f"FileSystemCheckpointStorage({self._checkpoint_path!r})"


def checked_uri(path: object, where: str) -> str:
    """A folder as text: a URI, or a path of the local machine, without what a path does not need (`a//b/` is `a/b`), as
    Flink shows it."""
    if isinstance(path, PurePath):
        path = str(path)
    if not isinstance(path, str):
        raise TypeError(f"{where}: the folder has to be a URI or a path, got {type(path).__name__}: {path!r}")
    if not path.strip():
        raise ConfigurationError(f"{where}: the folder is empty; give a URI such as file:///data/checkpoints")
    root, slashes, rest = path.partition("://")
    if not slashes:
        return _tidy(path)
    authority, _, inside = rest.partition("/")
    return f"{root}://{authority}{_tidy('/' + inside) if inside or not authority else ''}"


def local_path(path: object, where: str) -> str:
    """A folder of the local machine: of a `file:` URI the path alone."""
    uri = checked_uri(path, where)
    if not uri.startswith("file:"):
        return uri
    rest = uri.removeprefix("file:")
    return "/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest


def _tidy(path: str) -> str:
    return re.sub("//+", "/", path).rstrip("/") or "/"
