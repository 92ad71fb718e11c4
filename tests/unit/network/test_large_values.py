"""Large values: how large they are taken to be, and how they cross the wire without being copied into a pickle."""

import dataclasses
import decimal
import pickle

import numpy as np
import pyarrow as pa
import pytest

from tidegate.common import Row
from tidegate.common.value_sizes import estimated_size
from tidegate.contracts.batches import RecordBatch
from tidegate.network.serialization import deserialize, serialize

MB = 1 << 20


@dataclasses.dataclass
class Image:
    name: str
    pixels: np.ndarray


@dataclasses.dataclass(slots=True)
class SlottedImage:
    pixels: np.ndarray


class Boastful:
    def __sizeof__(self):
        raise RuntimeError("not telling")


@pytest.mark.parametrize(
    "value",
    [
        b"x" * MB,
        "x" * MB,
        bytearray(MB),
        memoryview(bytes(MB)),
        np.zeros(MB, np.uint8),
        pa.table({"a": np.zeros(MB, np.uint8)}),
        ("key", b"x" * MB),
        Row("key", b"x" * MB),
        {"key": {"pixels": np.zeros(MB, np.uint8)}},
        [0.0] * (MB // 8),
        Image("a", np.zeros(MB, np.uint8)),
        SlottedImage(np.zeros(MB, np.uint8)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_size_of_large_values_is_found(value):
    assert 0.9 * MB < estimated_size(value) < 1.2 * MB
    assert 0.9 * 100 * MB < RecordBatch([value] * 100).estimated_bytes() < 1.2 * 100 * MB


@pytest.mark.parametrize("value", [None, 1, 1.5, (1, "a"), {"a": 1}, Row(1, "a"), decimal.Decimal(1), Boastful()])
def test_small_values_are_small(value):
    assert estimated_size(value) < 200


def over_the_wire(values, timestamps=None):
    buffers = []
    kind, count, payload = serialize(RecordBatch(values, timestamps), buffers)
    assert count == len(values)
    batch = deserialize(kind, payload, [bytearray(b) for b in buffers])
    assert batch.timestamps == timestamps
    return batch.values, payload, buffers


@pytest.mark.parametrize("timestamps", [None, [7]])
@pytest.mark.parametrize(
    "value",
    [
        np.arange(MB // 8),
        ("key", np.arange(MB // 8)),
        b"x" * MB,
        ("key", b"x" * MB),
        Image("a", np.arange(MB // 8)),
        pa.table({"a": np.arange(MB // 8)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_large_buffers_stay_outside_the_pickle(value, timestamps):
    (got,), payload, buffers = over_the_wire([value], timestamps)
    assert len(payload) < 10_000
    assert sum(b.nbytes for b in buffers) >= MB
    assert type(got) is type(value)
    assert pickle.dumps(got) == pickle.dumps(value)
    if isinstance(got, np.ndarray):
        got[0] = 5  # as writable as it was


def test_small_buffers_go_with_the_others():
    (*got,), _, buffers = over_the_wire([np.arange(10), b"x" * 100, ("k", b"y")])
    assert buffers == []
    assert [len(g) for g in got] == [10, 100, 2]


def test_what_plain_pickle_refuses_keeps_its_buffers_in_order():
    class Local:
        def __init__(self, pixels):
            self.pixels = pixels

    values = [(np.full(MB // 8, i), Local(np.full(MB // 8, 10 + i))) for i in range(2)]
    got, _, buffers = over_the_wire(values)
    assert len(buffers) == 4
    assert [(a[0], b.pixels[0]) for a, b in got] == [(0, 10), (1, 11)]


def test_a_snapshot_has_everything_in_one_piece():
    kind, _, payload = serialize(RecordBatch([np.arange(MB // 8), b"x" * MB]))
    array, text = deserialize(kind, payload).values
    assert (array[-1], len(text)) == (MB // 8 - 1, MB)
