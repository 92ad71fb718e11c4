"""The file `_metadata`: its existence makes a checkpoint complete, so it is written last and atomically.

Layout: 8 bytes magic, version (u32), length of the body (u64), body (msgpack of CheckpointMetadata), xxh3_64 of all
before (u64); integers little-endian. What is around the body is the same in every version, so that a file of a newer
one can be told from a damaged one.

Whoever reads it here reads it once more before it is called damaged: it may have been the way, not the file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from tidegate.common.decoding import UNREADABLE
from tidegate.common.errors import SnapshotDamagedError, SnapshotError, StorageUnavailableError
from tidegate.storage.checksums import checksum
from tidegate.storage.files import Files, is_gone, open_files
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.job_directory import METADATA_NAME, checkpoint_of_directory
from tidegate.storage.location import StorageLocation, beside

T = TypeVar("T")

FORMAT_VERSION = 4
_MAGIC = b"TIDEGATE"
_HEADER = struct.Struct("<8sIQ")
_TRAILER = struct.Struct("<Q")
_JOB_ID = re.compile("[0-9a-f]{32}")
_JOB_FOLDER = re.compile(r"([0-9a-f]{32})(?:-e([0-9]+))?")  # with the epoch of the leader whose directory it is


class LateMetadataError(SnapshotDamagedError):
    """It came when the run that wrote it had lost the directory: there is no such checkpoint."""


@dataclass(frozen=True)
class LoadedMetadata:
    metadata: CheckpointMetadata
    root: StorageLocation  # what the paths of its handles are relative to
    path: str  # of the file, for people


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    body = msgspec.msgpack.encode(metadata)
    data = _HEADER.pack(_MAGIC, FORMAT_VERSION, len(body)) + body
    return data + _TRAILER.pack(xxh3_64_intdigest(data))


def decode_metadata(data: bytes, where: str) -> CheckpointMetadata:
    """Reads metadata; `where` names the file in the errors."""
    if not data.startswith(_MAGIC[: len(data)]) or (data and data[:1] != _MAGIC[:1]):
        raise SnapshotDamagedError(f"{where} is not the metadata of a checkpoint or savepoint of Tidegate")
    if len(data) < _HEADER.size:
        raise SnapshotDamagedError(f"{where} is incomplete ({len(data)} bytes): the checkpoint was not finished")
    _, version, length = _HEADER.unpack_from(data)
    expected = _HEADER.size + length + _TRAILER.size
    if len(data) < expected:
        raise SnapshotDamagedError(
            f"{where} is incomplete ({len(data)} of {expected} bytes): the checkpoint was not finished"
        )
    if len(data) > expected or xxh3_64_intdigest(data[: -_TRAILER.size]) != _TRAILER.unpack(data[-_TRAILER.size :])[0]:
        raise SnapshotDamagedError(f"{where} is corrupt: its checksum does not match; use another checkpoint")
    if version > FORMAT_VERSION:
        raise SnapshotError(
            f"{where} has format version {version}, this Tidegate reads up to {FORMAT_VERSION}; use the version of "
            "Tidegate that wrote it, or a newer one"
        )
    try:
        return msgspec.msgpack.decode(data[_HEADER.size : -_TRAILER.size], type=CheckpointMetadata)
    except UNREADABLE as error:
        raise SnapshotDamagedError(f"{where} cannot be decoded: {error}") from error


def read_metadata(uri: str, options: Mapping[str, str] | None = None) -> LoadedMetadata:
    """Reads the metadata of a checkpoint or savepoint, given by its directory or its `_metadata` file. `options`: of
    the job's own storage, for one that was noted without secrets."""
    location = beside(uri, options)
    directory = location.parent() if location.name == METADATA_NAME else location
    files = open_files(directory)
    metadata = read_own_metadata(files, METADATA_NAME, directory)
    _not_by_one_answer(lambda: _check_companions(files, metadata))
    return LoadedMetadata(
        metadata=metadata,
        # Several checkpoints of a job share files, a savepoint stands alone.
        root=directory if metadata.self_contained else directory.parent(),
        path=str(directory.child(METADATA_NAME)),
    )


