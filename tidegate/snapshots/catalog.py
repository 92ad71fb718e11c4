"""What a path holds: the snapshot, its operators and their states. Reads the metadata, never the state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.common.errors import SnapshotError
from tidegate.common.ids import CheckpointId
from tidegate.storage.files import Files, open_files
from tidegate.storage.handles import (
    CheckpointMetadata,
    KeyedSnapshot,
    KeyedStateInfo,
    OperatorListState,
    OperatorMetadata,
    handle_size,
)
from tidegate.storage.job_directory import METADATA_NAME, checkpoint_directory, checkpoint_of_directory
from tidegate.storage.location import StorageLocation
from tidegate.storage.metadata import read_metadata

OPERATOR_KINDS = {"split": "operator list", "union": "union list", "broadcast": "broadcast"}
_SHOWN = 20
_MICRO_BATCH = "tidegate/job.json"  # below the checkpoint location of a micro-batch job


class StateListing(NamedTuple):
    """One state of a snapshot."""

    operator: str  # its name
    uid: str  # "" when it has none
    operator_id: str
    state: str
    kind: str  # value, list, map, reducing, aggregating, timers; operator list, union list, broadcast
    type: str  # as declared, ANY when it was not
    per_namespace: bool  # kept per window
    time_to_live: bool
    entries: int | None  # keys or items; None when only reading the state would tell
    bytes: int | None  # in files; None when it shares its files with other states
    backend: str  # heap, rocksdb or savepoint; "" for operator state
    parallelism: int
    max_parallelism: int


@dataclass(frozen=True)
class FoundState:
    """A state of one operator, with the parts of all subtasks."""

    operator: OperatorMetadata
    name: str
    kind: str
    info: KeyedStateInfo | None  # None for operator state

    def keyed(self) -> list[KeyedSnapshot]:
        """Of the subtasks that have this state."""
        found = [s.keyed for s in self.operator.subtasks if s.keyed is not None]
        return [k for k in found if any(i.name == self.name for i in k.states)]

    def lists(self) -> list[tuple[int, OperatorListState]]:
        """(subtask, its part)."""
        return [(i, s) for i, sub in enumerate(self.operator.subtasks) for s in sub.lists if s.name == self.name]

    @property
    def type(self) -> str:
        if self.info is None:
            return "ANY"
        return str(self.info.schema) if self.info.schema is not None else self.info.type_description or "ANY"


@dataclass(frozen=True)
class Snapshot:
    """A complete checkpoint or savepoint."""

    path: str  # of its folder
    root: StorageLocation  # what the paths of handles are relative to
    metadata: CheckpointMetadata

    def operator(self, wanted: str) -> OperatorMetadata:
        """By uid, name or operator id. SnapshotError, with all that there are, when none or several match."""
        operators = self.metadata.operators
        for matches in (
            [o for o in operators if o.uid == wanted],
            [o for o in operators if o.operator_id == wanted],
            [o for o in operators if o.name == wanted],
        ):
            if len(matches) == 1:
                return matches[0]
            if matches:
                ids = ", ".join(o.operator_id for o in matches)
                raise SnapshotError(
                    f"{self.path} has {len(matches)} operators with the name '{wanted}'; choose one by its id: {ids}"
                )
        there = ", ".join(_title(o) for o in operators) or "none at all"
        raise SnapshotError(f"{self.path} has no operator '{wanted}' (a uid, name or operator id); it has: {there}")

    def state(self, operator: str, state: str) -> FoundState:
        """SnapshotError, with all that there are, when there is none. A keyed state comes before an operator state of
        the same name."""
        owner = self.operator(operator)
        found = list(states_of(owner))
        for candidate in found:
            if candidate.name == state:
                return candidate
        there = ", ".join(f"'{s.name}' ({s.kind})" for s in found) or "none at all"
        raise SnapshotError(f"operator {_title(owner)} in {self.path} has no state '{state}'; it has: {there}")


def _title(operator: OperatorMetadata) -> str:
    return f"'{operator.uid or operator.name}'" if operator.uid else f"'{operator.name}' (id {operator.operator_id})"


def states_of(operator: OperatorMetadata) -> Iterator[FoundState]:
    """Keyed states first."""
    infos: dict[str, KeyedStateInfo] = {}
    modes: dict[str, str] = {}
    for snapshot in operator.subtasks:
        for info in snapshot.keyed.states if snapshot.keyed is not None else ():
            known = infos.get(info.name)
            if known is None or known.schema is None:  # a subtask without entries may not know the class of values
                infos[info.name] = info
        for state in snapshot.lists:
            modes[state.name] = state.mode
    for name, info in infos.items():
        yield FoundState(operator, name, info.kind, info)
    for name, mode in modes.items():
        yield FoundState(operator, name, OPERATOR_KINDS.get(mode, mode), None)


def list_states(path: str, options: Mapping[str, str] | None = None) -> list[StateListing]:
    """All states of a checkpoint, a savepoint, or the newest checkpoint in a job's folder."""
    snapshot = open_snapshot(path, options)
    return [_listing(state) for operator in snapshot.metadata.operators for state in states_of(operator)]


