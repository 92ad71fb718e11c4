"""`tidegate checkpoint gc`: what crashes have left in a checkpoint directory, found and, when asked, deleted."""

from __future__ import annotations

import time
from typing import Any

from tidegate.cli.errors import CommandError
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.storage.files import open_files
from tidegate.storage.filesystem import storage_in
from tidegate.storage.job_directory import LOCK, SHARED, checkpoint_of_directory
from tidegate.storage.location import StorageLocation
from tidegate.storage.orphans import find_orphans


def collect(arguments: Any) -> dict[str, Any]:
    location = StorageLocation.parse(arguments.directory)
    directories = _job_directories(location)
    if not directories:
        raise CommandError(f"{location} holds no checkpoints: give the checkpoint directory, or that of one job in it")
    jobs = [_collect_job(directory, arguments.delete) for directory in directories]
    problems = [f"{job['job']}: {problem}" for job in jobs for problem in job["problems"]]
    return {"directory": str(location), "deleted": arguments.delete, "jobs": jobs, "problems": problems}


def _job_directories(location: StorageLocation) -> list[StorageLocation]:
    if _is_job(location):
        return [location]
    return [child for name in open_files(location).names("") if _is_job(child := location.child(name))]


def _is_job(location: StorageLocation) -> bool:
    try:
        names = open_files(location).names("")
    except SnapshotError:  # a file
        return False
    return LOCK in names or SHARED in names or any(checkpoint_of_directory(name) is not None for name in names)


def _collect_job(directory: StorageLocation, delete: bool) -> dict[str, Any]:
    storage = storage_in(directory)
    report: dict[str, Any] = {"job": directory.name, "path": str(directory), "orphans": [], "bytes": 0, "problems": []}
    try:
        with storage.locked(time.time() * 1000):
            found = find_orphans(storage)
            report["checkpoints"] = [int(n) for n in storage.completed_checkpoints()]
            report["orphans"] = [*found.deletion.files, *(d + "/" for d in found.deletion.directories)]
            report["bytes"] = found.bytes
            if delete:
                report["problems"] = storage.delete(found.deletion)
    except (ConfigurationError, SnapshotError) as error:
        report["problems"] = [str(error)]
    return report


def print_report(answer: dict[str, Any]) -> None:
    total = sum(job["bytes"] for job in answer["jobs"])
    count = sum(len(job["orphans"]) for job in answer["jobs"])
    for job in answer["jobs"]:
        for path in job["orphans"]:
            print(f"{job['path']}/{path}")
    verb = "deleted" if answer["deleted"] else "found (delete them with --delete)"
    print(f"{count} left-over files and folders, {total:,} bytes, {verb}")
