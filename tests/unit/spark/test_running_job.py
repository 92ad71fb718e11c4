"""Where the checkpoints of a running job are looked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate.common import options
from tidegate.common.errors import ConfigurationError
from tidegate.spark.state_tables import running_job

JOB = "ab" * 16


def run(monkeypatch: pytest.MonkeyPatch, mode: str, *settings: SimpleNamespace) -> None:
    view = SimpleNamespace(job_id=JOB, name="orders", mode=mode, configuration=settings)
    monkeypatch.setattr(running_job, "running_jobs", lambda: [SimpleNamespace(job_id=JOB, job_name="orders")])
    monkeypatch.setattr(running_job, "view_of", lambda record: view)


@pytest.mark.parametrize(
    ("folders", "found"), [((JOB,), JOB), ((f"{JOB}-e9", f"{JOB}-e10", f"{'cd' * 16}-e11"), f"{JOB}-e10")]
)
def test_the_folder_is_that_of_the_job_and_of_its_newest_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: tuple[str, ...], found: str
) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
    given = SimpleNamespace(key=options.CHECKPOINT_DIR.key, value=str(tmp_path), given=True)
    run(monkeypatch, "STREAMING", given)
    assert running_job.checkpoints_of("orders", {}) == str(tmp_path / found)


@pytest.mark.parametrize(
    ("mode", "what_works"),
    [
        ("MICRO_BATCH", r"client\.trigger_savepoint.*level=\"committed\""),
        ("BATCH", r"execution\.batch\.savepoint-path"),
    ],
)
@pytest.mark.parametrize("with_folder", [False, True])
def test_a_job_of_a_mode_without_checkpoints_says_what_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, what_works: str, with_folder: bool
) -> None:
    given = SimpleNamespace(key=options.CHECKPOINT_DIR.key, value=str(tmp_path), given=with_folder)
    run(monkeypatch, mode, given)
    with pytest.raises(ConfigurationError, match=f"job orders .{JOB}. runs in {mode} mode.*{what_works}"):
        running_job.checkpoints_of("orders", {})