def _listing(state: FoundState) -> StateListing:
    operator = state.operator
    keyed = state.keyed()
    if state.info is None:
        parts = [part for _, part in state.lists()]
        entries: int | None = sum(p.count for p in parts)
        size: int | None = sum(handle_size(p.handle) for p in parts)
    elif any(k.files for k in keyed):
        entries = size = None
    else:
        chunks = [c for k in keyed for i in k.increments for c in i.chunks if c.state == state.name]
        chained = any(len(k.increments) > 1 for k in keyed)  # a key may be in several increments, or deleted
        entries = None if chained else sum(c.entries for c in chunks)
        size = sum(handle_size(c.handle) for c in chunks)
    return StateListing(
        operator=operator.name,
        uid=operator.uid,
        operator_id=operator.operator_id,
        state=state.name,
        kind=state.kind,
        type=state.type,
        per_namespace=state.info is not None and state.info.namespaced,
        time_to_live=state.info is not None and state.info.ttl,
        entries=entries,
        bytes=size,
        backend=keyed[0].backend if keyed else "",
        parallelism=operator.parallelism,
        max_parallelism=operator.max_parallelism,
    )


# ---------------------------------------------------------------- finding it


def open_snapshot(path: str, options: Mapping[str, str] | None = None) -> Snapshot:
    """Of a checkpoint or savepoint, by its folder or its `_metadata` file; of a job's folder: its newest checkpoint.

    SnapshotError when it is not there, not complete or damaged. `options`: of the storage, see StorageLocation."""
    location = StorageLocation.parse(path, options)
    if location.name == METADATA_NAME:
        location = location.parent()
    files = open_files(location)
    if files.size(METADATA_NAME) is None:
        complete = _complete_checkpoints(files)
        if not complete:
            raise SnapshotError(_nothing_there(location, files))
        location = location.child(checkpoint_directory(max(complete)))
    loaded = read_metadata(str(location), dict(location.options))
    return Snapshot(path=str(location), root=loaded.root, metadata=loaded.metadata)


def _complete_checkpoints(files: Files, folder: str = "") -> list[CheckpointId]:
    below = f"{folder}/" if folder else ""
    found = [n for n in map(checkpoint_of_directory, _names(files, folder)) if n is not None]
    return sorted(n for n in found if files.size(f"{below}{checkpoint_directory(n)}/{METADATA_NAME}") is not None)


def _names(files: Files, folder: str = "") -> list[str]:
    try:
        return files.names(folder)
    except SnapshotError:  # a file
        return []


def _nothing_there(location: StorageLocation, files: Files) -> str:
    where = files.describe("")
    names = _names(files)
    if not names and files.size("") is not None and location.is_local:
        return f"{where} is a file or an empty folder, not a checkpoint or savepoint"
    if not names:
        beside = open_files(location.parent())
        near = [n for n in _names(beside) if beside.size(f"{n}/{METADATA_NAME}") is not None]
        hint = f"; beside it there are {_some(near)}" if near else ""
        return f"there is no snapshot at {where}: the path is wrong, or it has been deleted{hint}"
    unfinished = [n for n in names if checkpoint_of_directory(n) is not None]
    if unfinished:
        return f"no checkpoint in {where} is complete: {_some(unfinished)} have no {METADATA_NAME}"
    for below in ("", "micro-batch/"):
        if files.size(f"{below}{_MICRO_BATCH}") is not None:
            return (
                f"{files.describe(below.rstrip('/'))} is the checkpoint location of a MICRO_BATCH job, whose state is "
                "in Spark's state store: take a savepoint of the job (client.trigger_savepoint, or tidegate "
                "savepoint), and give the path of that"
            )
    jobs = [n for n in names if _complete_checkpoints(files, n)]
    savepoints = [n for n in names if files.size(f"{n}/{METADATA_NAME}") is not None]
    if jobs or savepoints:
        return (
            f"{where} is not a snapshot itself, but holds several: give the path of one of {_some(jobs + savepoints)}"
        )
    if location.name.startswith("savepoint-") or checkpoint_of_directory(location.name) is not None:
        return f"{where} has no {METADATA_NAME}: it was never completed, or was copied only in part"
    return f"{where} is no checkpoint or savepoint, and holds none: there is no {METADATA_NAME} in it"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
