"""Where DataFrames are landed for a job, and when that place is cleaned up.

Below the checkpoint directory when there is one, since all workers reach it; else below `tidegate.cache.dir`; else in a
temporary folder of this machine, which is enough on a local master and refused on another.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import tempfile
import uuid
from typing import TYPE_CHECKING, Any

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.storage.files import open_files
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tidegate.spark")


def staging_base(configuration: Configuration, session: SparkSession, where: str) -> StorageLocation | None:
    """None: a temporary folder will do."""
    base = options.read(configuration, options.CHECKPOINT_DIR) or options.read(configuration, options.CACHE_DIR)
    if base is not None:
        return StorageLocation.parse(base).with_permissions(options.read(configuration, options.STORAGE_PERMISSIONS))
    if not (session.sparkContext.master or "").startswith("local"):
        raise ConfigurationError(
            f"{where}: the records have to be staged where all workers of {session.sparkContext.master} reach them; "
            f"set {options.CHECKPOINT_DIR.key} or {options.CACHE_DIR.key} to a shared folder"
        )
    return None


def new_folder(configuration: Configuration, session: SparkSession, kind: str, where: str) -> StorageLocation:
    base = staging_base(configuration, session, where)
    if base is None:
        return StorageLocation.parse(tempfile.mkdtemp(prefix=f"tidegate-{kind}-"))
    return base.child(f"{kind}-{uuid.uuid4().hex}")


def delete_folder(folder: StorageLocation) -> None:
    """With everything in it. Never raises."""
    try:
        open_files(folder.parent()).delete_directory(folder.name)
    except Exception as error:
        log.warning("the staging folder %s could not be deleted: %s", folder, error)


def delete_at_exit(folder: StorageLocation) -> None:
    """A DataFrame reads its files whenever somebody asks it something, so they stay as long as the program."""
    atexit.register(_delete_quietly, folder)


def _delete_quietly(folder: StorageLocation) -> None:
    with contextlib.suppress(Exception):  # at the end of the program nobody can be told
        open_files(folder.parent()).delete_directory(folder.name)


def can_be_resumed(client: Any, configuration: Configuration) -> bool:
    """Whether a job that has ended left a snapshot behind, whose offsets point into the staging folder."""
    from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind
    from tidegate.fault_tolerance.barriers.statistics import CheckpointStatus
    from tidegate.storage.filesystem import FileSystemStorage

    history = client.checkpoint_history() if hasattr(client, "checkpoint_history") else ()
    if any(r.kind is CheckpointKind.SAVEPOINT and r.status is CheckpointStatus.COMPLETED for r in history):
        return True
    directory = options.read(configuration, options.CHECKPOINT_DIR)
    if not history or directory is None:
        return False
    try:
        return bool(FileSystemStorage(directory, str(client.get_job_id())).completed_checkpoints())
    except Exception:  # it cannot be looked at: better keep too much
        return True


def spark_path(location: StorageLocation, *names: str) -> str:
    """As Spark's JVM knows it: Hadoop's connector for S3 is s3a. Its credentials come from Spark's configuration."""
    return re.sub(r"^s3://", "s3a://", location.child(*names).uri)
