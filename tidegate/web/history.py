"""Jobs that have ended: the last view of each, as a file of its own.

`<when it ended>-<job id>.json` in `tidegate.history.dir`, or in `<state>/tidegate/history` of the user (see
`registry.py`). Not beside the checkpoints: the folder of a job that retains none is deleted at its end, and many jobs
have no folder. Only the newest are kept, and of each job id the latest run.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

import msgspec

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import TidegateError
from tidegate.jobmanager.job_view import JobView
from tidegate.storage.files import Files, open_files, write_file
from tidegate.storage.location import StorageLocation
from tidegate.web.registry import state_directory

log = logging.getLogger("tidegate.rest")

_PATIENCE_S = 5.0


@dataclass(frozen=True)
class History:
    directory: str | None = None  # path or URI; None: the user's own
    size: int = 100  # jobs that are kept; 0: none

    @staticmethod
    def from_configuration(configuration: Configuration) -> History:
        return History(
            options.read(configuration, options.HISTORY_DIR), options.read(configuration, options.HISTORY_SIZE)
        )

    def keep(self, view: JobView) -> None:
        """Never raises, and does not wait long for a storage that hangs: a job that cannot be archived is a warning.
        One whose JobManager broke before it came to its end is not kept: it would look as if it ran for ever."""
        if self.size and view.ended_ms is not None:
            writer = threading.Thread(target=self._keep, args=(view,), name="tidegate-history", daemon=True)
            writer.start()
            writer.join(_PATIENCE_S)
            if writer.is_alive():
                log.warning("job %s: the storage of its history does not answer", view.name)

    def _keep(self, view: JobView) -> None:
        try:
            files = self._files()
            before = self._names(files)
            name = f"{int(view.ended_ms or 0):013d}-{view.job_id}.json"
            write_file(files, name, view.to_json())
            rest = [n for n in before if _job_of(n) != view.job_id]
            for old in {*before} - {*rest} | {*rest[: max(0, len(rest) + 1 - self.size)]}:
                if old != name:
                    files.delete_file(old)
        except (TidegateError, OSError) as error:
            log.warning("job %s: its last view could not be kept: %s", view.name, error)

    def job_ids(self) -> list[str]:
        """The newest first. Raises TidegateError when the folder cannot be read."""
        return [_job_of(name) for name in reversed(self._names(self._files()))]

    def view(self, job_id: str) -> JobView | None:
        """None when there is no such job here, or its file is damaged. Raises TidegateError."""
        files = self._files()
        for name in reversed(self._names(files)):
            if _job_of(name) == job_id:
                try:
                    return JobView.from_json(files.read(name))
                except msgspec.DecodeError:
                    return None
        return None

    def _files(self) -> Files:
        return open_files(StorageLocation.parse(self.directory or str(state_directory() / "history")))

    @staticmethod
    def _names(files: Files) -> list[str]:
        return sorted(n for n in files.names("") if n.endswith(".json") and n[:13].isdigit() and n[13:14] == "-")


def _job_of(name: str) -> str:
    return name[14:].removesuffix(".json")
