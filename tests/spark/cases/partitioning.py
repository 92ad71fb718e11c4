"""Where records go: rebalance, rescale, shuffle, broadcast, forward, partition_custom, global, key_by."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.spark.cases.case import ApiCase
from tests.spark.cases.single import NUMBERS, counts_per_subtask, numbers
from tidegate.datastream import DataStream, MapFunction, Partitioner, RuntimeContext, StreamExecutionEnvironment

Env = StreamExecutionEnvironment


class WithSubtask(MapFunction):
    """Appends the index of the subtask to a tuple, or makes a tuple."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        return (*value, self.subtask) if isinstance(value, tuple) else (value, self.subtask)


class ByRemainder(Partitioner):
    def partition(self, key: int, num_partitions: int) -> int:
        return key % num_partitions


def forwarded(env: Env) -> DataStream:
    return numbers(env).map(WithSubtask()).forward().map(WithSubtask()).start_new_chain()


def rescaled(env: Env) -> DataStream:
    """From 2 subtasks to p: each upstream subtask feeds its own part."""
    return numbers(env).map(WithSubtask()).set_parallelism(2).rescale().map(WithSubtask())


def rescale_view(records: list[Any]) -> Any:
    upstream = {}
    for _, up, down in records:
        upstream.setdefault(down, set()).add(up)
    return sorted(r[0] for r in records), upstream


def values(records: list[Any]) -> list[Any]:
    return sorted(r[0] for r in records)


def subtasks_of_keys(records: list[Any]) -> Any:
    """Every key in one subtask only."""
    seen: dict[int, set[int]] = {}
    for value, subtask in records:
        seen.setdefault(value % 5, set()).add(subtask)
    return values(records), [len(subtasks) for _, subtasks in sorted(seen.items())]


def shuffle_view(records: list[Any]) -> Any:
    return values(records), len({r[1] for r in records})


CASES = [
    ApiCase(
        "rebalance",
        lambda env: env.from_collection(range(40)).rebalance().map(WithSubtask()),
        lambda p: [40 // p] * p,
        view=counts_per_subtask,
    ),
    ApiCase("rebalance_keeps_all", lambda env: numbers(env).rebalance().map(lambda n: n), NUMBERS),
    ApiCase(
        "different_parallelism_is_rebalanced",
        lambda env: env.from_collection(range(40)).map(WithSubtask()),
        lambda p: [40 // p] * p,
        view=counts_per_subtask,
    ),
    ApiCase(
        "rescale",
        rescaled,
        lambda p: (NUMBERS, {1: {0: {0, 1}}, 2: {0: {0}, 1: {1}}, 4: {0: {0}, 1: {0}, 2: {1}, 3: {1}}}[p]),
        view=rescale_view,
    ),
    ApiCase(
        "shuffle",
        lambda env: numbers(env, 200).shuffle().map(WithSubtask()),
        lambda p: (list(range(200)), p),
        view=shuffle_view,
    ),
    ApiCase(
        "broadcast",
        lambda env: env.from_collection([1, 2, 3]).broadcast().map(WithSubtask()),
        lambda p: [(n, subtask) for n in (1, 2, 3) for subtask in range(p)],
        key=lambda r: r[1],
    ),
    ApiCase(
        "forward",
        forwarded,
        lambda p: (NUMBERS, {True}),
        view=lambda records: (values(records), {up == down for _, up, down in records}),
    ),
    ApiCase(
        "partition_custom",
        lambda env: env.from_collection(NUMBERS).partition_custom(ByRemainder(), lambda n: n + 1).map(WithSubtask()),
        lambda p: [(n, (n + 1) % p) for n in NUMBERS],
        key=lambda r: r[1],
    ),
    ApiCase(
        "partition_custom_functions",
        lambda env: numbers(env).partition_custom(lambda key, n: n - 1, lambda n: n).map(WithSubtask()),
        lambda p: [(n, p - 1) for n in NUMBERS],
    ),
    ApiCase(
        "global",
        lambda env: numbers(env).global_().map(WithSubtask()),
        [(n, 0) for n in NUMBERS],
    ),
    ApiCase(
        "key_by_keeps_a_key_together",
        lambda env: numbers(env).key_by(lambda n: n % 5).map(WithSubtask()),
        (NUMBERS, [1] * 5),
        view=subtasks_of_keys,
    ),
    ApiCase(
        "key_by_uses_all_subtasks",
        lambda env: numbers(env, 400).key_by(lambda n: n).map(WithSubtask()),
        lambda p: set(range(p)),
        view=lambda records: set(Counter(r[1] for r in records)),
    ),
]
