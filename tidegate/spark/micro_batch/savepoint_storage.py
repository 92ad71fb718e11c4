"""How the savepoints of a micro-batch job are reached, by the driver and by its subtasks.

The order for a batch names the folder, and is in Spark's offset log: no keys in it. Those that the job's settings have
go to the workers with the plan. A folder that is named while the job runs is reached with the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.jobmanager.starting_points import storage_options
from tidegate.storage.files import OWNER, Files, open_files
from tidegate.storage.location import StorageLocation, beside


@dataclass(frozen=True)
class SavepointStorage:
    permissions: str = OWNER  # of savepoints on disks
    options: dict[str, str] = field(default_factory=dict, repr=False)  # of S3, with keys

    @staticmethod
    def from_configuration(configuration: Configuration) -> SavepointStorage:
        """With what the folder for checkpoints is reached, and the one for savepoints, which wins."""
        directory = options.read(configuration, options.SAVEPOINT_DIR)
        known = dict(StorageLocation.parse(directory).options) if directory else {}
        permissions = options.read(configuration, options.STORAGE_PERMISSIONS)
        return SavepointStorage(permissions, storage_options(configuration) | known)

    def files(self, target: str, permissions: str | None = None) -> Files:
        """`permissions`: other ones, as an order of an earlier run has them."""
        return open_files(beside(target, self.options).with_permissions(permissions or self.permissions))

    def check_keys(self, directory: str) -> None:
        """ConfigurationError when the workers could not reach it as the URI says."""
        location = StorageLocation.parse(directory)
        reached = beside(str(location), self.options).secrets
        if any(reached.get(name) != value for name, value in location.secrets.items()):
            raise ConfigurationError(
                f"{location}: keys in the URI of a savepoint do not reach the workers of a MICRO_BATCH job that runs: "
                "they would be written into Spark's offset log. Start the job with them in "
                f"{options.SAVEPOINT_DIR.key}, which then hold for all its savepoints, or give them to driver and "
                "workers as the store's own tools find them (environment, role of the machine)"
            )
