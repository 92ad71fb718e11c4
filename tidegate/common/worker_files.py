"""What a job's workers need besides the job itself."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerFiles:
    """Files to ship. Absolute paths on the driver."""

    cached: dict[str, str] = field(default_factory=dict)  # name -> absolute path on the driver
    archives: dict[str, str] = field(default_factory=dict)  # name of the folder it is unpacked to -> path on the driver
    python_executable: str | None = None  # None: as the session says
    modules: tuple[str, ...] = ()  # Python files, package folders and zips besides those beside the program's script

    requirements: tuple[str, str] | None = None  # requirements file and folder of packages, both on the driver

    def paths(self) -> dict[str, str]:
        """Name -> what a worker makes a path of: a file's path on the driver, or the name of an archive's folder."""
        return {**self.cached, **{name: name for name in self.archives}}
