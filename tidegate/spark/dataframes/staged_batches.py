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

import json
import uuid
from dataclasses import dataclass

from tidegate.common.errors import TidegateError
from tidegate.spark.dataframes.landing import LandedFile
from tidegate.storage.files import Files, open_files, write_file
from tidegate.storage.location import StorageLocation

_ID, _FAILURE = "staging.json", "failure.json"
_BATCHES, _PROGRESS, _DATA = "batches", "progress", "data"


@dataclass(frozen=True)
class LaneProgress:
    read: int  # the batch that is being read
    done: int  # the same, in the last completed checkpoint


@dataclass(frozen=True)
class QueryFailure:
    attempt: int  # of the job
    message: str


class StagedBatches:
    """Both sides' view of the folder. Plain I/O, no state: safe to use from several threads and processes."""

    def __init__(self, folder: StorageLocation) -> None:
        self.folder = folder
        self._files: Files = open_files(folder)

    @property
    def remote(self) -> bool:
        return self._files.remote

    def open_id(self, lanes: int) -> tuple[str, int]:
        """The folder's id and its number of lanes, for good; given to it now when it is new."""
        if self._files.size(_ID) is None:
            write_file(self._files, _ID, json.dumps({"id": uuid.uuid4().hex, "lanes": lanes, "version": 1}).encode())
        found = json.loads(self._files.read(_ID))
        return str(found["id"]), int(found["lanes"])

    # ------------------------------------------------------------ batches

    @staticmethod
    def data_prefix(batch: int) -> str:
        return f"{_DATA}/{batch}/"

    def landed(self) -> list[int]:
        """The batches with a manifest, in order."""
        return sorted(int(name.removesuffix(".json")) for name in self._files.names(_BATCHES))

    def is_landed(self, batch: int) -> bool:
        return self._files.size(_manifest(batch)) is not None

    def write_manifest(self, batch: int, files: tuple[LandedFile, ...]) -> None:
        rows = [[file.partition, file.name, file.rows] for file in files]
        write_file(self._files, _manifest(batch), json.dumps({"batch": batch, "files": rows}).encode())

    def read_manifest(self, batch: int) -> tuple[LandedFile, ...]:
        found = json.loads(self._files.read(_manifest(batch)))
        return tuple(LandedFile(int(partition), name, int(rows)) for partition, name, rows in found["files"])

    def delete(self, batch: int) -> None:
        """The manifest last: what is left of an interrupted deletion is found again."""
        self._files.delete_directory(f"{_DATA}/{batch}")
        self._files.delete_file(_manifest(batch))

    # ------------------------------------------------------------ progress

    def write_progress(self, lane: int, progress: LaneProgress) -> None:
        data = json.dumps({"read": progress.read, "done": progress.done}).encode()
        write_file(self._files, f"{_PROGRESS}/lane-{lane}.json", data)

    def read_progress(self, lanes: int) -> list[LaneProgress]:
        """Of every lane; 0 for one that has said nothing yet."""
        there = set(self._files.names(_PROGRESS))
        found = []
        for lane in range(lanes):
            name = f"lane-{lane}.json"
            values = json.loads(self._files.read(f"{_PROGRESS}/{name}")) if name in there else {"read": 0, "done": 0}
            found.append(LaneProgress(int(values["read"]), int(values["done"])))
        return found

    # ------------------------------------------------------------ failure

    def write_failure(self, failure: QueryFailure) -> None:
        data = json.dumps({"attempt": failure.attempt, "message": failure.message}).encode()
        write_file(self._files, _FAILURE, data)

    def read_failure(self) -> QueryFailure | None:
        if self._files.size(_FAILURE) is None:
            return None
        found = json.loads(self._files.read(_FAILURE))
        return QueryFailure(int(found["attempt"]), str(found["message"]))

    def clear_failure(self) -> None:
        self._files.delete_file(_FAILURE)


def _manifest(batch: int) -> str:
    return f"{_BATCHES}/{batch:020d}.json"


class BatchGoneError(TidegateError):
    """A batch that a reader needs was deleted."""
