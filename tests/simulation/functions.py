"""The user's side of the simulated jobs: sources and functions (sinks: `sinks.py`).

A record is `(ident, notes)`. What happens to a record depends on its ident alone, never on the schedule, so the output
is known beforehand. A stateful operator adds a note (operator, key, count): how many records of the key it has seen. No
two records may ever carry the same note.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tests.simulation.outside_world import Ident, current
from tidegate.contracts.connectors import (
    Discovery,
    Source,
    SourceContext,
    SourceSplit,
    SplitEnumerator,
    SplitReader,
)
from tidegate.datastream.functions import (
    AggregateFunction,
    CheckpointedFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
)
from tidegate.datastream.output_tag import OutputTag
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

Record = tuple[Ident, tuple[Any, ...]]


@dataclass(frozen=True)
class Hash:
    """A number in [0, modulo) that depends on the ident; `salt` tells several apart."""

    modulo: int
    salt: int

    def of(self, ident: Ident) -> int:
        number = self.salt
        for part in ident:
            number = (number * 31 + part + 7) % 1_000_003
        return number % self.modulo

    def __call__(self, record: Record) -> int:
        return self.of(record[0])


# ---------------------------------------------------------------- sources


@dataclass(frozen=True)
class SimSplit(SourceSplit):
    source: int
    index: int
    length: int


class SimSource(Source[Record]):
    """Splits of given lengths. Its readers pause now and then and return as many records as they like."""

    def __init__(self, source: int, lengths: tuple[int, ...], pause_rate: float) -> None:
        self._source = source
        self._lengths = lengths
        self._pause_rate = pause_rate

    def create_splits(self, parallelism: int) -> list[SimSplit]:
        return [SimSplit(f"{self._source}-{i}", self._source, i, n) for i, n in enumerate(self._lengths)]

    def create_reader(self, split: SourceSplit, offset: Any, context: SourceContext) -> SimReader:
        assert isinstance(split, SimSplit)
        return SimReader(split, 0 if offset is None else offset, self._pause_rate, context)


class GrowingSource(SimSource):
    """The first splits are there from the beginning, the others turn up one by one, until all have."""

    def __init__(self, source: int, lengths: tuple[int, ...], pause_rate: float, first: int, every_ms: float) -> None:
        super().__init__(source, lengths, pause_rate)
        self._first = first
        self._every_ms = every_ms

    @property
    def discovery_interval_ms(self) -> float:
        return self._every_ms

    def create_splits(self, parallelism: int) -> list[SimSplit]:
        return super().create_splits(parallelism)[: self._first]

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return GrowingEnumerator(self._source, super().create_splits(parallelism), self._first)


class GrowingEnumerator(SplitEnumerator):
    def __init__(self, source: int, splits: list[SimSplit], first: int) -> None:
        self._source = source
        self._splits = splits
        self._first = first

    def discover(self, known: AbstractSet[str]) -> Discovery:
        world = current()
        there = max(world.splits_there.get(self._source, 0), self._first)
        if world.calm:
            there = len(self._splits)
        elif there < len(self._splits) and world.rng.random() < 0.4:
            there += world.rng.randint(1, len(self._splits) - there)
        world.splits_there[self._source] = there
        new = [split for split in self._splits[:there] if split.split_id not in known]
        return Discovery(new, complete=there == len(self._splits))


class SimReader(SplitReader[Record]):
    def __init__(self, split: SimSplit, position: int, pause_rate: float, context: SourceContext) -> None:
        self._split = split
        self._position = position
        self._pause_rate = pause_rate
        self._clock = context.clock
        self._wake: float | None = None

    def poll(self, max_records: int) -> list[Record] | None:
        rng, calm = current().rng, current().calm
        split, start = self._split, self._position
        if start >= split.length:
            return None
        self._wake = None
        if not calm and self._pause_rate and rng.random() < self._pause_rate:
            if rng.random() < 0.9:
                self._wake = self._clock.now_ms() + rng.uniform(0.1, 2.0)
            return []
        self._position = min(split.length, start + rng.randint(1, max_records))
        return [((split.source, split.index, i), ()) for i in range(start, self._position)]

    def offset(self) -> int:
        return self._position

    def wake_at_ms(self) -> float | None:
        return self._wake


class NumberToRecord(MapFunction):
    """After a NumberSequenceSource: which split a number came from follows from the splits' first numbers."""

    def __init__(self, source: int, starts: list[int]) -> None:
        self._source = source
        self._starts = starts

    def map(self, value: int) -> Record:
        return (self._source, bisect_right(self._starts, value) - 1, value), ()


# ---------------------------------------------------------------- functions without state


class PassOn(MapFunction):
    def map(self, value: Record) -> Record:
        current().on_record()
        return value


class Drop(FilterFunction):
    """Drops one in `modulo` records."""

    def __init__(self, choice: Hash) -> None:
        self._choice = choice

    def filter(self, value: Record) -> bool:
        current().on_record()
        return self._choice(value) != 0


class Multiply(FlatMapFunction):
    """Makes 0 to `modulo`-1 records of one."""

    def __init__(self, choice: Hash) -> None:
        self._choice = choice

    def flat_map(self, value: Record) -> list[Record]:
        current().on_record()
        ident, notes = value
        return [((*ident, i), notes) for i in range(self._choice(value))]


