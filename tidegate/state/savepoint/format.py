"""The savepoint format: a folder that people and other tools can read, and that can be moved::

    <dir>/savepoint-<job>-<random>/
        metadata.json                                       for people
        <operator>/keyed-<state>/part-<subtask>-<n>.parquet  one table per keyed state
        <operator>/list-<state>/part-<subtask>-<n>.parquet   one table per operator state
        _metadata                                            for the machine: written last, with all checksums

Paths in `_metadata` are relative to the folder. Every file is covered by a checksum in it, and it by its own.

A table of keyed state has the columns `key_group`, `key`, `namespace`, `value`, and beside the last three `..._pickle`.
A column is typed where the type was declared (`formats.arrow_types`); otherwise it is a text for people, and the
pickled bytes are what counts. Where the column gives back exactly the value, there are no pickled bytes. `last_access`
(ms since the epoch) is there for state with a time to live; the value of a timer is its timestamp.

Read `docs/concepts/savepoints.md` first.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.ids import OperatorId
from tidegate.storage.checksums import checksum
from tidegate.storage.files import Files, check_writable, write_file
from tidegate.storage.handles import CheckpointMetadata, OperatorMetadata, handle_size
from tidegate.storage.job_directory import METADATA_NAME
from tidegate.storage.location import StorageLocation
from tidegate.storage.metadata import encode_metadata

BACKEND_NAME = "savepoint"
READABLE = "metadata.json"
KEYED, LIST = "keyed", "list"

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


def new_savepoint(files_of: Callable[[str], Files], directory: str, job_id: str) -> str:
    """The URI of a folder that does not exist yet, below a directory that can be written to."""
    location = StorageLocation.parse(directory)
    files = files_of(directory)
    try:
        check_writable(files)
    except ConfigurationError as error:
        raise SnapshotError(f"no savepoint can be written to {files.describe('')}: {error.__cause__}") from error
    return str(location.child(f"savepoint-{job_id[:6]}-{secrets.token_hex(6)}"))


def operator_folder(operator_id: OperatorId, uid: str, name: str) -> str:
    return f"{_safe(uid or name)}-{operator_id[:8]}"


def table_folder(operator: str, kind: str, state: str) -> str:
    safe = _safe(state)
    if safe != state:
        safe += "-" + hashlib.sha256(state.encode()).hexdigest()[:6]
    return f"{operator}/{kind}-{safe}"


def _safe(text: str) -> str:
    return _UNSAFE.sub("_", text)[:80] or "_"


def write_savepoint_metadata(files: Files, metadata: CheckpointMetadata) -> None:
    """Makes the savepoint complete, or raises. Refuses a folder that holds one already."""
    if files.size(METADATA_NAME) is not None:
        raise SnapshotError(f"{files.describe('')} holds a savepoint already")
    readable = json.dumps(readable_metadata(metadata), indent=2, ensure_ascii=False).encode()
    write_file(files, READABLE, readable)
    complete = msgspec.structs.replace(metadata, self_contained=True, companions={READABLE: checksum(readable)})
    write_file(files, METADATA_NAME, encode_metadata(complete))


def readable_metadata(metadata: CheckpointMetadata) -> dict[str, Any]:
    return {
        "format": "tidegate savepoint",
        "format_version": metadata.format_version,
        "tidegate_version": metadata.tidegate_version,
        "job_id": metadata.job_id,
        "job_name": metadata.job_name,
        "checkpoint_id": metadata.checkpoint_id,
        "timestamp_ms": metadata.timestamp,
        "operators": [_readable_operator(o) for o in metadata.operators],
    }


def _readable_operator(operator: OperatorMetadata) -> dict[str, Any]:
    folder = operator_folder(operator.operator_id, operator.uid, operator.name)
    keyed: dict[str, dict[str, Any]] = {}
    lists: dict[str, dict[str, Any]] = {}
    for snapshot in operator.subtasks:
        for info in snapshot.keyed.states if snapshot.keyed is not None else ():
            table = keyed.setdefault(
                info.name,
                {
                    "name": info.name,
                    "kind": info.kind,
                    "type": str(info.schema) if info.schema is not None else info.type_description,
                    "table": table_folder(folder, KEYED, info.name),
                    "entries": 0,
                    "bytes": 0,
                },
            )
            for increment in snapshot.keyed.increments if snapshot.keyed is not None else ():
                for chunk in increment.chunks:
                    if chunk.state == info.name:
                        table["entries"] += chunk.entries
                        table["bytes"] += handle_size(chunk.handle)
        for state in snapshot.lists:
            table = lists.setdefault(
                state.name,
                {"name": state.name, "mode": state.mode, "table": table_folder(folder, LIST, state.name)}
                | {"items": 0, "bytes": 0},
            )
            table["items"] += state.count
            table["bytes"] += handle_size(state.handle)
    return {
        "name": operator.name,
        "uid": operator.uid,
        "id": operator.operator_id,
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "keyed_states": list(keyed.values()),
        "operator_states": list(lists.values()),
    }
