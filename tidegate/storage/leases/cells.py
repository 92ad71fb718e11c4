"""A cell: one small value in a store, changed only by those who have seen what is there.

Blocking, for one thread at a time. A call to a store over the network is given up after a time, so that one request
that hangs does not cost a lease; a disk that hangs holds up the thread of its user.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.storage.checksums import checksum
from tidegate.storage.files import (
    OWNER,
    PERMISSIONS,
    Files,
    make_directories,
    open_files,
    sync_directory,
    write_file,
)
from tidegate.storage.location import StorageLocation

log = logging.getLogger("tidegate.storage")

_KEPT = 8  # contents of a cell in files: the newest counts
_LITTER_S = 3600.0
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_REQUEST_S = 5.0


@dataclass(frozen=True)
class Content:
    data: bytes
    version: str  # never the same for two contents


class Cell(Protocol):
    where: str  # for people

    def read(self) -> Content | None:
        """None when nothing is there. Raises what it likes when it cannot tell."""

    def put(self, data: bytes, expected: str | None) -> str | None:
        """Replace the content if its version is `expected` (None: if there is nothing). The new version, or None when
        refused. Raises what it likes when nobody knows."""

    def close(self) -> None:
        """Not needed any more. Never raises."""


def why_never_conditional(location: StorageLocation) -> str | None:
    """Why no store of this kind has conditional writes here; None: it may have, which `open_cell` finds out."""
    if location.is_local or location.scheme == "s3":
        return None
    return f"{location.scheme} storage is only used through a library that has no conditional writes"


def open_cell(location: StorageLocation, name: str, *, conditional: bool, request_s: float = _REQUEST_S) -> Cell:
    """The cell `name` in the folder `location`. `request_s`: how long a request to a store over the network may take.

    `conditional`: refuse (ConfigurationError) a store that has no conditional writes. Otherwise such a store is used as
    well as it can be, with a warning: of two that write within the same moment the first is overwritten, and finds out
    when it writes again."""
    why = why_never_conditional(location)
    if location.is_local:
        cell = FileCell(location, name)
        why = cell.why_unusable()
        if why is None:
            return cell
    elif why is None:
        try:
            return S3Cell(location, name, request_s)
        except ImportError:
            why = "conditional writes on S3 need the package boto3: pip install 'tidegate[s3]'"
        except NoConditionalWrites as error:
            why = str(error)
    if conditional:
        raise ConfigurationError(
            f"{location.uri}: no lease can be kept here, since {why}; use a local or shared disk that has hard links, "
            "or an S3 store with conditional writes"
        )
    log.warning("%s: that no other run uses it at the same time is ensured as a best effort only: %s", location, why)
    return BestEffortCell(open_files(location), name)


class NoConditionalWrites(Exception):
    """The store takes a conditional write, but does not heed the condition."""


# ---------------------------------------------------------------- local and shared disks


class FileCell:
    """Numbered files `<name>-<n>`, of which the newest counts. A new one is made under a temporary name and linked to
    the number after the one that was read: a link is never made over a file, on NFS too, and nobody holds a lock that a
    frozen process could keep.

    The last few stay. A writer that slept so long that its number has come and gone could make it again: so it looks
    for higher ones afterwards, and takes its own back."""

    def __init__(self, location: StorageLocation, name: str) -> None:
        self._directory = location.local_path
        self._permissions = PERMISSIONS[location.permissions or OWNER]
        self._name = name
        self._pattern = re.compile(re.escape(name) + r"-(\d+)")
        self.where = os.path.join(self._directory, name)

    def read(self) -> Content | None:
        for _ in range(5):
            numbers = self._numbers()
            if not numbers:
                return None
            with contextlib.suppress(FileNotFoundError), open(self._path(numbers[-1]), "rb") as file:
                return Content(file.read(), str(numbers[-1]))
        raise SnapshotError(f"{self.where} changes faster than it can be read")

    def put(self, data: bytes, expected: str | None) -> str | None:
        make_directories(self._directory, self._directory, self._permissions.directory)
        number = int(expected or 0) + 1
        temporary = f"{self.where}.new-{uuid.uuid4().hex}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._permissions.file)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, self._path(number))
            except FileExistsError:
                return None
        finally:
            os.unlink(temporary)
        numbers = self._numbers()
        follows = expected is None or int(expected) in numbers
        if numbers[-1] != number or not follows or (expected is None and len(numbers) > 1):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(number))
            return None
        sync_directory(self._directory)
        self._tidy(numbers)
        return str(number)

    def close(self) -> None: ...

    def why_unusable(self) -> str | None:
        """Why the disk has no links as `put` needs them, which is tried out; None: it has, or that cannot be told."""
        folder = self._directory
        while not os.path.isdir(folder) and folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)  # it is made when something is put
        probe = os.path.join(folder, f"{self._name}.probe-{uuid.uuid4().hex}")
        linked = f"{probe}-link"
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._permissions.file))
            os.link(probe, linked)
            os.link(probe, linked)
        except FileExistsError:
            return None
        except OSError as error:
            return f"this disk makes no hard links ({error})" if error.errno in _NO_LINKS else None
        finally:
            for path in (probe, linked):
                with contextlib.suppress(OSError):
                    os.unlink(path)
        return "this disk makes a hard link over a file that is there"

    def _path(self, number: int) -> str:
        return f"{self.where}-{number}"

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for match in map(self._pattern.fullmatch, names) if match)

    def _tidy(self, numbers: list[int]) -> None:
        old = [self._path(number) for number in numbers[:-_KEPT]]
        for name in os.listdir(self._directory):  # of writers that were killed
            path = os.path.join(self._directory, name)
            with contextlib.suppress(OSError):
                if name.startswith(f"{self._name}.new-") and time.time() - os.stat(path).st_mtime > _LITTER_S:
                    old.append(path)
        for path in old:
            with contextlib.suppress(OSError):
                os.unlink(path)


# ---------------------------------------------------------------- S3


class S3Cell:
    """An object, changed with `If-Match` and `If-None-Match`. ImportError without boto3; NoConditionalWrites where the
    server ignores them, which is tried out first."""

    def __init__(self, location: StorageLocation, name: str, request_s: float = _REQUEST_S) -> None:
        self.where = f"{location.uri}/{name}"
        self._bucket, _, prefix = location.uri.removeprefix("s3://").partition("/")
        self._key = f"{prefix}/{name}" if prefix else name
        self._client = _s3_client(dict(location.options), request_s)
        self._try_out()

    def read(self) -> Content | None:
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=self._key)
        except Exception as error:
            if _code(error) in ("NoSuchKey", "404"):
                return None
            raise
        return Content(found["Body"].read(), found["ETag"])

    def put(self, data: bytes, expected: str | None) -> str | None:
        return self._put(self._key, data, expected)

    def close(self) -> None: ...

    def _put(self, key: str, data: bytes, expected: str | None) -> str | None:
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        try:
            done = self._client.put_object(Bucket=self._bucket, Key=key, Body=data, **condition)
        except Exception as error:
            if _code(error) in ("PreconditionFailed", "412", "NoSuchKey", "404"):
                return None
            if _code(error) in ("NotImplemented", "501"):
                raise NoConditionalWrites(f"{self.where}: the server has no conditional writes") from error
            raise
        return str(done["ETag"])

    def _try_out(self) -> None:
        probe = f"{self._key}.probe-{uuid.uuid4().hex}"
        try:
            first = self._put(probe, b"1", None)
            heeded = first is not None and self._put(probe, b"2", None) is None
            heeded = heeded and self._put(probe, b"2", '"00000000000000000000000000000000"') is None
            replaced = heeded and self._put(probe, b"3", first) is not None
        finally:
            with contextlib.suppress(Exception):
                self._client.delete_object(Bucket=self._bucket, Key=probe)
        if not heeded:
            raise NoConditionalWrites(f"{self.where}: the server does not heed the conditions of conditional writes")
        if not replaced:
            raise NoConditionalWrites(
                f"{self.where}: the server refuses a conditional write (If-Match) also when its condition holds"
            )


def _s3_client(options: dict[str, str], request_s: float) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    anonymous = options.get("anonymous", "").lower() in ("1", "true", "yes")
    endpoint = options.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
    config = Config(
        connect_timeout=request_s,
        read_timeout=request_s,
        retries={"total_max_attempts": 1},  # a write that is repeated unseen could refuse itself
        signature_version=UNSIGNED if anonymous else None,
    )
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=options.get("region") or ("us-east-1" if endpoint else None),
        aws_access_key_id=options.get("access_key"),
        aws_secret_access_key=options.get("secret_key"),
        aws_session_token=options.get("session_token"),
        config=config,
    )


def _code(error: Exception) -> str:
    """Of a ClientError of botocore."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


# ---------------------------------------------------------------- stores without conditional writes


class BestEffortCell:
    """Looks, then writes: what comes in between is overwritten, and found at the next renewal."""

    def __init__(self, files: Files, name: str) -> None:
        self._files = files
        self._name = name
        self.where = files.describe(name)

    def read(self) -> Content | None:
        if self._files.size(self._name) is None:
            return None
        data = self._files.read(self._name)
        return Content(data, checksum(data))

    def put(self, data: bytes, expected: str | None) -> str | None:
        found = self.read()
        if (found.version if found is not None else None) != expected:
            return None
        write_file(self._files, self._name, data)
        return checksum(data)

    def close(self) -> None: ...
