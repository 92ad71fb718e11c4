"""Where working state lives. An instance is only a choice: the configuration holds it."""

from __future__ import annotations

import abc
import enum

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.datastream.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    checked_uri,
    local_path,
)


class StateBackend(abc.ABC):
    """Base of the state backends."""

    @abc.abstractmethod
    def write_to(self, configuration: Configuration) -> None:
        """Writes this choice into the configuration."""


class HashMapStateBackend(StateBackend):
    """Working state as Python objects on the heap: the fastest; has to fit into memory."""

    def write_to(self, configuration: Configuration) -> None:
        configuration.set(options.STATE_BACKEND, "hashmap")

    def __repr__(self) -> str:
        return "HashMapStateBackend()"


class _HeapWithStorage(StateBackend):
    """The old heap backends, which choose the checkpoint storage and the folder of savepoints too."""

    def __init__(self, storage: CheckpointStorage, savepoint_path: str | None, asynchronous: bool) -> None:
        self._chosen_storage = storage
        self._savepoint_path = None if savepoint_path is None else checked_uri(savepoint_path, type(self).__name__)
        self._asynchronous = asynchronous

    def is_using_asynchronous_snapshots(self) -> bool:
        """What was given to the constructor. It has no effect: snapshots are always written asynchronously."""
        return self._asynchronous

    def write_to(self, configuration: Configuration) -> None:
        configuration.set(options.STATE_BACKEND, "hashmap")
        self._chosen_storage.write_to(configuration)
        if self._savepoint_path is not None:
            configuration.set(options.SAVEPOINT_DIR, self._savepoint_path)


class MemoryStateBackend(_HeapWithStorage):
    """The old name of the heap backend with checkpoints in the JobManager's memory."""

    def __init__(
        self,
        checkpoint_path: str | None = None,
        savepoint_path: str | None = None,
        max_state_size: int | None = None,
        using_asynchronous_snapshots: bool = True,
    ) -> None:
        self._storage = JobManagerCheckpointStorage(checkpoint_path, max_state_size)
        super().__init__(self._storage, savepoint_path, using_asynchronous_snapshots)

    def get_max_state_size(self) -> int:
        return self._storage.get_max_state_size()

    def __repr__(self) -> str:
        return "MemoryStateBackend()"


class FsStateBackend(_HeapWithStorage):
    """The old name of the heap backend with checkpoints in files."""

    def __init__(
        self,
        checkpoint_directory_uri: str,
        default_savepoint_directory_uri: str | None = None,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int | None = None,
        using_asynchronous_snapshots: bool = True,
    ) -> None:
        self._storage = FileSystemCheckpointStorage(
            checkpoint_directory_uri, file_state_size_threshold, write_buffer_size
        )
        super().__init__(self._storage, default_savepoint_directory_uri, using_asynchronous_snapshots)

    def get_checkpoint_path(self) -> str | None:
        return self._storage.get_checkpoint_path()

    def get_min_file_size_threshold(self) -> int:
        return self._storage.get_min_file_size_threshold()

    def get_write_buffer_size(self) -> int | None:
        return self._storage.get_write_buffer_size()

    def __repr__(self) -> str:
        return f"FsStateBackend({self.get_checkpoint_path()!r})"


class PredefinedOptions(enum.Enum):
    """Sets of RocksDB settings by the disk they suit."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


class EmbeddedRocksDBStateBackend(StateBackend):
    """Working state in RocksDB on the worker's disk: larger than memory, with incremental checkpoints (on unless they
    are switched off here or by execution.checkpointing.incremental)."""

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        self._incremental = enable_incremental_checkpointing
        self._db_storage_paths: list[str] | None = None
        self._transfer_threads = 4
        self._predefined_options = PredefinedOptions.DEFAULT
        self._options_factory: str | None = None

    def is_incremental_checkpoints_enabled(self) -> bool:
        return self._incremental is not False  # on unless switched off

    def set_db_storage_paths(self, *paths: str) -> None:
        """Folders on the workers' local disks."""
        self._db_storage_paths = [local_path(path, "set_db_storage_paths") for path in paths] or None

    def get_db_storage_paths(self) -> list[str] | None:
        return None if self._db_storage_paths is None else list(self._db_storage_paths)

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        if not isinstance(options, PredefinedOptions):
            raise TypeError(f"set_predefined_options: takes a PredefinedOptions, got {options!r}")
        self._predefined_options = options

    def get_predefined_options(self) -> PredefinedOptions:
        return self._predefined_options

    def set_options(self, options_factory_class_name: str) -> None:
        """Kept, but a job that is given one is refused: options factories are Java classes."""
        self._options_factory = options_factory_class_name

    def get_options(self) -> str | None:
        return self._options_factory

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        """Kept without effect: each task writes its snapshot with one thread."""
        if number_of_transfering_threads < 1:
            raise ConfigurationError(
                f"set_number_of_transfer_threads: at least 1 is needed, got {number_of_transfering_threads}"
            )
        self._transfer_threads = number_of_transfering_threads

    def get_number_of_transfer_threads(self) -> int:
        return self._transfer_threads

    def write_to(self, configuration: Configuration) -> None:
        if self._options_factory is not None:
            raise ConfigurationError(
                f"{type(self).__name__}.set_options({self._options_factory!r}): options factories are Java classes, "
                "which Tidegate cannot use; set the options themselves (state.backend.rocksdb.*, see "
                "docs/configuration.md)"
            )
        configuration.set(options.STATE_BACKEND, "rocksdb")
        if self._db_storage_paths is not None:
            configuration.set(options.ROCKSDB_LOCAL_DIRECTORIES, self._db_storage_paths)
        if self._predefined_options is not PredefinedOptions.DEFAULT:
            configuration.set(options.ROCKSDB_PREDEFINED_OPTIONS, self._predefined_options.name)
        if self._incremental is not None:
            configuration.set(options.INCREMENTAL, self._incremental)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RocksDBStateBackend(EmbeddedRocksDBStateBackend):
    """The old name of the RocksDB backend with checkpoints in files."""

    def __init__(self, checkpoint_data_uri: str, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__(enable_incremental_checkpointing)
        self._storage = FileSystemCheckpointStorage(checkpoint_data_uri)

    def write_to(self, configuration: Configuration) -> None:
        super().write_to(configuration)
        self._storage.write_to(configuration)
