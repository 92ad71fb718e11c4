"""Savepoints of every released format version are restored, into both backends and at other parallelisms."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from golden_job import golden_job

from tidegate.common.job_status import JobStatus
from tidegate.storage.metadata import FORMAT_VERSION
from tidegate.testing.in_process_job import InProcessJob

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("savepoint-v*"))


def test_there_is_one_for_every_format_version() -> None:
    assert [p.name for p in GOLDEN] == [f"savepoint-v{n}" for n in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("savepoint", GOLDEN, ids=lambda p: p.name)
def test_a_golden_savepoint_is_restored_exactly(savepoint: Path, backend: str, parallelism: int) -> None:
    version = int(savepoint.name.removeprefix("savepoint-v"))
    interval = {"execution.checkpointing.interval": "1 h"}
    with InProcessJob(golden_job(interval, 1, 80, version)) as whole:
        assert whole.run_to_end() is JobStatus.FINISHED
    keys = {**interval, "execution.state-recovery.path": str(savepoint), "state.backend.type": backend}
    with InProcessJob(golden_job(keys, parallelism, 80, version)) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED, resumed.failure
        assert resumed.master.restored_checkpoint == 1
    # The sink sends again what nobody had confirmed before the savepoint, so the later records are compared.
    expected = Counter(repr(r) for r in whole.results if r[0] == "timer" or r[1] > 6)
    found = Counter(repr(r) for r in resumed.results if r[0] == "timer" or r[1] > 6)
    assert found == expected
    assert sum(found.values()) == 80 + 20
