"""Where the checkpoints of a running job lie, by its name or id."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidegate.common import options
from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.secrets import HIDDEN
from tidegate.storage.files import open_files
from tidegate.storage.location import StorageLocation, below
from tidegate.web.registry import running_jobs
from tidegate.web.remote import view_of

_INSTEAD = {
    "MICRO_BATCH": "runs in MICRO_BATCH mode: its state is in Spark's state store, there are no checkpoints to read. "
    'Take a savepoint and read that: client.trigger_savepoint("..."), or tidegate savepoint. Or ask for single keys: '
    'client.get_state(...).get(key, level="committed")',
    "BATCH": "runs in BATCH mode, which has no checkpoints: let it end with a savepoint "
    f"({options.BATCH_SAVEPOINT_PATH.key}), and read that",
}


def checkpoints_of(wanted: str, storage: Mapping[str, str]) -> str:
    """The job's own folder, of which the newest complete checkpoint is read. `wanted`: its name, its id, or the
    beginning of that. `storage`: options to reach it. Raises ConfigurationError, RemoteJobError."""
    jobs = running_jobs()
    found = [job for job in jobs if wanted and (job.job_id.startswith(wanted.lower()) or job.job_name == wanted)]
    if len(found) != 1:
        there = ", ".join(f"{job.job_name} ({job.job_id})" for job in found or jobs) or "none"
        what = "several jobs of this user are" if found else "no job of this user is"
        raise ConfigurationError(f"the option job: {what} running here under '{wanted}'; running: {there}")
    view = view_of(found[0])
    if (instead := _INSTEAD.get(view.mode)) is not None:
        raise ConfigurationError(f"job {view.name} ({view.job_id}) {instead}")
    settings = {setting.key: setting.value for setting in view.configuration if setting.given}
    directory = settings.get(options.CHECKPOINT_DIR.key)
    if not directory:
        raise ConfigurationError(
            f"job {view.name} ({view.job_id}) keeps its checkpoints in the memory of its driver: set "
            f"{options.CHECKPOINT_DIR.key} for it, or take a savepoint"
        )
    try:
        return below(directory, _folder_in(StorageLocation.parse(directory, storage), view.job_id))
    except TidegateError as error:
        if HIDDEN not in directory:
            raise
        raise ConfigurationError(
            f"job {view.name} ({view.job_id}) was given the keys to {directory}, and shows them to nobody: give them "
            f"here too, as the options access_key and secret_key or in the environment ({error})"
        ) from error


def _folder_in(directory: StorageLocation, job_id: str) -> str:
    """With high availability each leader has a folder of its own, and the newest one leads."""
    names = open_files(directory).names("")
    epochs = [int(match[1]) for match in map(re.compile(rf"{re.escape(job_id)}-e(\d+)").fullmatch, names) if match]
    return f"{job_id}-e{max(epochs)}" if epochs else job_id
