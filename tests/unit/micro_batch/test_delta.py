"""A Delta table as the sink of micro-batches: its log keeps each application id, so there is one set for an attempt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.micro_batch.engine import Engine
from tidegate.common import Row, Types
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.delta import DeltaSink

deltalake = pytest.importorskip("deltalake")
BATCHES, PER_BATCH = 20, 2


@pytest.mark.parametrize("kills", [0, 2])
def test_all_batches_of_an_attempt_commit_under_the_same_ids(tmp_path: Path, kills: int) -> None:
    """Those of a batch that was killed are left behind, and nothing is lost or doubled."""
    columns = Types.ROW_NAMED(["a"], [Types.LONG()])
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    rows = env.from_collection([Row(i) for i in range(BATCHES * PER_BATCH)]).map(lambda row: row, columns)
    rows.sink_to(DeltaSink(str(tmp_path / "table"), columns))
    engine = Engine(env, max_records=PER_BATCH, kills=kills).run()
    assert bool(engine.killed) == bool(kills)
    written = deltalake.DeltaTable(str(tmp_path / "table")).to_pyarrow_table().column("a").to_pylist()
    assert sorted(written) == list(range(BATCHES * PER_BATCH))
    log = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    ids = [action["txn"]["appId"] for action in actions if "txn" in action]
    assert len(ids) == BATCHES
    assert len({name.rpartition("-")[0] for name in ids}) <= 1 + kills
