"""Where DataFrames are staged, and when that is kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.common import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind
from tidegate.fault_tolerance.barriers.statistics import CheckpointStatus
from tidegate.spark.dataframes.staging import can_be_resumed, delete_folder, new_folder, spark_path
from tidegate.storage.location import StorageLocation


def session(master: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master))


def test_the_folder_lies_where_all_workers_reach_it(tmp_path: Path) -> None:
    checkpoints = {"execution.checkpointing.dir": str(tmp_path / "c"), "tidegate.cache.dir": str(tmp_path / "d")}
    for settings, parent in (
        (checkpoints, tmp_path / "c"),
        ({"tidegate.cache.dir": str(tmp_path / "d")}, tmp_path / "d"),
    ):
        for master in ("local[2]", "yarn"):
            folder = new_folder(Configuration.from_dict(settings), session(master), "dataframe", "from_spark")
            assert Path(folder.local_path).parent == parent
    folder = new_folder(Configuration(), session("local-cluster[2,2,1024]"), "dataframe", "from_spark")
    assert Path(folder.local_path).exists()
    delete_folder(folder)
    assert not Path(folder.local_path).exists()
    with pytest.raises(ConfigurationError, match=r"from_spark: .*workers of yarn.*tidegate\.cache\.dir"):
        new_folder(Configuration(), session("yarn"), "dataframe", "from_spark")
    assert spark_path(StorageLocation.parse("s3://b/x", {"region": "r"}), "a b") == "s3a://b/x/a%20b"


def test_it_is_kept_while_a_snapshot_needs_it(tmp_path: Path) -> None:
    def client(*kinds: CheckpointKind) -> Any:
        records = [SimpleNamespace(kind=kind, status=CheckpointStatus.COMPLETED) for kind in kinds]
        return SimpleNamespace(checkpoint_history=lambda: records, get_job_id=lambda: "ab" * 16)

    settings = Configuration.from_dict({"execution.checkpointing.dir": str(tmp_path)})
    assert not can_be_resumed(client(), settings)
    assert can_be_resumed(client(CheckpointKind.PERIODIC, CheckpointKind.SAVEPOINT), settings)
    assert not can_be_resumed(client(CheckpointKind.PERIODIC), settings)
    retained = tmp_path / ("ab" * 16) / "chk-3" / "_metadata"
    retained.parent.mkdir(parents=True)
    retained.write_bytes(b"")
    assert can_be_resumed(client(CheckpointKind.PERIODIC), settings)
