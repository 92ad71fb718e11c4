"""A map that begins to take 50 ms for each record, in the middle of a large slice: checkpoints go on, and the job is
cancelled at once. What is counted is records: the machine may be slow too."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.programs import wait_until
from tidegate.common import WatermarkStrategy
from tidegate.datastream import MapFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import NumberSequenceSource
from tidegate.storage.handles import CHAIN
from tidegate.storage.metadata import read_metadata

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
SLOW_FROM = 200_000  # 703 records before the end of a slice of 1,024


class Service(MapFunction):
    def __init__(self, calls: Path) -> None:
        self.calls = calls

    def map(self, value: int) -> int:
        if value >= SLOW_FROM:
            time.sleep(0.05)
            with self.calls.open("a") as calls:
                calls.write(".")
        return value


def test_checkpoints_complete_while_a_slice_of_slow_records_is_worked_off(
    make_env: Callable[..., StreamExecutionEnvironment], tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    calls.touch()
    env = make_env(
        1,
        {
            "execution.checkpointing.interval": "500 ms",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        },
    )
    numbers = env.from_source(NumberSequenceSource(1, 1_000_000), WatermarkStrategy.no_watermarks(), "numbers")
    numbers.map(Service(calls)).add_sink(lambda value: None)
    client = env.execute_async()
    try:
        wait_until(lambda: calls.stat().st_size > 0, 120)
        before = client.view().checkpoints.completed
        wait_until(lambda: client.view().checkpoints.completed >= before + 3, 120)
        assert calls.stat().st_size < 500
    finally:
        at_cancel = calls.stat().st_size
        client.cancel().result(timeout=60)
    assert calls.stat().st_size - at_cancel < 200
    (last,) = (tmp_path / "checkpoints").glob("*/chk-*")
    assert all(channel.side == CHAIN for channel in read_metadata(str(last)).metadata.channels)
