"""What a test case of the API is. Cases know nothing of the engine: any that runs a DataStream can be held to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.datastream import DataStream, StreamExecutionEnvironment


@dataclass(frozen=True)
class ApiCase:
    """`build` makes a stream in an environment whose parallelism is set; its records have to be `expected`.

    They are compared as a multiset. Where an order is promised, `key` says among which records: for each key the
    records come in the order in which `expected` lists them. `view` turns the records into something else first, for a
    promise that is not about single records (how many each subtask got). `expected` may be a function of the
    parallelism.
    """

    name: str
    build: Callable[[StreamExecutionEnvironment], DataStream]
    expected: Any
    key: Callable[[Any], Any] | None = None
    view: Callable[[list[Any]], Any] | None = None
    parallelisms: tuple[int, ...] = (1, 2, 4)
    config: tuple[tuple[str, Any], ...] = ()
    in_batch: Any = None  # what is expected in BATCH mode, where that differs
    rolling: bool = False  # a result for every record; in BATCH mode only the last one of each key

    def check(self, records: list[Any], parallelism: int, batch: bool = False) -> None:
        expected = self.expected(parallelism) if callable(self.expected) else self.expected
        if batch and self.in_batch is not None:
            expected = self.in_batch
        elif batch and self.rolling:
            expected = [results[-1] for results in by_key(expected, self.key or (lambda record: 0)).values()]
        if self.view is not None:
            assert self.view(records) == expected
            return
        assert sorted(map(exactly, records)) == sorted(map(exactly, expected))
        if self.key is not None:
            assert by_key(records, self.key) == by_key(expected, self.key)


def exactly(value: Any) -> str:
    """Tells apart what `==` does not: 1, 1.0 and True; a tuple and a Row."""
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}[{', '.join(map(exactly, value))}]"
    return f"{type(value).__name__} {value!r}"


def by_key(records: list[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups
