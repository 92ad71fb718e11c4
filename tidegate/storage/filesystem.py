"""Checkpoint storage in files: the JobManager's side (the workers' side is `worker_storage`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import msgspec

from tidegate.common.errors import ConfigurationError, SnapshotDamagedError, SnapshotError
from tidegate.common.ids import CheckpointId
from tidegate.storage import compression
from tidegate.storage.cleanup import Deletion, OrderedDeletions, checkpoint_files
from tidegate.storage.files import OWNER, PERMISSIONS, Files, check_writable, open_files, write_file
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.job_directory import (
    LOCK,
    METADATA_NAME,
    SHARED,
    VIEW,
    VIEW_SUMMARY,
    WITNESS_PREFIX,
    checkpoint_directory,
    checkpoint_of_directory,
    job_location,
    metadata_file,
    new_witness,
)
from tidegate.storage.job_lock import JobLock, LeaseJobLock, LocalJobLock
from tidegate.storage.location import StorageLocation, beside
from tidegate.storage.metadata import LateMetadataError, encode_metadata, read_own_metadata
from tidegate.storage.reader import FileStateSource
from tidegate.storage.worker_storage import FileSystemWorkerStorage, JobManagerWorkerStorage, WorkerStorage
from tidegate.storage.writers import DEFAULT_MIN_FILE_SIZE


class FileSystemStorage:
    """`open` first, `close` last. The rest blocks on I/O, so it belongs on a helper thread; one thread at a time."""

    def __init__(
        self,
        directory: str,
        job_id: str,
        *,
        options: Mapping[str, str] | None = None,
        min_file_size: int = DEFAULT_MIN_FILE_SIZE,
        codec: str = compression.NONE,
        memory_limit: int | None = None,
        permissions: str = OWNER,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """`memory_limit`: workers make no files, their state (up to so many bytes per task and checkpoint) travels to
        the JobManager and is stored within the metadata. `permissions`: see `files.PERMISSIONS`. `guard`: called before
        anything is written or deleted; raises LeaseLostError when it must not be."""
        parent = StorageLocation.parse(directory, options).with_permissions(permissions)
        self._location = job_location(parent, job_id)
        self._min_file_size = min_file_size
        self._codec = codec
        self._memory_limit = memory_limit
        self._guard = guard
        self._lock: JobLock | None = None
        self._deletions = OrderedDeletions()

    @property
    def root(self) -> str:
        """The URI of the folder to which the handles are relative, for `SlotRestore.root`."""
        return str(self._location)

    @property
    def options(self) -> Mapping[str, str]:
        """With which the directory is reached, secrets among them."""
        return dict(self._location.options)

    def files(self, *, makes_root: bool = False) -> Files:
        return open_files(self._location, makes_root=makes_root)

    def open(self, now_ms: float) -> None:
        """ConfigurationError when the directory cannot be written, or the job is running already. Nothing else makes
        the directory."""
        check_writable(self.files(makes_root=True))
        lock = self._make_lock()
        lock.acquire(now_ms)
        self._lock = lock
        if not lock.ends_with_its_owner:
            try:
                self._remove_witnesses()
            except BaseException:
                self._lock = None
                lock.release()
                raise

    def _make_lock(self) -> JobLock:
        if self._location.is_local:
            return LocalJobLock(self._location.local_path, PERMISSIONS[self._location.permissions or OWNER])
        return LeaseJobLock(self._location)

    @contextlib.contextmanager
    def locked(self, now_ms: float) -> Iterator[None]:
        """Holds the lock for a look at the directory while the job does not run. ConfigurationError when it does."""
        lock = self._make_lock()
        lock.acquire(now_ms)
        try:
            yield
        finally:
            lock.release()

    def close(self) -> None:
        """Releases the lock, and removes the job directory when no checkpoint is left in it."""
        if self._lock is None:
            return
        try:
            left = set(self.files().names("")) - {LOCK, SHARED, VIEW, VIEW_SUMMARY}
            if not left and not self.files().names(SHARED):
                self.files().delete_directory("")
        except SnapshotError:
            pass  # an empty directory that stays does no harm
        self._lock.release()
        self._lock = None

    def check_owned(self) -> None:
        """LeaseLostError when another run may be using the directory, DirectoryTakenError when one is; before anything
        is written for the job, be it elsewhere. Nothing to check before `open`."""
        self._guard()
        if self._lock is not None:
            self._lock.check()

    def worker_storage(self) -> WorkerStorage:
        if self._memory_limit is not None:
            permissions = self._location.permissions or OWNER
            return JobManagerWorkerStorage(self._memory_limit, codec=self._codec, permissions=permissions)
        return FileSystemWorkerStorage(self._location, self._min_file_size, codec=self._codec)

    def source(self) -> FileStateSource:
        return FileStateSource(self.files())

    # ------------------------------------------------------------ completed checkpoints

    def write_metadata(self, metadata: CheckpointMetadata) -> str:
        """Makes the checkpoint complete, or raises. Returns the path by which a job can be started from it.

        LeaseLostError when the directory is not this run's any more; also when that came about while the file was
        written: then nothing may follow from it."""
        self.check_owned()
        if self._lock is not None and not self._lock.ends_with_its_owner:
            metadata = msgspec.structs.replace(metadata, witness=self._new_witness(metadata.checkpoint_id))
            self.check_owned()
        write_file(self.files(), metadata_file(metadata.checkpoint_id), encode_metadata(metadata))
        self.check_owned()
        return str(self._location.child(checkpoint_directory(metadata.checkpoint_id)))

    def _new_witness(self, checkpoint_id: CheckpointId) -> str:
        """A file in the folder of the checkpoint that is there before its metadata is written, while the directory is
        known to be ours.

        The write of the metadata cannot be checked any more once it is under way, and through `pyarrow.fs` no condition
        can be put to it. When it hangs for longer than the lease another run takes the directory. That finds the
        folder, so it gives the number to no checkpoint of its own, and removes the witness. What the write then brings
        lacks it, which every reader sees."""
        name = new_witness()
        write_file(self.files(), f"{checkpoint_directory(checkpoint_id)}/{name}", b"")
        return name

    def _remove_witnesses(self) -> None:
        """Of checkpoints that earlier runs have not completed: they never will be. Their folders stay, for the sake of
        their numbers, until the end of this run."""
        files = self.files()
        for folder in files.names(""):
            names = files.names(folder) if checkpoint_of_directory(folder) is not None else []
            witnesses = [name for name in names if name.startswith(WITNESS_PREFIX)]
            if witnesses and METADATA_NAME not in names:
                write_file(files, f"{folder}/{new_witness()}", b"")
                for name in witnesses:
                    files.delete_file(f"{folder}/{name}")

    def read_metadata(self, checkpoint_id: CheckpointId) -> CheckpointMetadata:
        folder = self._location.child(checkpoint_directory(checkpoint_id))
        return read_own_metadata(self.files(), metadata_file(checkpoint_id), folder)

    def completed_checkpoints(self) -> list[CheckpointId]:
        """The checkpoints with a metadata file, oldest first; whether it can be read shows `read_metadata`."""
        found = [checkpoint_of_directory(name) for name in self.files().names("")]
        return sorted(n for n in found if n is not None and self.files().size(metadata_file(n)) is not None)

    def highest_checkpoint(self) -> CheckpointId:
        """The highest id that an earlier run of the job has used here, complete or not; 0 when there is none."""
        found = [checkpoint_of_directory(name) for name in self.files().names("")]
        return max((n for n in found if n is not None), default=CheckpointId(0))

    # ------------------------------------------------------------ deleting

    def delete(self, deletion: Deletion) -> list[str]:
        """Never raises; returns the problems. On one thread at a time."""
        try:
            self.check_owned()
        except SnapshotError as error:
            return [f"{len(deletion.files) + len(deletion.directories)} files and folders were not deleted: {error}"]
        return self._deletions.delete(self.files(), deletion)

    def delete_checkpoint(self, checkpoint_id: CheckpointId, older: bool) -> list[str]:
        """With all that only it needs; `older`: and those before it. Only while no task of the job runs. Never raises;
        returns the problems."""
        try:
            before = [n for n in self.completed_checkpoints() if n < checkpoint_id] if older else []
        except SnapshotError as error:
            return [f"checkpoint {checkpoint_id} and those before it were not deleted: {error}"]
        numbers = [*before, checkpoint_id]
        gone = Deletion(
            files=[metadata_file(n) for n in numbers], directories=[checkpoint_directory(n) for n in numbers]
        )
        return self.delete(gone) + self.delete_orphans()

    def delete_orphans(self) -> list[str]:
        """Delete what crashed attempts left behind: directories of checkpoints without metadata, or with metadata that
        came too late, and shared files that no completed checkpoint refers to. Only while no task of the job runs.
        Returns the problems."""
        files = self.files()
        try:
            completed: list[CheckpointId] = []
            late: list[str] = []
            referenced: set[str] = set()
            for checkpoint_id in self.completed_checkpoints():
                try:
                    referenced |= checkpoint_files(self.read_metadata(checkpoint_id))
                    completed.append(checkpoint_id)
                except LateMetadataError:
                    late.append(metadata_file(checkpoint_id))
            shared = {f"{SHARED}/{name}" for name in files.names(SHARED)}
            directories = [n for n in map(checkpoint_of_directory, files.names("")) if n is not None]
        except SnapshotError as error:  # with one unreadable metadata file nobody knows what is needed
            return [f"left-over files were not deleted: {error}"]
        unfinished = [checkpoint_directory(n) for n in directories if n not in completed]
        unfinished = [d for d in unfinished if not any(path.startswith(d + "/") for path in referenced)]
        return self.delete(Deletion(files=[*late, *sorted(shared - referenced)], directories=unfinished))


def storage_in(directory: StorageLocation) -> FileSystemStorage:
    """That of a job directory."""
    return FileSystemStorage(str(directory.parent()), directory.name, options=dict(directory.options))


def latest_aligned(
    root: str, before: CheckpointId, options: Mapping[str, str] | None = None
) -> CheckpointMetadata | None:
    """The newest checkpoint in a job directory that is older than `before` and holds no in-flight records. Damaged ones
    are passed over, and nothing else is: StorageUnavailableError when one cannot be read now, SnapshotError when it is
    of a newer version: the job would start from something older. `options`: of the job's own storage, for a root that
    was noted without secrets."""
    storage = storage_in(beside(root, options))
    for checkpoint_id in reversed(storage.completed_checkpoints()):
        if checkpoint_id < before:
            try:
                metadata = storage.read_metadata(checkpoint_id)
            except SnapshotDamagedError:
                continue
            if not metadata.channels:
                return metadata
    return None


def delete_claimed(
    root: str,
    checkpoint_id: CheckpointId,
    now_ms: float,
    older: bool = False,
    options: Mapping[str, str] | None = None,
) -> list[str]:
    """Delete a checkpoint in the directory of another job, which has left it to us, with all that only it needs.
    `older`: and those before it. `options`: as of `latest_aligned`.

    Never raises; returns the problems. Nothing is deleted while that job runs."""
    try:
        storage = storage_in(beside(root, options))
        storage.open(now_ms)
    except (ConfigurationError, SnapshotError) as error:
        return [f"checkpoint {checkpoint_id} in {root}, which this job has claimed, was not deleted: {error}"]
    try:
        return storage.delete_checkpoint(checkpoint_id, older)
    finally:
        storage.close()
