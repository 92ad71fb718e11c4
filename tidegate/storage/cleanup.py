"""Which files may be deleted when. `SharedFileRegistry` is a pure core; deleting is done by `OrderedDeletions`.

A checkpoint n that is under way continues the chain of the newest checkpoint c that its tasks know to be complete. If c
is discarded before n is complete, c's increments must stay for n. So files of `shared/` that nothing refers to any more
are held back until every checkpoint that was under way has come to its end, and one that began later (its tasks may not
have heard of the newest completed one at once) and those that overlap with it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tidegate.common.errors import SnapshotError, check_internal
from tidegate.common.ids import CheckpointId
from tidegate.storage.files import Files
from tidegate.storage.handles import (
    ChannelState,
    CheckpointMetadata,
    FileRange,
    OperatorSnapshot,
    StateHandle,
    TaskSnapshot,
)
from tidegate.storage.job_directory import METADATA_NAME, SHARED, checkpoint_directory, metadata_file


@dataclass
class Deletion:
    """What to delete, in this order. Paths relative to the job directory."""

    files: list[str] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.files or self.directories)

    def add(self, other: Deletion) -> None:
        self.files += other.files
        self.directories += other.directories


class FileProtection(enum.Enum):
    """Whether `SharedFileRegistry.register` could protect the files of a checkpoint."""

    PROTECTED = "the checkpoint is retained and its files are protected"
    FILES_ARE_GONE = "it builds on files that have been released: the checkpoint must be failed, not completed"


def operator_files(snapshots: Iterable[OperatorSnapshot], channels: Iterable[ChannelState]) -> set[str]:
    """The paths of all files that the snapshots refer to."""
    return {handle.path for handle in _handles(snapshots, channels) if isinstance(handle, FileRange)}


def checkpoint_files(metadata: CheckpointMetadata) -> set[str]:
    subtasks = [subtask for operator in metadata.operators for subtask in operator.subtasks]
    return operator_files(subtasks, metadata.channels)


def task_files(snapshot: TaskSnapshot) -> set[str]:
    return operator_files(snapshot.operators, snapshot.channels)


def _handles(snapshots: Iterable[OperatorSnapshot], channels: Iterable[ChannelState]) -> Iterator[StateHandle]:
    for snapshot in snapshots:
        if snapshot.keyed is not None:
            yield from snapshot.keyed.handles()
        for state in snapshot.lists:
            yield state.handle
    for channel in channels:
        yield channel.handle


class _HeldBack:
    """Shared files that nothing refers to, but that a checkpoint under way may."""

    def __init__(self, files: set[str], under_way: set[CheckpointId]) -> None:
        self.files = files
        self._waiting_for = set(under_way)
        self._began_later: set[CheckpointId] = set()
        self._one_has_followed = False  # a checkpoint that began after the release has come to its end

    @property
    def is_free(self) -> bool:
        return self._one_has_followed and not self._waiting_for

    def began(self, checkpoint_id: CheckpointId) -> None:
        if not self._one_has_followed:
            self._waiting_for.add(checkpoint_id)
            self._began_later.add(checkpoint_id)

    def ended(self, checkpoint_id: CheckpointId) -> None:
        self._waiting_for.discard(checkpoint_id)
        self._one_has_followed |= checkpoint_id in self._began_later

    def check_invariants(self, under_way: set[CheckpointId]) -> None:
        check_internal(bool(self.files), "nothing is held back")
        check_internal(self._waiting_for <= under_way, "files wait for a checkpoint that is not under way")
        check_internal(not self.is_free, f"free files are held back: {self.files}")


class SharedFileRegistry:
    """Calls per checkpoint: `begin`, then `register` or `abandon`; a registered one ends with `discard`. A checkpoint
    that was restored from is introduced by `adopt`. Each returns what may be deleted now."""

    def __init__(self) -> None:
        self._retained: dict[CheckpointId, set[str]] = {}  # checkpoint -> all files it refers to
        self._under_way: set[CheckpointId] = set()
        self._held_back: list[_HeldBack] = []

    @property
    def retained(self) -> list[CheckpointId]:
        return sorted(self._retained)

    def begin(self, checkpoint_id: CheckpointId) -> None:
        self._under_way.add(checkpoint_id)
        for held in self._held_back:
            held.began(checkpoint_id)

    def adopt(self, metadata: CheckpointMetadata) -> None:
        self._retained[metadata.checkpoint_id] = checkpoint_files(metadata)

    def register(self, metadata: CheckpointMetadata) -> tuple[FileProtection, Deletion]:
        """The checkpoint is complete. After FILES_ARE_GONE call `abandon`."""
        checkpoint_id = metadata.checkpoint_id
        subtasks = [subtask for operator in metadata.operators for subtask in operator.subtasks]
        inherited = _inherited_files(checkpoint_id, subtasks)
        known = set().union(*self._retained.values(), *(held.files for held in self._held_back))
        if not inherited <= known:
            return FileProtection.FILES_ARE_GONE, Deletion()
        self._retained[checkpoint_id] = checkpoint_files(metadata)
        return FileProtection.PROTECTED, self._end(checkpoint_id)

    def abandon(self, checkpoint_id: CheckpointId, snapshots: Iterable[TaskSnapshot]) -> Deletion:
        """The checkpoint was aborted; `snapshots` are those that had been acknowledged, or came late."""
        released: set[str] = set().union(*(own_files(checkpoint_id, snapshot) for snapshot in snapshots))
        deletion = self._end(checkpoint_id)
        deletion.add(self._release(released))
        deletion.directories += self._directory_if_unused(checkpoint_id)
        return deletion

    def discard(self, checkpoint_id: CheckpointId) -> Deletion:
        """The checkpoint is no longer retained. Its metadata goes first: what is left half deleted is not complete."""
        files = self._retained.pop(checkpoint_id, None)
        if files is None:
            return Deletion()
        deletion = Deletion(files=[metadata_file(checkpoint_id)])
        deletion.add(self._release(files))
        deletion.directories += self._directory_if_unused(checkpoint_id)
        return deletion

    def drain(self) -> Deletion:
        """The job is over: nothing is under way any more, nothing needs to be held back."""
        self._under_way.clear()
        files: set[str] = set().union(*(held.files for held in self._held_back)) - self._referenced()
        self._held_back.clear()
        return Deletion(files=sorted(files))

    def _end(self, checkpoint_id: CheckpointId) -> Deletion:
        self._under_way.discard(checkpoint_id)
        for held in self._held_back:
            held.ended(checkpoint_id)
        free: set[str] = set().union(*(held.files for held in self._held_back if held.is_free))
        self._held_back = [held for held in self._held_back if not held.is_free]
        still_held: set[str] = set().union(*(held.files for held in self._held_back))
        return Deletion(files=sorted(free - self._referenced() - still_held))

    def _release(self, files: set[str]) -> Deletion:
        unused = files - self._referenced()
        shared = {path for path in unused if path.startswith(SHARED + "/")}
        if shared:
            self._held_back.append(_HeldBack(shared, self._under_way))
        return Deletion(files=sorted(unused - shared))

    def _referenced(self) -> set[str]:
        return set().union(*self._retained.values())

    def _directory_if_unused(self, checkpoint_id: CheckpointId) -> list[str]:
        directory = checkpoint_directory(checkpoint_id)
        in_use = checkpoint_id in self._retained or any(path.startswith(directory + "/") for path in self._referenced())
        return [] if in_use else [directory]

    def check_invariants(self) -> None:
        check_internal(not self._under_way & set(self._retained), "a retained checkpoint is still under way")
        for held in self._held_back:
            held.check_invariants(self._under_way)


def own_files(checkpoint_id: CheckpointId, snapshot: TaskSnapshot) -> set[str]:
    """The files that the checkpoint wrote itself."""
    return task_files(snapshot) - _inherited_files(checkpoint_id, snapshot.operators)


def _inherited_files(checkpoint_id: CheckpointId, snapshots: Iterable[OperatorSnapshot]) -> set[str]:
    """Files that earlier checkpoints wrote."""
    return {
        handle.path
        for snapshot in snapshots
        if snapshot.keyed is not None
        for handle in snapshot.keyed.inherited_handles(checkpoint_id)
        if isinstance(handle, FileRange)
    }


class OrderedDeletions:
    """Deletes in one job directory, in the order in which it is asked to. Failing to delete never fails a job: what
    goes wrong is returned, a sentence each, and what is left behind is an orphan.

    But for metadata: a checkpoint whose metadata cannot be deleted has to stay whole, or it would be taken for a
    complete one. So it, and everything that was asked for later (which may belong to it), waits until the next call
    has deleted the metadata. A limit on what waits is kept: beyond it, what came last is left behind, but for metadata
    (a path for each checkpoint): what is asked for later may belong to it."""

    def __init__(self) -> None:
        self._waiting: list[Deletion] = []

    def delete(self, files: Files, deletion: Deletion) -> list[str]:
        problems: list[str] = []
        queue = [*self._waiting, deletion]
        self._waiting = []
        for number, one in enumerate(queue):
            rest = _delete_until_stuck(files, one, problems)
            if rest is not None:
                self._waiting = _at_most(MAX_WAITING, [rest, *queue[number + 1 :]])
                break
        return problems


MAX_WAITING = 20_000
"""Paths that wait for metadata to be deleted."""


def _delete_until_stuck(files: Files, deletion: Deletion, problems: list[str]) -> Deletion | None:
    """What is left when metadata cannot be deleted; None when nothing is stuck."""
    for number, path in enumerate(deletion.files):
        is_metadata = _is_metadata(path)
        try:
            files.delete_file(path, for_good=is_metadata)
        except SnapshotError as error:
            if is_metadata:
                problems.append(f"a checkpoint stays whole, and is tried again, since its metadata stays: {error}")
                return Deletion(deletion.files[number:], deletion.directories)
            problems.append(str(error))
    for path in deletion.directories:
        try:
            files.delete_directory(path)
        except SnapshotError as error:
            problems.append(str(error))
    return None


def _at_most(paths: int, deletions: list[Deletion]) -> list[Deletion]:
    kept: list[Deletion] = []
    for deletion in deletions:
        paths -= len(deletion.files) + len(deletion.directories)
        if paths < 0 and kept:
            deletion = Deletion(files=[path for path in deletion.files if _is_metadata(path)])
        if deletion:
            kept.append(deletion)
    return kept


def _is_metadata(path: str) -> bool:
    return path.rpartition("/")[2] == METADATA_NAME
