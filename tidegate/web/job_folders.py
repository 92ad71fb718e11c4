"""The views that jobs have left beside their checkpoints: in a folder that holds the folders of jobs."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidegate.storage.files import Files
from tidegate.storage.job_directory import VIEW

log = logging.getLogger("tidegate.rest")

ArchivedFile = tuple[str, int]  # its path, and its size where a later run of the job writes a file of the same name
T = TypeVar("T")
R = TypeVar("R")

_JOB_FOLDER = re.compile(r"(?P<job>[0-9a-f]{32})(-e(?P<epoch>\d+))?")  # each leader of a job has a folder of its own
_MOST_FOLDERS = 1_000  # that are looked into
_KEPT_S = 30.0  # so long nothing is asked again of a store where each look is a call over the network
_AT_ONCE = 16  # such calls


class JobFolders:
    """Thread-safe. Raises TidegateError when the storage does not answer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[str, ArchivedFile] = {}  # by job id, as of `_looked_at`
        self._looked_at: float | None = None
        self._cut = False  # and it was said

    def views(self, files: Files) -> dict[str, ArchivedFile]:
        """By job id that of its latest leader. On an object store as of some seconds ago."""
        with self._lock:  # whoever comes meanwhile gets what is found now
            now = self._clock()
            if not files.remote or self._looked_at is None or now - self._looked_at >= _KEPT_S:
                folders = self._folders(files)
                self._tell_of_cut(files, len(folders))
                self._found = _views_in(files, folders[:_MOST_FOLDERS])
                self._looked_at = now
            return dict(self._found)

    def view_of(self, files: Files, job_id: str) -> ArchivedFile | None:
        """As it is now."""
        mine = [name for name in self._folders(files) if name[:32] == job_id]
        return _views_in(files, mine[:_MOST_FOLDERS]).get(job_id)

    @staticmethod
    def _folders(files: Files) -> list[str]:
        """Those of later leaders first."""
        found = [match for match in map(_JOB_FOLDER.fullmatch, files.names("")) if match is not None]
        return [match[0] for match in sorted(found, key=lambda match: int(match["epoch"] or 0), reverse=True)]

    def _tell_of_cut(self, files: Files, count: int) -> None:
        if count > _MOST_FOLDERS and not self._cut:
            log.warning(
                "%s holds the folders of %d jobs: only %d of them are looked into for jobs that have ended. Asked for "
                "by its id a job is found all the same; to list all of them set tidegate.history.dir for the jobs, or "
                "delete the folders of those that are over",
                files.describe(""),
                count,
                _MOST_FOLDERS,
            )
        self._cut = count > _MOST_FOLDERS


def _views_in(files: Files, folders: list[str]) -> dict[str, ArchivedFile]:
    found: dict[str, ArchivedFile] = {}
    paths = [f"{folder}/{VIEW}" for folder in folders]
    for path, size in zip(paths, at_once(files, files.size, paths), strict=True):
        if size is not None:
            found.setdefault(path[:32], (path, size))
    return found


def at_once(files: Files, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """What a call says of each, in their order. Over the network many are under way at the same time."""
    items = list(items)
    if not files.remote or len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), "tidegate-history") as pool:
        return list(pool.map(call, items))
