"""The order of blocks, their keys, what is refused."""

from __future__ import annotations

import struct

import pytest

from tidegate.common.errors import JobGraphError
from tidegate.spark.batch import blocks
from tidegate.spark.batch.order import OrderLayout, Phase, TooManyBlocksError, pack_key


def key(data: bytes) -> int:
    return int(struct.unpack("!q", data)[0])


def test_keys_sort_by_phase_group_producer_and_sequence_and_keep_the_target() -> None:
    layout = OrderLayout(groups=5, producers=3)
    places = [(phase, g, p) for phase in Phase for g in range(5) for p in range(3)]
    keys = [
        key(pack_key(layout.first(phase, group, producer) + n, target=7))
        for phase, group, producer in places
        for n in (0, 1, layout.max_blocks - 1)
    ]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert {k & 0xFFFFFFFF for k in keys} == {7}
    assert all(-(2**63) <= k < 2**63 for k in keys)


def test_a_graph_that_is_too_wide_is_refused_by_name() -> None:
    OrderLayout(groups=128, producers=2**10).check("Sum")
    with pytest.raises(JobGraphError, match="'Sum' cannot run in BATCH mode: it reads 65536 subtasks"):
        OrderLayout(groups=512, producers=2**16).check("Sum")


def test_blocks_are_never_numbered_past_the_next_producers() -> None:
    series = blocks.BlockSeries(blocks.Header(0, blocks.ROWS, 0, 0), 8, 2, 0, "Sum")
    assert [key(series.next(blocks.ROWS, b"")[0]) + 2**63 >> 32 for _ in range(2)] == [8, 9]
    with pytest.raises(TooManyBlocksError, match=r"subtask of 'Sum'.*execution\.batch\.buffer-size"):
        series.next(blocks.ROWS, b"")
