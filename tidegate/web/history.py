"""Jobs that have ended: the last view of each, as a file of its own.

`<when it ended>-<job id>.json` (and, as `.summary` beside it, what the list of jobs says of it) in
`tidegate.history.dir`, or in `<state>/tidegate/history` of the user (see `registry.py`): only the newest, and of each
job id the latest run. A job that leaves checkpoints in a directory has both beside them too, as `<job id>/_view.json`,
for whoever finds them; so a checkpoint directory can be read as a history. (That alone would not do: the folder of a
job that retains none is deleted at its end, and many jobs have no folder.)
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.decoding import UNREADABLE
from tidegate.common.errors import TidegateError
from tidegate.jobmanager.job_view import JobView
from tidegate.storage.files import Files, open_files, write_file
from tidegate.storage.job_directory import VIEW, VIEW_SUMMARY, checkpoint_of_directory
from tidegate.storage.location import StorageLocation
from tidegate.web import documents
from tidegate.web.job_folders import ArchivedFile, JobFolders, at_once
from tidegate.web.registry import state_directory

log = logging.getLogger("tidegate.rest")

_PATIENCE_S = 5.0

Document = dict[str, Any]


@dataclass(frozen=True)
class History:
    directory: str | None = None  # path or URI; None: the user's own
    size: int = 100  # jobs that are kept; 0: none
    _folders: JobFolders = field(default_factory=JobFolders, init=False, repr=False, compare=False)

    @staticmethod
    def from_configuration(configuration: Configuration) -> History:
        return History(
            options.read(configuration, options.HISTORY_DIR), options.read(configuration, options.HISTORY_SIZE)
        )

    def keep(self, view: JobView, beside: Files | None = None) -> None:
        """`beside`: the job's folder of checkpoints, which gets it too when any are left there.

        Never raises, and does not wait long for a storage that hangs: a job that cannot be archived is a warning.
        One whose JobManager broke before it came to its end is not kept: it would look as if it ran for ever."""
        if self.size and view.ended_ms is not None:
            writer = threading.Thread(target=self._keep, args=(view, beside), name="tidegate-history", daemon=True)
            writer.start()
            writer.join(_PATIENCE_S)
            if writer.is_alive():
                log.warning("job %s: the storage of its history does not answer", view.name)

    def _keep(self, view: JobView, beside: Files | None) -> None:
        summary = msgspec.json.encode(documents.summary(view, view.ended_ms or 0.0))
        try:
            if beside is not None and any(map(checkpoint_of_directory, beside.names(""))):
                write_file(beside, VIEW_SUMMARY, summary)
                write_file(beside, VIEW, view.to_json())
            files = self._files()
            before = self._names(files)
            name = f"{int(view.ended_ms or 0):013d}-{view.job_id}.json"
            write_file(files, _summary_of(name), summary)
            write_file(files, name, view.to_json())
            rest = [n for n in before if _job_of(n) != view.job_id]
            for old in {*before} - {*rest} | {*rest[: max(0, len(rest) + 1 - self.size)]}:
                if old != name:
                    files.delete_file(old)
                    files.delete_file(_summary_of(old))
        except (TidegateError, OSError) as error:
            log.warning("job %s: its last view could not be kept: %s", view.name, error)

    def job_ids(self) -> list[str]:
        """The newest first, then those that are beside their checkpoints only. Raises TidegateError when the folder
        cannot be read."""
        return list(self._paths(self._files()))

    def summaries(self, known: Mapping[ArchivedFile, Document]) -> dict[ArchivedFile, Document]:
        """What the list of jobs says of each, in the order of `job_ids`. `known`: what this has answered before, which
        is not read again. Raises TidegateError when the folder cannot be read."""
        files, found = self._files(), {}
        paths = self._paths(files)
        new = [file for file in paths.values() if not known.get(file)]
        read = dict(zip(new, at_once(files, lambda file: self._read_summary(files, file), new), strict=True))
        for job_id, file in paths.items():
            summary = known.get(file) or read[file]
            if summary is not None and summary["job_id"] == job_id:
                found[file] = summary
        return found

    @staticmethod
    def _read_summary(files: Files, file: ArchivedFile) -> Document | None:
        """From the view itself where there is no summary beside it that says all. None when there is no view either."""
        path, _ = file
        with contextlib.suppress(TidegateError, OSError, *UNREADABLE):
            return documents.kept_summary(files.read(_summary_of(path)))
        with contextlib.suppress(TidegateError, OSError, *UNREADABLE):
            view = JobView.from_json(files.read(path))
            return documents.summary(view, view.ended_ms or 0.0)
        return None

    def view(self, job_id: str) -> JobView | None:
        """None when there is no such job here, or its file is damaged. Raises TidegateError."""
        files = self._files()
        name = next((name for name in reversed(self._names(files)) if _job_of(name) == job_id), None)
        file = (name, 0) if name is not None else self._beside_checkpoints(files, job_id)
        if file is None:
            return None
        try:
            return JobView.from_json(files.read(file[0]))
        except UNREADABLE:
            return None

    def _paths(self, files: Files) -> dict[str, ArchivedFile]:
        """Job id -> its file, in the order of `job_ids`."""
        found: dict[str, ArchivedFile] = {}
        for name in reversed(self._names(files)):
            found.setdefault(_job_of(name), (name, 0))
        if self.directory is not None:
            for job_id, file in self._folders.views(files).items():
                found.setdefault(job_id, file)
        return found

    def _beside_checkpoints(self, files: Files, job_id: str) -> ArchivedFile | None:
        return None if self.directory is None else self._folders.view_of(files, job_id)

    def _files(self) -> Files:
        return open_files(StorageLocation.parse(self.directory or str(state_directory() / "history")))

    @staticmethod
    def _names(files: Files) -> list[str]:
        return sorted(n for n in files.names("") if n.endswith(".json") and n[:13].isdigit() and n[13:14] == "-")


def _summary_of(name: str) -> str:
    return name.removesuffix(".json") + ".summary"


def _job_of(name: str) -> str:
    return name[14:].removesuffix(".json")
