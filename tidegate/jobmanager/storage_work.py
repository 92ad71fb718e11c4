"""What the instructions of a JobMaster ask of the checkpoint storage, done on threads of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tidegate.common.errors import SnapshotError
from tidegate.protocol.instructions import DeleteClaimed, DeleteSavepoint, DeleteState, WriteMetadata
from tidegate.state.savepoint.format import write_savepoint_metadata
from tidegate.storage.checkpoint_storage import CheckpointStorage
from tidegate.storage.cleanup import Deletion
from tidegate.storage.filesystem import delete_claimed
from tidegate.storage.job_directory import METADATA_NAME, checkpoint_directory
from tidegate.storage.leases.keeper import DirectoryTakenError
from tidegate.storage.workers import WARN_AFTER_S, Closed, StorageThreads

log = logging.getLogger("tidegate.jobmanager")

_PATIENCE_S = 10.0  # of the end of a job, with a storage in which nothing moves
_AT_ONCE = 100  # paths that are deleted as one piece of work: progress is seen in between

T = TypeVar("T")


def write_metadata(storage: CheckpointStorage, instruction: WriteMetadata) -> None:
    """Makes the checkpoint or savepoint complete, or raises: LeaseLostError when the job is not this run's any more,
    also when that came about while it was written."""
    if not instruction.target:
        storage.write_metadata(instruction.metadata)
        return
    storage.check_owned()
    write_savepoint_metadata(storage.worker_storage().savepoint_files(instruction.target), instruction.metadata)
    storage.check_owned()


class StorageWork:
    """For the thread of a JobManager: nothing blocks but `close`, which also closes the storage, open until then."""

    def __init__(
        self,
        storage: CheckpointStorage,
        threads: StorageThreads | None = None,
        *,
        taken: Callable[[str], object] = lambda why: None,
    ) -> None:
        """`taken`: called on another thread, before the answer, when a write was refused since another run has taken
        the directory for good."""
        self._storage = storage
        self._taken = taken
        self._metadata_left: list[str] = []  # of checkpoints whose deletion was left out
        self._threads = threads or StorageThreads(storage.root or "the JobManager's memory", warn_after_s=WARN_AFTER_S)

    def write_metadata(self, instruction: WriteMetadata, done: Callable[[str | None], None]) -> None:
        """`done` is called on another thread with the error, or None; never when the job has ended meanwhile."""
        metadata, target = instruction.metadata, instruction.target

        def write() -> None:
            error: str | None = None
            try:
                write_metadata(self._storage, instruction)
            except Exception as failure:
                if isinstance(failure, DirectoryTakenError):
                    self._taken(str(failure))
                error = f"{type(failure).__name__}: {failure}"
            done(error)

        kind = f"savepoint {target}" if target else f"checkpoint {metadata.checkpoint_id}"
        what = f"writing the metadata of {kind}"
        if target:
            self._threads.write_savepoint(what, write, target)
        else:
            self._threads.write(what, write, checkpoint_directory(metadata.checkpoint_id))

    def delete_savepoint(self, instruction: DeleteSavepoint) -> None:
        target = instruction.target

        def delete() -> None:
            try:
                self._storage.check_owned()
                files = self._storage.worker_storage().savepoint_files(target)
                files.delete_file(METADATA_NAME, for_good=True)  # first: what is left half deleted is not complete
                files.delete_directory("")
            except SnapshotError as error:
                log.warning("what was written of a failed savepoint is left behind: %s", error)

        self._threads.delete(f"deleting the failed savepoint {target}", delete, [target])

    def delete_state(self, instruction: DeleteState) -> None:
        """In pieces, files first: those of a checkpoint begin with its metadata, so that what is left half deleted is
        not complete.

        When too much waits already the files of a checkpoint stay, all of them. Its metadata does not for long: what is
        asked for later may belong to it, so that begins with the metadata (a path for each such checkpoint)."""
        files = [*self._metadata_left, *instruction.files]
        metadata = [path for path in files if path.endswith(METADATA_NAME)]
        folders = {path.removesuffix(f"/{METADATA_NAME}") for path in metadata} | set(instruction.directories)
        deletions = [Deletion(files=part) for part in _parts(files)]
        deletions += [Deletion(directories=part) for part in _parts(list(instruction.directories))]
        if not deletions or self._threads.delete_pieces([self._piece(one) for one in deletions], folders):
            metadata = []
        self._metadata_left = metadata

    def _piece(self, deletion: Deletion) -> tuple[str, Callable[[], object]]:
        count = len(deletion.files) + len(deletion.directories)
        first = (deletion.files or deletion.directories)[0]
        what = f"deleting {first}" + (f" and {count - 1} more" if count > 1 else "")
        return what, lambda: _warn(self._storage.delete(deletion))

    def delete_orphans(self) -> None:
        self._threads.delete("deleting left-over files", lambda: _warn(self._storage.delete_orphans()), None)

    def delete_claimed(self, instruction: DeleteClaimed, now_ms: float) -> None:
        root, checkpoint_id, older = instruction.root, instruction.checkpoint_id, instruction.older
        what = f"deleting the claimed checkpoint {checkpoint_id} in {root}"

        def delete() -> None:
            try:
                self._storage.check_owned()
            except SnapshotError as error:
                _warn([f"the claimed checkpoint {checkpoint_id} in {root} was not deleted: {error}"])
                return
            _warn(delete_claimed(root, checkpoint_id, now_ms, older, self._storage.options))

        self._threads.delete(what, delete, [])

    def look(self, what: str, do: Callable[[], object]) -> bool:
        """Something else that may block. False after the end of the job: then it is not done."""
        return self._threads.look(what, do)

    def watch(self) -> None:
        """To be called every few seconds: tells of what hangs."""
        self._threads.watch()

    def close(self) -> Closed:
        """Waits for what was asked for, and closes the storage; not for ever."""
        return self._threads.close(self._storage.close, _PATIENCE_S)


def _warn(problems: list[str]) -> None:
    for problem in problems:
        log.warning("%s", problem)


def _parts(paths: list[T]) -> list[list[T]]:
    return [paths[i : i + _AT_ONCE] for i in range(0, len(paths), _AT_ONCE)]