class Split(ProcessFunction):
    """One in `modulo` records to the side output."""

    def __init__(self, choice: Hash, tag: OutputTag) -> None:
        self._choice = choice
        self._tag = tag

    def process_element(self, value: Record, ctx: Any) -> Any:
        current().on_record()
        if self._choice(value) == 0:
            yield self._tag, value
        else:
            yield value


def to_subtask(key: int, subtasks: int) -> int:
    """A partitioner."""
    return key % subtasks


def with_one(value: Record) -> tuple[Ident, tuple[Any, ...], int]:
    return (*value, 1)


def add_counts(a: Any, b: Any) -> Any:
    """A rolling reduce: the newest record with the count of all."""
    return (b[0], b[1], a[2] + b[2])


class NoteReduced(MapFunction):
    def __init__(self, operator: str, key: Hash) -> None:
        self._operator = operator
        self._key = key

    def map(self, value: Any) -> Record:
        ident, notes, count = value
        return ident, (*notes, (self._operator, self._key.of(ident), count))


# ---------------------------------------------------------------- functions with state


class SumOfSequence(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def plus(a: int, b: int) -> int:
    return a + b


CLEAR_EVERY = 4  # records of a key after which `recent` is emptied


class KeyedStates:
    """All five kinds of keyed state, or only the count. `see` is called with the current key set."""

    def __init__(self, operator: str, rich: bool) -> None:
        self.operator = operator
        self.rich = rich

    def open_states(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count"))
        if self.rich:
            self.history = context.get_list_state(ListStateDescriptor("history"))
            self.recent = context.get_map_state(MapStateDescriptor("recent"))
            self.total = context.get_reducing_state(ReducingStateDescriptor("total", plus))
            self.average = context.get_aggregating_state(AggregatingStateDescriptor("sum", SumOfSequence()))

    def see(self, record: Record, key: int) -> Record:
        current().on_record()
        ident, notes = record
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if self.rich:
            self.history.add(ident)
            self.total.add(ident[2])
            self.average.add(ident[2])
            if count % CLEAR_EVERY == 0:
                self.recent.clear()
            else:
                self.recent.put(count, ident)
        return ident, (*notes, (self.operator, key, count))

    def dump(self, backend: Any) -> dict[int, dict[str, Any]]:
        """Everything, by key."""
        found = {}
        for key in list(backend.keys("count")):
            backend.current_key = key
            entry: dict[str, Any] = {"count": self.count.value()}
            if self.rich:
                entry["history"] = list(self.history.get())
                entry["recent"] = dict(self.recent.items())
                entry["total"] = self.total.get()
                entry["sum"] = self.average.get()
            found[key] = entry
        return found


class KeyedCount(KeyedProcessFunction, KeyedStates):
    def open(self, runtime_context: Any) -> None:
        self.open_states(runtime_context)

    def process_element(self, value: Record, ctx: Any) -> Any:
        yield self.see(value, ctx.get_current_key())


class KeyedMapCount(MapFunction, KeyedStates):
    def __init__(self, operator: str, rich: bool, key: Hash) -> None:
        KeyedStates.__init__(self, operator, rich)
        self._key = key

    def open(self, runtime_context: Any) -> None:
        self.open_states(runtime_context)

    def map(self, value: Record) -> Record:
        return self.see(value, self._key(value))


class KeyedCoCount(KeyedCoProcessFunction, KeyedStates):
    """Both inputs share the state."""

    def open(self, runtime_context: Any) -> None:
        self.open_states(runtime_context)

    def process_element1(self, value: Record, ctx: Any) -> Any:
        yield self.see(value, ctx.get_current_key())

    def process_element2(self, value: Record, ctx: Any) -> Any:
        yield self.see(value, ctx.get_current_key())


class SubtaskCount(MapFunction, CheckpointedFunction):
    """Operator state: counts the records of its subtask; the list grows an item at a time. Beside it, in a union list,
    the count of every subtask."""

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self._state = store.get_list_state(ListStateDescriptor("counted"))
        self._all = store.get_union_list_state(ListStateDescriptor("all"))
        self._count = self._restored = sum(self._state.get())
        self._restored_by_all = sum(self._all.get())

    def open(self, runtime_context: Any) -> None:
        subtask, epoch = runtime_context.get_index_of_this_subtask(), current().epoch
        self._who = f"subtask {subtask}" + (f" of epoch {epoch}" if epoch else "")

    def snapshot_state(self, context: Any) -> None:
        self._state.update([1] * self._count)
        self._all.update([self._count])

    def map(self, value: Record) -> Record:
        current().on_record()
        self._count += 1
        ident, notes = value
        return ident, (*notes, (self.operator, self._who, self._count))

    def dump(self) -> Counted:
        return Counted(self._count, self._count - self._restored, self._restored_by_all)


@dataclass(frozen=True)
class Counted:
    """What a `SubtaskCount` knows at the end."""

    count: int
    since_restore: int
    restored_by_all: int  # the counts of all subtasks together
