"""Where the checkpoints of a running job are looked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegate.common import options
from tidegate.spark.state_tables import running_job

JOB = "ab" * 16


@pytest.mark.parametrize(
    ("folders", "found"), [((JOB,), JOB), ((f"{JOB}-e9", f"{JOB}-e10", f"{'cd' * 16}-e11"), f"{JOB}-e10")]
)
def test_the_folder_is_that_of_the_job_and_of_its_newest_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: tuple[str, ...], found: str
) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
    given = SimpleNamespace(key=options.CHECKPOINT_DIR.key, value=str(tmp_path), given=True)
    view = SimpleNamespace(job_id=JOB, name="orders", configuration=(given,))
    monkeypatch.setattr(running_job, "running_jobs", lambda: [SimpleNamespace(job_id=JOB, job_name="orders")])
    monkeypatch.setattr(running_job, "view_of", lambda record: view)
    assert running_job.checkpoints_of("orders") == str(tmp_path / found)
