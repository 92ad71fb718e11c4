"""Records of many megabytes: memory does not follow the input, and nobody is taken for dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tidegate.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]
MB = 1 << 20


class Large(MapFunction):
    """A large value for each number, at once, and the memory of this worker counted from now on."""

    def __init__(self, size: int) -> None:
        self._size = size

    def open(self, runtime_context: RuntimeContext) -> None:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts again: the worker may have had other jobs

    def map(self, value: int) -> tuple[int, Any]:
        return value, np.full(self._size, value % 251, np.uint8) if value % 2 else bytes([value % 251]) * self._size


class Checked(KeyedProcessFunction):
    def process_element(self, value: tuple[int, Any], ctx: Any) -> Any:
        number, large = value
        yield number, len(large), int(large[0]), int(large[-1]), _peak()


def _peak() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


@pytest.mark.parametrize(("count", "size", "most"), [(400, 5 * MB, 500 * MB), (4, 100 * MB, 2500 * MB)])
def test_large_records_through_a_keyed_exchange(make_env: MakeEnv, count: int, size: int, most: int) -> None:
    """Nothing restarts it: a heartbeat that is missed would end the job."""
    env = make_env(2, {"heartbeat.interval": "500 ms", "heartbeat.timeout": "6 s"})
    stream = env.from_collection(list(range(count))).map(Large(size)).key_by(lambda r: r[0]).process(Checked())
    with stream.execute_and_collect() as results:
        got = sorted(results)
    assert [row[:4] for row in got] == [(i, size, i % 251, i % 251) for i in range(count)]
    peak = max(row[4] for row in got)
    assert peak < most, f"{peak / MB:.0f} MB of memory for {count} records of {size / MB:.0f} MB"
