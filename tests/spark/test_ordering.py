"""Records between one pair of subtasks never overtake each other, however they are partitioned and batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.spark.cases.single import numbers
from tidegate.datastream import DataStream, MapFunction, ProcessFunction, RuntimeContext, StreamExecutionEnvironment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]
COUNT = 8_000


class Stamp(MapFunction):
    """(sending subtask, number within it, value)"""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.sent = 0

    def map(self, value: int) -> Any:
        self.sent += 1
        return self.subtask, self.sent, value


class InOrder(ProcessFunction):
    """Lets every record through as its number; one that comes after a later one of the same sender fails the job."""

    def __init__(self, branch: str) -> None:
        self.branch = branch

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last: dict[int, int] = {}

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        sender, number, _ = value
        assert number > self.last.get(sender, 0), f"{self.branch}: {number} of {sender} after {self.last[sender]}"
        self.last[sender] = number
        yield self.branch, 1


PARTITIONINGS: dict[str, Callable[[DataStream], DataStream]] = {
    "rebalance": lambda s: s.rebalance(),
    "rescale": lambda s: s.rescale(),
    "shuffle": lambda s: s.shuffle(),
    "forward": lambda s: s.forward(),
    "broadcast": lambda s: s.broadcast(),
    "global": lambda s: s.global_(),
    "custom": lambda s: s.partition_custom(lambda key, n: key % n, lambda r: r[2]),
}


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize(("batch_size", "credits"), [(1, 1), (7, 2)])
def test_records_of_a_pair_of_subtasks_stay_in_order(
    make_env: MakeEnv, parallelism: int, batch_size: int, credits: int
) -> None:
    config = {"tidegate.network.batch-size": batch_size, "tidegate.network.credits-per-channel": credits}
    env = make_env(parallelism, config).set_buffer_timeout(0 if batch_size == 1 else 5)
    count = COUNT if batch_size > 1 else COUNT // 8
    stamped = numbers(env, count).map(Stamp())
    branches = [way(stamped).process(InOrder(name)).start_new_chain() for name, way in PARTITIONINGS.items()]
    keyed = stamped.key_by(lambda r: r[2] % 11).map(lambda r: r).process(InOrder("key_by"))
    counts = keyed.union(*branches).key_by(lambda r: r[0]).sum(1)
    final: dict[str, int] = {}
    for name, number in counts.execute_and_collect():
        assert number == final.get(name, 0) + 1
        final[name] = number
    broadcast = final.pop("broadcast")
    assert broadcast == count * parallelism
    assert final == dict.fromkeys([*(n for n in PARTITIONINGS if n != "broadcast"), "key_by"], count)
