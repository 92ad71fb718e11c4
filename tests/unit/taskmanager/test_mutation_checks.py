"""The debug mode that notices state and records that were changed in place."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate.common.errors import MutatedInputWarning, MutationError
from tidegate.common.time import Time
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.functions import ProcessWindowFunction, RuntimeContext
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.taskmanager.operators.keyed import KeyedProcessOperator
from tidegate.testing import Harness, InProcessJob

BACKENDS = pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
Do = Callable[["States"], Any]


class States(KeyedProcessFunction):
    """Does something with the states for every record; what it yields is of no interest."""

    def __init__(self, *steps: Do) -> None:
        self.steps = list(steps)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("items"))
        self.list = runtime_context.get_list_state(ListStateDescriptor("orders"))
        self.map = runtime_context.get_map_state(MapStateDescriptor("by day"))
        self.reducing = runtime_context.get_reducing_state(ReducingStateDescriptor("all", lambda a, b: a + b))
        expiring = ValueStateDescriptor("short")
        expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.expiring = runtime_context.get_state(expiring)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.steps.pop(0)(self)
        yield value


def run(*steps: Do, backend: str = "hashmap", snapshot: bool = False) -> None:
    configuration = {"state.backend.type": backend}
    with Harness(
        lambda s: s.key_by(lambda v: v).process(States(*steps)).name("shop"), configuration=configuration
    ) as h:
        for _ in steps:
            h.process("ann")
            if snapshot:
                h.snapshot()


def fill(s: States) -> None:
    s.value.update(["a"])
    s.list.add({"n": 1})
    s.map.put("monday", ["a"])
    s.reducing.add(["a"])
    s.expiring.update({"a": 1})


CHANGES: dict[str, tuple[str, Do]] = {
    "value": ("state 'items' of operator 'shop', key 'ann'", lambda s: s.value.value().append("b")),
    "list, more": ("state 'orders' of operator 'shop', key 'ann'", lambda s: s.list.get().append({"n": 2})),
    "list, element": ("state 'orders' of operator 'shop'", lambda s: next(iter(s.list)).update(n=7)),
    "map, get": ("state 'by day' of operator 'shop', key 'ann', map key 'monday'", lambda s: s.map["monday"].append(2)),
    "map, values": ("state 'by day' of operator 'shop'", lambda s: s.map.values()[0].append("b")),
    "map, items": ("state 'by day' of operator 'shop'", lambda s: s.map.items()[0][1].append("b")),
    "reducing": ("state 'all' of operator 'shop', key 'ann'", lambda s: s.reducing.get().append("b")),
    "with a time to live": ("state 'short' of operator 'shop', key 'ann'", lambda s: s.expiring.value().update(b=2)),
}


@BACKENDS
@pytest.mark.parametrize("change", CHANGES)
def test_state_that_is_changed_and_not_written_back_is_an_error(change: str, backend: str) -> None:
    message, step = CHANGES[change]
    with pytest.raises(MutationError, match=re.escape(message)):
        run(fill, step, backend=backend)


def test_also_in_the_call_that_wrote_it() -> None:
    def write_and_change(s: States) -> None:
        mine = ["a"]
        s.value.update(mine)
        mine.append("b")

    with pytest.raises(MutationError, match=r"update\(\)"):
        run(write_and_change)


def test_and_later_by_somebody_who_kept_it() -> None:
    """Found when a snapshot is taken."""
    kept: list[Any] = []

    def keep(s: States) -> None:
        kept.append(s.value.value())

    with pytest.raises(
        RuntimeError, match=r"the snapshot failed.*MutationError: state 'items' of operator 'shop', key"
    ):
        run(fill, keep, lambda s: kept[0].append("b"), snapshot=True)


def _written_back(s: States) -> None:
    items = s.value.value()
    items.append("b")
    s.value.update(items)
    orders = s.list.get()
    orders.append({"n": 2})
    s.list.update(orders)
    days = s.map.get("monday")
    days.append("b")
    s.map.put("monday", days)
    s.expiring.clear()


def _only_read(s: States) -> None:
    sorted(s.value.value())
    s.list.get().sort(key=str)
    [*s.map.items(), *s.map.keys()]
    assert "monday" in s.map
    assert not s.map.is_empty()
    s.map.remove("tuesday")
    s.map.put_all({"tuesday": [1]})
    list(s.value.value()).append("c")
    s.list.add_all([{"n": 3}])


@BACKENDS
def test_what_is_written_back_and_what_is_only_read_is_fine(backend: str) -> None:
    run(fill, _written_back, fill, _only_read, lambda s: s.value.clear(), _written_back_after_clear, backend=backend)


def _written_back_after_clear(s: States) -> None:
    assert s.value.value() is None
    s.map.clear()
    assert s.map.values() == []


def test_state_per_window_is_watched_too() -> None:
    class InWindow(ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
            state = context.window_state().get_state(ValueStateDescriptor("seen"))
            state.update([1])
            state.value().append(2)
            yield key

        def clear(self, context: Any) -> None:
            pass

    windows = TumblingEventTimeWindows.of(Time.seconds(1))
    with Harness(lambda s: s.key_by(lambda v: v).window(windows).process(InWindow()).name("win")) as harness:
        harness.process("a", timestamp=10)
        with pytest.raises(MutationError, match="seen' of operator 'win', key"):
            harness.watermark(5_000)


@pytest.mark.parametrize("reuse", [False, True])
def test_a_record_that_is_the_state_of_the_operator_before_it(reuse: bool) -> None:
    """What reduce emits is what it keeps, when objects are reused; otherwise its reader has a copy."""

    def spoil(record: dict[str, int]) -> dict[str, int]:
        record["n"] = 0
        return record

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    if reuse:
        env.get_config().enable_object_reuse()
    stream = (
        env.from_collection([{"k": 1, "n": 1}, {"k": 1, "n": 2}])
        .key_by(lambda r: r["k"])
        .reduce(lambda a, b: {"k": 1, "n": a["n"] + b["n"]})
        .name("total")
        .map(spoil)
    )
    with InProcessJob.collecting(stream) as job, warnings.catch_warnings():
        warnings.simplefilter("ignore", MutatedInputWarning)
        job.run_to_end()
        if not reuse:
            assert job.results == [{"k": 1, "n": 0}] * 2
            return
        assert isinstance(job.error, MutationError)
        assert "operator 'total', key 1" in str(job.error)


def test_a_function_that_changes_its_input_is_warned_about_once() -> None:
    def spoil(record: list[int]) -> int:
        record.append(1)
        return 1

    with (
        Harness(lambda s: s.map(lambda v: v).map(spoil).name("spoiler")) as harness,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        harness.process_all([0], [0], [0])
        harness.process([0])
    found = [str(w.message) for w in caught if w.category is MutatedInputWarning]
    assert len(found) == 1
    assert "operator 'spoiler'" in found[0]
    assert "[0] became [0, 1]" in found[0]


class _Odd(list[int]):
    """Whose pickle is another each time."""

    count = 0

    def __reduce__(self) -> Any:
        _Odd.count += 1
        return _odd, (_Odd.count,)


def _odd(count: int) -> _Odd:
    return _Odd()


def test_functions_that_change_nothing_are_not_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", MutatedInputWarning)
        with Harness(lambda s: s.map(lambda v: [*v, 1]).filter(lambda v: True)) as harness:
            harness.process_all([0], {1: [2]}, _Odd())


def test_off_it_is_silent_and_nothing_is_wrapped() -> None:
    step: Do = lambda s: s.value.value().append("b")  # noqa: E731
    off = {"tidegate.debug.check-mutations": "false"}
    with Harness(lambda s: s.key_by(lambda v: v).process(States(fill, step)), configuration=off) as harness:
        harness.process_all("ann", "ann")
        assert harness.output() == ["ann", "ann"]
        operators = [
            o for slot in harness._job.slots if slot.runtime for t in slot.runtime.tasks for o in t.chain.operators
        ]
        keyed = next(o for o in operators if isinstance(o, KeyedProcessOperator))
        assert "process" not in vars(keyed)
        assert type(keyed.function.value).__module__ == "tidegate.state.keyed_states"
    with Harness(lambda s: s.key_by(lambda v: v).process(States(fill, step))) as harness:
        harness.process("ann")
        with pytest.raises(MutationError):
            harness.process("ann")
