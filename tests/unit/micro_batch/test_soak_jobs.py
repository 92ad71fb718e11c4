"""The jobs of `make soak-micro-batch` that write their results to files, without Spark: what it expects is what they
write, where it looks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.micro_batch.soak_job import IN_FILES, PER_BATCH, build_into_files, expected
from tests.spark.recovery_kit import visible_lines
from tests.unit.micro_batch.engine import Engine
from tidegate.datastream import StreamExecutionEnvironment


@pytest.mark.parametrize("kind", IN_FILES)
def test_the_soak_expects_what_its_jobs_write(kind: str, tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    build_into_files(env, kind, str(tmp_path))
    Engine(env, max_records=PER_BATCH, kills=3).run()
    found, wanted = visible_lines(tmp_path / "out"), expected(kind)
    assert ((wanted - found).total(), (found - wanted).total()) == (0, 0)
