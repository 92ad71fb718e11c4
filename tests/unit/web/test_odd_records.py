from __future__ import annotations

import pytest

from tidegate.web.registry import jobs_directory, running_jobs


@pytest.mark.parametrize("data", [b"", b'{"job_id": "\x80"', b"[" * 100_000, b"{}"])
def test_a_file_that_is_no_record_is_removed_and_not_met(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    jobs_directory().mkdir(parents=True)
    (jobs_directory() / "odd.json").write_bytes(data)
    assert running_jobs() == []
    assert not list(jobs_directory().iterdir())
