"""Looking for new files below the paths of a `FileSource`, on the driver."""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet

from tidegate.connectors.files.input_files import FileStatus, InputFiles
from tidegate.connectors.files.reading import FileListSplit, FilePart, path_of
from tidegate.contracts.connectors import Discovery, SplitEnumerator

_log = logging.getLogger(__name__)


class FolderEnumerator(SplitEnumerator):
    """New files, the oldest first, in as many lists as there are subtasks. A file is read once: when it is changed
    later, that is only logged."""

    def __init__(self, files: InputFiles, parallelism: int) -> None:
        self._files = files
        self._parallelism = parallelism
        self._known: AbstractSet[str] = frozenset()  # as it was last
        self._as_found: dict[str, str] = {}  # path -> name in `_known`
        self._warned: set[FileStatus] = set()

    def discover(self, known: AbstractSet[str]) -> Discovery:
        if not known >= self._known:
            self._as_found.clear()  # the job has gone back to an older checkpoint
            self._known = frozenset()
        self._as_found.update((path_of(name), name) for name in known - self._known)
        self._known = known
        new: list[FileStatus] = []
        for status in self._files.list_all():
            name = self._as_found.get(status.path)
            if name is None:
                new.append(status)
            elif name != FilePart.whole(status).name and status not in self._warned:
                self._warned.add(status)
                _log.warning("%s was changed after it had been read; what is new in it is not read", status.path)
        parts = [FilePart.whole(status) for status in sorted(new, key=lambda s: (s.modified_ns, s.path))]
        lists = [parts[i :: self._parallelism] for i in range(min(self._parallelism, len(parts)))]
        return Discovery([FileListSplit.of_found(mine) for mine in lists])
