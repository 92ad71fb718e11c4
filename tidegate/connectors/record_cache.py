"""Where the records of a cached stream are kept between jobs: a folder of pickled batches.

A writer puts its records into files of its own; the names of those that count are committed as empty marker files
beside them. So what an attempt that failed has written is never read.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.connectors import (
    Committer,
    Sink,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceSplit,
    SplitReader,
)
from tidegate.storage.files import open_files, write_file
from tidegate.storage.location import StorageLocation

_RECORDS_PER_FILE = 20_000
_DATA, _COMMITTED = "data", "committed"


class CacheSink(Sink[Any, str]):
    def __init__(self, folder: StorageLocation) -> None:
        self.folder = folder

    def create_writer(self, context: SinkContext) -> SinkWriter[Any, str]:
        return _CacheWriter(self.folder, f"{context.subtask}-{context.attempt}")

    def create_committer(self) -> Committer[str]:
        return _CacheCommitter(self.folder)


class _CacheWriter(SinkWriter[Any, str]):
    def __init__(self, folder: StorageLocation, prefix: str) -> None:
        self._files = _open(folder)
        self._prefix = prefix
        self._batches: list[tuple[list[Any], list[int] | None]] = []
        self._records = 0
        self._written: list[str] = []  # names of files that were not committed yet

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._batches.append((values, timestamps))
        self._records += len(values)
        if self._records >= _RECORDS_PER_FILE:
            self._write()

    def flush(self, end_of_input: bool) -> None:
        if self._batches:
            self._write()

    def prepare_commit(self) -> list[str]:
        written, self._written = self._written, []
        return written

    def _write(self) -> None:
        name = f"{self._prefix}-{uuid.uuid4().hex}"
        write_file(self._files, f"{_DATA}/{name}", _pickled(self._batches))
        self._written.append(name)
        self._batches, self._records = [], 0


class _CacheCommitter(Committer[str]):
    def __init__(self, folder: StorageLocation) -> None:
        self._files = _open(folder)

    def commit(self, committables: list[str]) -> list[str]:
        for name in committables:
            write_file(self._files, f"{_COMMITTED}/{name}", b"")
        return []


@dataclass(frozen=True)
class CacheSplit(SourceSplit):
    """One file of the cache. The id of the split is the name of the file."""


class CacheSource(Source[Any]):
    """Reads what a CacheSink has committed."""

    def __init__(self, folder: StorageLocation, type_info: Any = None) -> None:
        self.folder = folder
        self._type_info = type_info

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [CacheSplit(name) for name in _open(self.folder).names(_COMMITTED)]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return _CacheReader(_open(self.folder).read(f"{_DATA}/{split.split_id}"), offset or (0, 0))

    def get_produced_type(self) -> Any:
        return self._type_info


class _CacheReader(SplitReader[Any]):
    def __init__(self, data: bytes, offset: tuple[int, int]) -> None:
        self._batches = [RecordBatch(*batch) for batch in pickle.loads(data)]
        self._batch, self._position = offset  # batch, record in it

    def poll(self, max_records: int) -> RecordBatch | None:
        if self._batch == len(self._batches):
            return None
        batch = self._batches[self._batch]
        end = min(self._position + max_records, len(batch))
        polled = batch.slice(self._position, end)
        self._position = end
        if end == len(batch):
            self._batch, self._position = self._batch + 1, 0
        return polled

    def offset(self) -> tuple[int, int]:
        return self._batch, self._position


def delete_cache(folder: StorageLocation) -> None:
    """Deletes the folder with everything in it. It is no error when it is missing."""
    _open(folder.parent()).delete_directory(folder.name)


def _open(folder: StorageLocation) -> Any:
    return open_files(folder)


def _pickled(batches: list[Any]) -> bytes:
    try:
        return pickle.dumps(batches, 5)
    except (pickle.PicklingError, AttributeError, TypeError):  # instances of local classes, lambdas
        return bytes(cloudpickle.dumps(batches, 5))