def check_belongs(metadata: CheckpointMetadata, directory: StorageLocation, where: str) -> None:
    """SnapshotDamagedError when the file lies in the folder of another checkpoint or job: intact, but misdirected. The
    folder of a job may have been renamed, and counts only when its name is a job's id, or that and the epoch of a
    leader. A savepoint can be moved anywhere: it is held together by the checksum of `metadata.json`."""
    if metadata.self_contained:
        return
    of_folder = checkpoint_of_directory(directory.name)
    if of_folder is not None and of_folder != metadata.checkpoint_id:
        raise SnapshotDamagedError(
            f"{where} is the metadata of checkpoint {metadata.checkpoint_id}, not of {of_folder}: a file was copied "
            "into the wrong folder; use another checkpoint"
        )
    folder = _JOB_FOLDER.fullmatch(directory.parent().name)
    if folder is None or not _JOB_ID.fullmatch(metadata.job_id):
        return
    job, epoch = folder[1], metadata.epoch if folder[2] is None else int(folder[2])
    if (job, epoch) == (metadata.job_id, metadata.epoch):
        return
    raise SnapshotDamagedError(
        f"{where} is the metadata of job {metadata.job_id} ('{metadata.job_name}'){_of_epoch(metadata.epoch)}, but "
        f"lies in the directory of job {job}{_of_epoch(epoch)}: a file was copied into the wrong folder; use another "
        "checkpoint"
    )


def _check_witness(files: Files, path: str, metadata: CheckpointMetadata) -> None:
    """Whether it was written by a run that had lost the directory meanwhile."""
    witness = path.removesuffix(METADATA_NAME) + metadata.witness
    if metadata.witness and files.size(witness) is None:
        raise LateMetadataError(
            f"{files.describe(path)} is of no checkpoint, since there is no {files.describe(witness)}: the run that "
            "wrote it had lost the directory to another one, or the folder was copied in part; use another checkpoint"
        )


def _of_epoch(epoch: int) -> str:
    return f", epoch {epoch}" if epoch else ""


def _check_companions(files: Files, metadata: CheckpointMetadata) -> None:
    for path, expected in metadata.companions.items():
        where = files.describe(path)
        if files.size(path) is None:
            raise SnapshotDamagedError(f"there is no {where}: the savepoint is incomplete, copy it again as a whole")
        if checksum(files.read(path)) != expected:
            raise SnapshotDamagedError(
                f"{where} is corrupt: its checksum does not match; use another copy of the savepoint"
            )


def read_own_metadata(files: Files, path: str, directory: StorageLocation) -> CheckpointMetadata:
    """Of the checkpoint or savepoint in the folder `directory`; see `check_belongs`."""

    def read() -> CheckpointMetadata:
        metadata = _read_once(files, path)
        check_belongs(metadata, directory, files.describe(path))
        _check_witness(files, path, metadata)
        return metadata

    return _not_by_one_answer(read)


def read_metadata_file(files: Files, path: str) -> CheckpointMetadata:
    """Whatever folder it lies in."""
    return _not_by_one_answer(lambda: _read_once(files, path))


def _not_by_one_answer(read: Callable[[], T]) -> T:
    """What is called damaged is passed over, and what only it needs may be deleted: not by one answer of a store."""
    try:
        return read()
    except SnapshotDamagedError:
        return read()


def _read_once(files: Files, path: str) -> CheckpointMetadata:
    where = files.describe(path)
    if files.size(path) is None:
        kind = SnapshotDamagedError if is_gone(files, path) else StorageUnavailableError
        raise kind(
            f"there is no {where}: the path is wrong, or the checkpoint was never completed, or it has been deleted"
        )
    return decode_metadata(files.read(path), where)
