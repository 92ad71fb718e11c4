"""A stream with several readers: what one of them does to a record, the others do not see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from tidegate.common import Row
from tidegate.contracts.batches import RecordBatch
from tidegate.datastream import DataStream, OutputTag, ProcessFunction, StreamExecutionEnvironment
from tidegate.taskmanager.copying import cannot_change, copied_batch
from tidegate.testing import InProcessJob

pytestmark = pytest.mark.filterwarnings("ignore::tidegate.common.errors.MutatedInputWarning")


@dataclass
class Point:
    x: int


def spoil(record: dict[str, Any]) -> dict[str, Any]:
    record["n"] += 100
    record["inner"].append("spoiled")
    return record


def environment(parallelism: int = 1, chaining: bool = True) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    if not chaining:
        env.disable_operator_chaining()
    return env


def numbers_of(stream: DataStream) -> list[tuple[int, tuple[str, ...]]]:
    with InProcessJob.collecting(stream.map(lambda r: (r["n"], tuple(r["inner"])))) as job:
        job.run_to_end()
        return sorted(job.results)


def records(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([{"n": i, "inner": []} for i in range(4)])


@pytest.mark.parametrize("spoiler_first", [True, False])
@pytest.mark.parametrize("chaining", [True, False])
def test_a_change_in_one_branch_does_not_reach_the_other(chaining: bool, spoiler_first: bool) -> None:
    env = environment(chaining=chaining)
    made = records(env).map(lambda r: r)
    branches: list[Callable[[DataStream], DataStream]] = [lambda s: s.map(spoil), lambda s: s.map(lambda r: r)]
    first, second = [branch(made) for branch in (branches if spoiler_first else reversed(branches))]
    plain = [(i, ()) for i in range(4)]
    spoiled = [(i + 100, ("spoiled",)) for i in range(4)]
    assert numbers_of(first.union(second)) == sorted(plain + spoiled)


def test_nor_does_it_reach_records_that_are_sent_later() -> None:
    env = environment(parallelism=2)
    made = records(env).rebalance().map(lambda r: r)
    made.map(spoil).add_sink(lambda r: None)
    far = made.key_by(lambda r: r["n"]).map(lambda r: r)
    assert numbers_of(far) == [(i, ()) for i in range(4)]


def test_nor_the_other_subtasks_of_a_broadcast() -> None:
    env = environment(parallelism=3)
    everywhere = records(env).map(lambda r: r).set_parallelism(1).broadcast().map(spoil)
    assert numbers_of(everywhere) == sorted([(i + 100, ("spoiled",)) for i in range(4)] * 3)


class ToOutputs(ProcessFunction):
    """Yields each record to several outputs; None is the main one."""

    def __init__(self, order: list[OutputTag | None]) -> None:
        self._order = order

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        for tag in self._order:
            yield value if tag is None else (tag, value)


A, B = OutputTag("a"), OutputTag("b")


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("order", [[None, A], [A, None], [A, B], [B, A], [None, A, B], [B, A, None]])
def test_an_object_that_was_yielded_to_several_outputs_changes_in_one_only(
    order: list[OutputTag | None], far: bool
) -> None:
    """Whichever output is changed and in whatever order they are emitted; also when the others leave the task."""
    for spoiled in order:
        env = environment(parallelism=2 if far else 1)
        made = records(env).process(ToOutputs(order))
        outputs = {tag: made if tag is None else made.get_side_output(tag) for tag in order}
        outputs[spoiled].map(spoil).add_sink(lambda r: None)
        for tag in order:
            if tag is not spoiled:
                stream = outputs[tag].rebalance() if far else outputs[tag]
                outputs[tag] = stream.map(lambda r: r)
        others = [stream for tag, stream in outputs.items() if tag is not spoiled]
        expected = sorted([(i, ()) for i in range(4)] * len(others))
        assert numbers_of(others[0].union(*others[1:])) == expected


def test_with_object_reuse_several_outputs_share_the_object() -> None:
    env = environment()
    env.get_config().enable_object_reuse()
    made = records(env).process(ToOutputs([None, A]))
    found = numbers_of(made.map(spoil).union(made.get_side_output(A).map(lambda r: r)))
    assert found == sorted([(i + 100, ("spoiled",)) for i in range(4)] * 2)


def test_with_object_reuse_all_readers_get_the_same_objects() -> None:
    env = environment()
    env.get_config().enable_object_reuse()
    made = records(env).map(lambda r: r)
    spoiled, other = made.map(spoil), made.map(lambda r: r)
    found = numbers_of(spoiled.union(other))
    assert found == sorted([(i + 100, ("spoiled",)) for i in range(4)] * 2)


def test_a_single_reader_gets_the_object_itself() -> None:
    seen: list[Any] = []
    env = environment()
    made = env.from_collection([[1]]).map(lambda r: seen.append(r) or r)
    with InProcessJob.collecting(made.map(lambda r: r is seen[0])) as job:
        job.run_to_end()
        assert job.results == [True]


@pytest.mark.parametrize("value", [None, 1, 1.5, "a", b"a", (1, ("a", date(2020, 1, 1))), frozenset({1}), ()])
def test_what_cannot_be_changed_is_not_copied(value: Any) -> None:
    assert cannot_change([value])
    batch = RecordBatch([value])
    assert copied_batch(batch) is batch


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, {"a": [1]}, ([1],), Row(1, "a"), Point(3), {1}, bytearray(b"a"), [[1]]]
)
def test_what_can_be_changed_is_copied(value: Any) -> None:
    copy = copied_batch(RecordBatch([value, value], [1, 2])).rows()
    assert copy.values == [value, value]
    assert copy.timestamps == [1, 2]
    assert copy.values[0] is not value


def test_copies_of_an_object_that_is_there_twice_are_two() -> None:
    record = {"n": 1, "inner": []}
    copy = copied_batch(RecordBatch([record, record])).rows().values
    spoil(copy[0])
    assert copy[1] == {"n": 1, "inner": []}


def test_what_cannot_be_pickled_is_copied_too_and_what_cannot_be_copied_is_shared() -> None:
    class Local:
        def __init__(self) -> None:
            self.items = [1]

    local, lock = Local(), threading.Lock()
    copy = copied_batch(RecordBatch([local, {"lock": lock}])).rows()
    copy.values[0].items.append(2)
    assert local.items == [1]
    assert copy.values[1]["lock"] is lock
