"""The staging folder of a Structured Streaming source: what lies where, and who writes it.

| path | written by | holds |
|---|---|---|
| `staging.json` | driver, first | the folder's id, which every split remembers, and the number of lanes |
| `spark/` | Spark | the query's own checkpoint: offsets and commits |
| `data/<batch>/part-….parquet` | executors | the rows of a micro-batch, a file per partition |
| `batches/<batch>.json` | driver | the *manifest*: the files that count. With it the batch is landed, for good |
| `progress/lane-<i>.json` | the reader of lane i | the batch that it reads, and that of its last checkpoint |
| `failure.json` | driver | why the query ended, and during which attempt of the job |

Spark may run a batch again (a crash before its commit): one that has its manifest is left as it is, whatever the
second run would give, since a reader may have seen it. A batch is deleted when all lanes' completed checkpoints are
past it and Spark has committed it.
"""

from __future__ import annotations

import re
import uuid
from typing import Annotated, TypeVar

import msgspec

from tidegate.common.decoding import from_json
from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.texts import encodable
from tidegate.spark.dataframes.landing import LandedFile
from tidegate.storage.files import Files, open_files, write_file
from tidegate.storage.location import StorageLocation

_ID, _FAILURE = "staging.json", "failure.json"
_BATCHES, _PROGRESS, _DATA = "batches", "progress", "data"
_VERSION = 1
_ANEW = "begin anew: without the checkpoints of the job, and with an empty staging folder"
_MANIFEST = re.compile(r"(\d{20})\.json")

T = TypeVar("T")
_Count = Annotated[int, msgspec.Meta(ge=0)]


class LaneProgress(msgspec.Struct, frozen=True):
    read: _Count  # the batch that is being read
    done: _Count  # the same, in the last completed checkpoint


class QueryFailure(msgspec.Struct, frozen=True):
    attempt: int  # of the job
    message: str


class _Identity(msgspec.Struct, frozen=True):
    id: str
    lanes: Annotated[int, msgspec.Meta(ge=1)]
    version: int


class _Manifest(msgspec.Struct, frozen=True):
    batch: int
    files: list[tuple[_Count, str, _Count]]  # partition, name, rows


class StagedBatches:
    """Both sides' view of the folder. Plain I/O, no state: safe to use from several threads and processes.

    What is read and is not what was written is a DamagedStagingError; what cannot be read now is a SnapshotError of the
    storage."""

    def __init__(self, folder: StorageLocation) -> None:
        self.folder = folder
        self._files: Files = open_files(folder)

    @property
    def remote(self) -> bool:
        return self._files.remote

    def open_id(self, lanes: int) -> tuple[str, int]:
        """The folder's id and its number of lanes, for good; given to it now when it is new."""
        if self._files.size(_ID) is None:
            self._write(_ID, _Identity(uuid.uuid4().hex, lanes, _VERSION))
        found = self._read(_ID, _Identity, f"restore it, or {_ANEW}")
        if found.version > _VERSION:
            raise ConfigurationError(
                f"the staging folder {self.folder} has version {found.version}, this Tidegate reads up to {_VERSION}: "
                "run the job with the version of Tidegate that made the folder, or a newer one"
            )
        return found.id, found.lanes

    # ------------------------------------------------------------ batches

    @staticmethod
    def data_prefix(batch: int) -> str:
        return f"{_DATA}/{batch}/"

    def landed(self) -> list[int]:
        """The batches with a manifest, in order."""
        names = map(_MANIFEST.fullmatch, self._files.names(_BATCHES))
        return sorted(int(name[1]) for name in names if name is not None)

    def is_landed(self, batch: int) -> bool:
        return self._files.size(_manifest(batch)) is not None

    def write_manifest(self, batch: int, files: tuple[LandedFile, ...]) -> None:
        self._write(_manifest(batch), _Manifest(batch, [(file.partition, file.name, file.rows) for file in files]))

    def read_manifest(self, batch: int) -> tuple[LandedFile, ...]:
        name, advice = _manifest(batch), f"it names the rows of a landed batch: restore it, or {_ANEW}"
        found = self._read(name, _Manifest, advice)
        if found.batch != batch:
            raise self._damaged(name, f"it is that of batch {found.batch}", advice)
        return tuple(LandedFile(*file) for file in found.files)

    def delete(self, batch: int) -> None:
        """The manifest last: what is left of an interrupted deletion is found again."""
        self._files.delete_directory(f"{_DATA}/{batch}")
        self._files.delete_file(_manifest(batch))

    # ------------------------------------------------------------ progress

    def write_progress(self, lane: int, progress: LaneProgress) -> None:
        self._write(f"{_PROGRESS}/lane-{lane}.json", progress)

    def read_progress(self, lanes: int) -> list[LaneProgress]:
        """Of every lane; 0 for one that has said nothing yet."""
        there = set(self._files.names(_PROGRESS))
        found = []
        for lane in range(lanes):
            name = f"lane-{lane}.json"
            advice = "delete it and start the job again from its latest checkpoint: the source writes it anew"
            said = self._read(f"{_PROGRESS}/{name}", LaneProgress, advice) if name in there else LaneProgress(0, 0)
            found.append(said)
        return found

    # ------------------------------------------------------------ failure

    def write_failure(self, failure: QueryFailure) -> None:
        self._write(_FAILURE, QueryFailure(failure.attempt, encodable(failure.message)))

    def read_failure(self) -> QueryFailure | None:
        if self._files.size(_FAILURE) is None:
            return None
        return self._read(_FAILURE, QueryFailure, "it says why a query ended: delete it, and start the job again")

    def clear_failure(self) -> None:
        self._files.delete_file(_FAILURE)

    # ------------------------------------------------------------ files

    def _write(self, name: str, content: msgspec.Struct) -> None:
        write_file(self._files, name, msgspec.json.encode(content))

    def _read(self, name: str, kind: type[T], advice: str) -> T:
        return from_json(self._files.read(name), kind, lambda why: self._damaged(name, why, advice))

    def _damaged(self, name: str, why: str, advice: str) -> DamagedStagingError:
        return DamagedStagingError(f"{self._files.describe(name)} is damaged ({why}): {advice}")


def _manifest(batch: int) -> str:
    return f"{_BATCHES}/{batch:020d}.json"


class DamagedStagingError(ConfigurationError):
    """A file of the staging folder is not what was written; the text says which, and what to do."""


class BatchGoneError(TidegateError):
    """A batch that a reader needs was deleted."""
