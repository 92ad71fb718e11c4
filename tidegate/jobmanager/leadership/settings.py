"""What high availability needs to know of the configuration."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.leadership.job_record import GraphOutline, JobRecord, decode
from tidegate.jobmanager.leadership.leadership import Leadership, lease_times
from tidegate.storage.files import check_writable, open_files
from tidegate.storage.leases.cells import Cell, open_cell, why_never_conditional
from tidegate.storage.location import StorageLocation

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_LEASE, _RECORD = "lease", "job"


@dataclass(frozen=True)
class HighAvailability:
    kind: str  # filesystem or zookeeper
    cluster_id: str
    lease_ms: float
    standby: bool
    storage_dir: str = ""
    permissions: str = ""
    quorum: str = ""
    root: str = ""
    creator_only: bool = False  # ZooKeeper's nodes are for those who have the same user and password
    user: str = ""
    password: str = field(default="", repr=False)

    @staticmethod
    def from_configuration(configuration: Configuration) -> HighAvailability | None:
        """None when it is off. ConfigurationError when a setting is missing or contradicts another."""
        kind = options.read(configuration, options.HA_TYPE)
        if kind == "NONE" and options.read(configuration, options.HA_STANDBY):
            raise ConfigurationError(
                f"a standby (tidegate run --standby) needs high availability: set {options.HA_TYPE.key}, and what "
                "belongs to it"
            )
        if kind == "NONE":
            return None
        cluster_id = (options.read(configuration, options.HA_CLUSTER_ID) or "").strip("/")
        if not _CLUSTER_ID.fullmatch(cluster_id):
            raise ConfigurationError(
                f"{options.HA_CLUSTER_ID.key} is '{cluster_id}': high availability needs one for each job, of letters, "
                "digits, '_', '-' and '.', at most 128 of them"
            )
        storage_dir = options.read(configuration, options.HA_STORAGE_DIR)
        quorum = options.read(configuration, options.HA_ZOOKEEPER_QUORUM)
        needed, value = (
            (options.HA_STORAGE_DIR, storage_dir) if kind == "filesystem" else (options.HA_ZOOKEEPER_QUORUM, quorum)
        )
        if not value:
            raise ConfigurationError(f"{options.HA_TYPE.key} is {kind}, but {needed.key} is not set")
        lease_ms = options.read(configuration, options.HA_LEASE_DURATION)
        if options.read(configuration, options.HEARTBEAT_INTERVAL) >= lease_ms / 2:
            raise ConfigurationError(
                f"{options.HEARTBEAT_INTERVAL.key} must be less than half of {options.HA_LEASE_DURATION.key} "
                f"({lease_ms} ms): workers would not learn in time that their driver still leads"
            )
        if options.read(configuration, options.CHECKPOINT_INTERVAL) and not options.read(
            configuration, options.CHECKPOINT_DIR
        ):
            raise ConfigurationError(
                f"{options.HA_TYPE.key} is {kind}, but checkpoints are kept in the driver's memory and would be gone "
                f"with it: set {options.CHECKPOINT_DIR.key} to a folder that all drivers reach"
            )
        user, password = (
            options.read(configuration, option) or ""
            for option in (options.HA_ZOOKEEPER_USERNAME, options.HA_ZOOKEEPER_PASSWORD)
        )
        creator_only = options.read(configuration, options.HA_ZOOKEEPER_ACL) == "creator"
        if bool(user) != bool(password) or (creator_only and not user) or ":" in user:
            raise ConfigurationError(
                f"{options.HA_ZOOKEEPER_USERNAME.key} and {options.HA_ZOOKEEPER_PASSWORD.key} belong together, a name "
                f"has no ':' in it, and {options.HA_ZOOKEEPER_ACL.key}: creator needs both"
            )
        return HighAvailability(
            kind,
            cluster_id,
            float(lease_ms),
            options.read(configuration, options.HA_STANDBY),
            storage_dir or "",
            options.read(configuration, options.STORAGE_PERMISSIONS),
            quorum or "",
            options.read(configuration, options.HA_ZOOKEEPER_ROOT),
            creator_only,
            user,
            password,
        )

    def leadership(self, graph: JobGraph) -> Leadership:
        """Of this program in the job that it has built. ConfigurationError when the store cannot be used."""
        lease, record = self._cells()
        candidate = JobRecord(job_id=graph.job_id, name=graph.name, graph=GraphOutline.of(graph))
        return Leadership(lease, record, self.lease_ms, candidate)

    def record(self) -> JobRecord | None:
        """As it lies in the store, whoever leads. None: nobody ever has. UnusableRecordError when it is none."""
        lease, record = self._cells()
        try:
            content = record.read()
        finally:
            lease.close()
            record.close()
        return None if content is None else decode(content.data, record.where)

    def _cells(self) -> tuple[Cell, Cell]:
        request_s = lease_times(self.lease_ms).request_s
        if self.kind == "zookeeper":
            from tidegate.storage.leases.zookeeper import open_zookeeper_cells

            lease, record = open_zookeeper_cells(
                self.quorum,
                f"{self.root.rstrip('/')}/{self.cluster_id}",
                (_LEASE, _RECORD),
                request_s=request_s,
                credentials=f"{self.user}:{self.password}" if self.user else None,
                creator_only=self.creator_only,
            )
            return lease, record
        location = StorageLocation.parse(self.storage_dir).with_permissions(self.permissions)
        _check_usable(location)
        folder = location.child(self.cluster_id)
        lease, record = (open_cell(folder, name, conditional=True, request_s=request_s) for name in (_LEASE, _RECORD))
        return lease, record


def _check_usable(location: StorageLocation) -> None:
    """A folder is not made: where a shared disk is not mounted, every machine would get one of its own."""
    key = options.HA_STORAGE_DIR.key
    why = why_never_conditional(location)
    if why is not None:
        raise ConfigurationError(
            f"{key}: {location.uri}: no lease can be kept here, since {why}; use a local or shared disk, an S3 store "
            f"with conditional writes, or {options.HA_TYPE.key}: zookeeper"
        )
    if location.is_local and not os.path.isdir(location.local_path):
        raise ConfigurationError(
            f"{key}: there is no folder {location.local_path}; make it, on a disk that all drivers of the job reach, "
            "or mount that disk"
        )
    try:
        check_writable(open_files(location))
    except (ConfigurationError, SnapshotError) as error:
        cause = error.__cause__ or error
        raise ConfigurationError(
            f"{key}: {location} cannot be written to: {cause}; give the user of the job the rights to write there"
        ) from error
