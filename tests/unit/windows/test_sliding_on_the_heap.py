"""Sliding windows on the heap give what the general way gives, and read and write the same state, whatever moment a
snapshot is taken at: also between two keys of a window that fires."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import Time, WatermarkStrategy
from tidegate.common.ids import AttemptNumber, CheckpointId, SlotIndex
from tidegate.contracts.batches import RecordBatch
from tidegate.datastream import AggregateFunction, ProcessWindowFunction
from tidegate.datastream.window import SlidingEventTimeWindows
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.splits import make_splits
from tidegate.taskmanager.clock import SystemClock
from tidegate.taskmanager.deployment import RuntimeSettings, SlotPlan
from tidegate.taskmanager.operators.window_heap_slices import HeapSliceWindowOperator
from tidegate.taskmanager.operators.window_slices import SliceWindowOperator
from tidegate.taskmanager.slot import SlotRuntime

STAMPED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair, _: 0)
Pair = tuple[str, tuple[int, ...]]


class Gather(AggregateFunction):
    """An accumulator that is changed in place."""

    def create_accumulator(self) -> list[Any]:
        return ["", []]

    def add(self, value: Pair, accumulator: list[Any]) -> list[Any]:
        accumulator[0] = value[0]
        accumulator[1].extend(value[1])
        return accumulator

    def get_result(self, accumulator: list[Any]) -> Any:
        return accumulator[0], tuple(accumulator[1])

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        a[1] += b[1]
        return a


class Named(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        window = context.window()
        return [(key, window.start, window.end, *elements)]


def in_order(a: Pair, b: Pair) -> Pair:
    return a[0], a[1] + b[1]


STYLES: dict[str, Any] = {
    "reduce": lambda windows: windows.reduce(in_order),
    "reduce and process": lambda windows: windows.reduce(in_order, Named()),
    "aggregate": lambda windows: windows.aggregate(Gather()),
}


class Alone:
    """The host of a slot with nobody around it."""

    transport: Any = None
    run_coroutine: Any = None
    clock = SystemClock()

    def nothing(self, *_: Any) -> None: ...

    send_to_master = run_async = post = operator_made = trace = nothing


class World:
    """One operator with its state, which may be snapshotted and made anew."""

    def __init__(self, style: str, kind: type[SliceWindowOperator], size: int, slide: int) -> None:
        env = environment({})
        stream: Any = env.from_collection([("a", (0,))])
        stream = stream.assign_timestamps_and_watermarks(STAMPED)
        assigner = SlidingEventTimeWindows.of(Time.milliseconds(size), Time.milliseconds(slide))
        STYLES[style](stream.key_by(lambda pair: pair[0]).window(assigner)).print()
        graph = build_job_graph(env._operators, env._graph_settings(), "sliding", env._job_id()).job_graph
        plan = SlotPlan(make_splits(graph), RuntimeSettings())
        self.slot = SlotRuntime(SlotIndex(0), AttemptNumber(0), plan, Alone())
        self.slot.deploy(None)
        self.results: list[Any] = []
        self.late: list[Any] = []
        self.kind = kind
        operator = next(op for op in self.slot.tasks[-1].chain.operators if isinstance(op, SliceWindowOperator))
        assert type(operator) is HeapSliceWindowOperator
        self.operator: SliceWindowOperator = operator
        self.again()

    def again(self) -> None:
        """As after a recovery from a snapshot that is taken now."""
        before = self.operator
        before.update_state(CheckpointId(1), 0)
        self.operator = self.kind(before.context)
        self.operator.output = lambda batch: self.results.extend(zip(batch.values, batch.timestamps or [], strict=True))
        self.operator.current_watermark = before.current_watermark
        self.operator.open()

    def state(self) -> list[Any]:
        """What a snapshot would hold, in no certain order."""
        self.operator.update_state(CheckpointId(1), 0)
        tables = self.operator.backend.tables()
        return sorted(
            repr((t.info.name, e, sorted(v.items()) if isinstance(v, dict) else v))
            for t in tables
            for e, v in t.live_items()
        )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(12))
def test_it_gives_what_the_general_way_gives_whenever_a_snapshot_is_taken(style: str, seed: int) -> None:
    chance = random.Random(seed)
    size, slide = chance.choice([(20, 5), (20, 20), (30, 10), (9, 6), (7, 3)])
    general, heap = (World(style, kind, size, slide) for kind in (SliceWindowOperator, HeapSliceWindowOperator))
    number, watermark = 0, -1
    for _ in range(60):
        count = chance.randrange(1, 8)
        stamps = [watermark + chance.randint(-25, 12) for _ in range(count)]
        values = [(chance.choice("abcde"), (number + i,)) for i in range(count)]
        number += count
        for world in (general, heap):
            world.operator.process(RecordBatch(list(values), list(stamps)))
        if chance.random() < 0.5:
            watermark += chance.randrange(1, 9)
            for world in (general, heap):
                world.operator.current_watermark = watermark
            while True:
                left = [not world.operator.fire_event_timers(1) for world in (general, heap)]
                assert left[0] == left[1]
                if chance.random() < 0.3:
                    heap.again()
                if not any(left):
                    break
        if chance.random() < 0.2:
            heap.again()
            assert heap.state() == general.state()
            heap.kind = chance.choice([SliceWindowOperator, HeapSliceWindowOperator])
        assert sorted(heap.results) == sorted(general.results)
    assert number > 100
    assert len(heap.results) > 20


def test_a_window_that_fires_is_cut_short_when_its_merging_is_slow() -> None:
    world = World("reduce", HeapSliceWindowOperator, 10, 5)
    operator = world.operator
    operator.process(RecordBatch([(key, (i,)) for key in "abc" for i in range(2)], [1, 6] * 3))
    operator.current_watermark = 9
    operator.limit.watched = True
    merge = operator._merge

    def slowly(a: Pair, b: Pair) -> Pair:
        operator.limit.expire()
        return merge(a, b)

    operator._merge = slowly
    calls = 0
    while not operator.fire_event_timers(100):
        calls += 1
        assert len(world.results) <= 3 + calls
        operator.limit.begin(0)
    assert calls >= 2
    assert sorted(world.results, key=lambda result: (result[1], result[0])) == [
        *(((key, (0,)), 4) for key in "abc"),
        *(((key, (0, 1)), 9) for key in "abc"),
    ]
