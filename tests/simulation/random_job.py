"""Random jobs, made through the public API, together with what a failure-free run of them has to yield."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation import functions as f
from tests.simulation import sinks
from tests.simulation.functions import Hash
from tests.simulation.outside_world import Ident
from tests.simulation.program import Program
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.output_tag import OutputTag
from tidegate.graph.job_graph import JobGraph

MAX_RECORDS = 160  # on any stream; an operator that would make more is left out
Order = tuple[tuple[Hash, int], ...] | None
"""What has to be equal for two records of a split to keep their order: hashes of the first parts of their idents. None:
they need not keep it."""


def depths(idents: Counter[Ident]) -> dict[int, int]:
    """Source -> length of its idents, for the sources where it is the same for all."""
    found: dict[int, set[int]] = {}
    for ident in idents:
        found.setdefault(ident[0], set()).add(len(ident))
    return {source: lengths.pop() for source, lengths in found.items() if len(lengths) == 1}


def keyed_order(order: dict[int, Order], idents: Counter[Ident], key: Hash) -> dict[int, Order]:
    """The order after an exchange by key."""
    known = depths(idents)
    return {
        source: None if way is None or source not in known else (*way, (key, known[source]))
        for source, way in order.items()
    }


@dataclass
class ExpectedSink:
    name: str
    idents: Counter[Ident]
    order: dict[int, Order]  # by source
    kind: str  # "transactional" | "plain" | "function" | "collect"
    place: int = 0  # not 0: records are totals; so many parts say of what, the next one is the number of records in it

    @property
    def exactly_once(self) -> bool:
        return self.kind in ("transactional", "collect")


@dataclass
class ExpectedKeyed:
    """A keyed operator: the records of each key that it sees."""

    name: str
    key: Hash
    idents: Counter[Ident]
    order: dict[int, Order]  # on its input
    rich: bool
    has_state: bool = True  # False: its state cannot be looked at from outside (reduce)

    def by_key(self) -> dict[int, Counter[Ident]]:
        found: dict[int, Counter[Ident]] = {}
        for ident, n in self.idents.items():
            found.setdefault(self.key.of(ident), Counter())[ident] += n
        return found


@dataclass
class RandomJob:
    graph: JobGraph
    sinks: list[ExpectedSink]
    keyed: list[ExpectedKeyed]
    long: bool  # many records and keys, slowly
    note_depths: dict[str, dict[int, int]]  # operator -> source -> length of the idents when the operator noted them
    counted: dict[str, int]  # operator that counts by subtask -> records that it sees
    program: Program
    often_cut: bool = False
    description: list[str] = field(default_factory=list)
    watermark_interval_ms: float = 200.0


@dataclass
class _Stream:
    stream: Any
    parallelism: int
    idents: Counter[Ident]
    order: dict[int, Order]
    place: int = 0  # as in ExpectedSink


def _joined(a: _Stream, b: _Stream) -> dict[int, Order]:
    """A source whose records come by two ways has no order."""
    return {s: None if s in a.order and s in b.order else way for s, way in (a.order | b.order).items()}


class JobBuilder:
    """`build` draws everything from the one random generator. `rescalable`: the job will be resumed at another
    parallelism. `at_least_once`: it runs like that, so that totals may be too high. `growing`: splits of its sources
    turn up while it runs. `often_cut`: records are often left waiting between its operators (`RandomTimeLimit`)."""

    rescalable = False
    at_least_once = False
    growing = False
    often_cut = False
    long_share = 0.25  # of the jobs

    def __init__(self, rng: random.Random, size: int = 3, max_parallelism: int = 3) -> None:
        self._rng = rng
        self._size = size
        self._widest = rng.randint(1, max_parallelism)
        self._env = StreamExecutionEnvironment.get_execution_environment()
        self._env.set_parallelism(1)
        self._max_parallelism = rng.choice((4, 8, 128))
        self._env.set_buffer_timeout(rng.choice((-1, 0, 1, 5, 100)))
        if rng.random() < 0.3:
            self._env.disable_operator_chaining()
        self._long = rng.random() < self.long_share  # many records and keys: chains of increments
        self._pause_rate = 0.6 if self._long else rng.choice((0.0, 0.0, 0.2))
        self._names = 0
        self._sinks: list[ExpectedSink] = []
        self._keyed: list[ExpectedKeyed] = []
        self._note_depths: dict[str, dict[int, int]] = {}
        self._counted: dict[str, int] = {}
        self._log: list[str] = []
        self._groups = rng.random() < 0.15

    def build(self) -> RandomJob:
        rng = self._rng
        open_streams = [self._source(i) for i in range(1 if self._long else rng.choice((1, 1, 2, 2, 3)))]
        if self._long or rng.random() < 0.5:  # most jobs have an exchange by key: that is where alignment matters
            open_streams[0] = self._count_by_key(open_streams[0])
        for _ in range(rng.randint(0, 1) if self._long else rng.randint(1, self._size)):
            self._grow(open_streams)
        if len(open_streams) > 1 and rng.random() < 0.5:
            open_streams.append(self._union(open_streams.pop(), open_streams.pop()))
        for stream in open_streams:
            self._sink(stream)
        if not self.rescalable or rng.random() < 0.7:  # otherwise it is derived
            self._env.set_max_parallelism(self._max_parallelism)
        program = Program(self._env)
        if self.rescalable:
            program.name_operators()
        return RandomJob(
            program.graph(),
            self._sinks,
            self._keyed,
            self._long,
            self._note_depths,
            self._counted,
            program,
            self.often_cut,
            self._log,
        )

    # ------------------------------------------------------------ parts
    def _source(self, number: int) -> _Stream:
        rng = self._rng
        parallelism = rng.randint(1, self._widest)
        if self.growing:
            lengths = tuple(rng.randint(0, 20) for _ in range(rng.randint(2, 5)))
            first, interval = rng.randint(0, len(lengths) - 1), rng.choice((0.1, 1.0, 5.0, 30.0))
            source: Any = f.GrowingSource(number, lengths, self._pause_rate, first, interval)
            to_record: f.NumberToRecord | None = None
            idents = Counter((number, split, i) for split, n in enumerate(lengths) for i in range(n))
        elif rng.random() < 0.25:
            total = rng.randint(1, 30)
            source = NumberSequenceSource(0, total - 1)
            starts = [s.start for s in source.create_splits(parallelism)]
            to_record = f.NumberToRecord(number, starts)
            idents = Counter(to_record.map(n)[0] for n in range(total))
        else:
            lengths = tuple(rng.randint(0, 50 if self._long else 20) for _ in range(rng.randint(1, 3)))
            source, to_record = f.SimSource(number, lengths, self._pause_rate), None
            idents = Counter((number, split, i) for split, n in enumerate(lengths) for i in range(n))
        stream = self._env.from_source(source, WatermarkStrategy.no_watermarks(), f"source{number}")
        stream = stream.set_parallelism(parallelism)
        if to_record is not None:
            stream = stream.map(to_record).set_parallelism(parallelism)
        self._note(f"source{number} p={parallelism}: {sum(idents.values())} records")
        return _Stream(stream, parallelism, idents, {number: ()})

    def _grow(self, streams: list[_Stream]) -> None:
        rng = self._rng
        index = rng.randrange(len(streams))
        stream = streams[index]
        if rng.random() > 0.15:
            streams.pop(index)  # otherwise it is also read by others
        kinds: list[Callable[[_Stream], _Stream]] = [
            self._map,
            self._filter,
            self._flat_map,
            self._count_by_key,
            self._count_by_key,
            self._map_by_key,
            self._reduce,
            self._count_by_subtask,
        ]
        pick = rng.randrange(len(kinds) + 4)
        if pick < len(kinds):
            streams.append(kinds[pick](stream))
        elif pick == len(kinds):
            streams.extend(self._split(stream))
        elif streams and stream not in streams:
            other = streams.pop(rng.randrange(len(streams)))
            if sum(stream.idents.values()) + sum(other.idents.values()) > MAX_RECORDS:
                streams += [stream, other]
            elif pick == len(kinds) + 1:
                streams.append(self._union(stream, other))
            else:
                streams.append(self._connect(stream, other))
        else:
            streams.append(self._map(stream))

    def _map(self, s: _Stream) -> _Stream:
        s = self._exchange(s)
        return self._after(s, s.stream.map(f.PassOn()), "map")

    def _filter(self, s: _Stream) -> _Stream:
        s = self._exchange(s)
        choice = self._hash(3)
        kept = Counter({i: n for i, n in s.idents.items() if choice.of(i) != 0})
        return self._after(s, s.stream.filter(f.Drop(choice)), "filter", kept)

    def _flat_map(self, s: _Stream) -> _Stream:
        if sum(s.idents.values()) * 2 > MAX_RECORDS:
            return self._map(s)
        s = self._exchange(s)
        choice = self._hash(3)
        made: Counter[Ident] = Counter()
        for ident, n in s.idents.items():
            for i in range(choice.of(ident)):
                made[(*ident, i)] += n
        return self._after(s, s.stream.flat_map(f.Multiply(choice)), "flat_map", made)

    def _split(self, s: _Stream) -> list[_Stream]:
        s = self._exchange(s)
        choice, tag = self._hash(3), OutputTag(self._name("tag"))
        main = Counter({i: n for i, n in s.idents.items() if choice.of(i) != 0})
        side = Counter({i: n for i, n in s.idents.items() if choice.of(i) == 0})
        after = self._after(s, s.stream.process(f.Split(choice, tag)), "split", main)
        return [after, _Stream(after.stream.get_side_output(tag), after.parallelism, side, dict(after.order))]

    def _count_by_key(self, s: _Stream) -> _Stream:
        key, name, rich = self._hash(self._keys()), self._name("count"), self._rng.random() < 0.6
        s = self._key(s, key)
        self._expect_keyed(name, key, s, rich)
        return self._after(s, s.stream.key_by(key).process(f.KeyedCount(name, rich)), name)

    def _map_by_key(self, s: _Stream) -> _Stream:
        key, name, rich = self._hash(self._keys()), self._name("mapcount"), self._rng.random() < 0.6
        s = self._key(s, key)
        self._expect_keyed(name, key, s, rich)
        return self._after(s, s.stream.key_by(key).map(f.KeyedMapCount(name, rich, key)), name)

    def _reduce(self, s: _Stream) -> _Stream:
        key, name = self._hash(self._keys()), self._name("reduce")
        ones = s.stream.map(f.with_one).set_parallelism(s.parallelism)
        s = self._key(_Stream(ones, s.parallelism, s.idents, s.order), key)
        self._expect_keyed(name, key, s, False, has_state=False)
        reduced = self._after(s, s.stream.key_by(key).reduce(f.add_counts), name)
        noted = reduced.stream.map(f.NoteReduced(name, key)).set_parallelism(reduced.parallelism)
        return _Stream(noted, reduced.parallelism, reduced.idents, reduced.order)

    def _count_by_subtask(self, s: _Stream) -> _Stream:
        s, name = self._exchange(s), self._name("subtasks")
        self._note_depths[name] = depths(s.idents)
        self._counted[name] = sum(s.idents.values())
        return self._after(s, s.stream.map(f.SubtaskCount(name)), name)

    def _union(self, a: _Stream, b: _Stream) -> _Stream:
        order = _joined(a, b)
        if a.parallelism != b.parallelism:  # the edges of the next operator differ
            order = dict.fromkeys(order)
        self._note("union")
        return _Stream(a.stream.union(b.stream), max(a.parallelism, b.parallelism), a.idents + b.idents, order)

    def _connect(self, a: _Stream, b: _Stream) -> _Stream:
        key, name, rich = self._hash(self._keys()), self._name("connect"), self._rng.random() < 0.6
        parallelism = self._rng.randint(1, self._widest)
        a, b = self._key(a, key, parallelism), self._key(b, key, parallelism)
        both = _Stream(None, parallelism, a.idents + b.idents, _joined(a, b))
        self._expect_keyed(name, key, both, rich)
        connected = a.stream.connect(b.stream).key_by(key, key).process(f.KeyedCoCount(name, rich))
        return self._after(both, connected, name)

    def _sink(self, s: _Stream) -> None:
        rng = self._rng
        s = self._exchange(s, broadcast=False)
        name = self._name("sink")
        kind = rng.choice(("transactional",) * 6 + ("collect", "plain", "function"))
        if kind == "function":
            end = s.stream.add_sink(sinks.PlainSinkFunction(name))
        else:
            made = {"transactional": sinks.TransactionalSink, "collect": CollectSink, "plain": sinks.PlainSink}
            end = s.stream.sink_to(made[kind](name))
        end.set_parallelism(s.parallelism).name(name)
        if rng.random() < 0.2:
            end.disable_chaining()
        self._note(f"{name}: {kind} p={s.parallelism}")
        self._sinks.append(ExpectedSink(name, s.idents, s.order, kind, s.place))

    # ------------------------------------------------------------ helpers
    def _exchange(self, s: _Stream, broadcast: bool = True) -> _Stream:
        """How the records get to the next operator, and its parallelism."""
        rng = self._rng
        same = rng.random() < 0.5
        parallelism = s.parallelism if same else rng.randint(1, self._widest)
        idents, order = s.idents, dict(s.order)
        kind = rng.choice(("auto", "auto", "rebalance", "rescale", "shuffle", "broadcast", "global", "custom"))
        lost: dict[int, Order] = dict.fromkeys(order)
        stream = s.stream
        if kind == "broadcast" and (not broadcast or sum(idents.values()) * parallelism > MAX_RECORDS):
            kind = "auto"
        if kind == "custom":
            key = self._hash(rng.randint(1, 5))
            stream = stream.partition_custom(f.to_subtask, key)
            order = keyed_order(order, idents, key)
        elif kind == "global":
            stream = stream.global_()
        elif kind != "auto":
            stream = getattr(stream, kind)()
            if parallelism > 1:
                order = lost
            if kind == "broadcast":
                idents = Counter({ident: n * parallelism for ident, n in idents.items()})
        elif parallelism not in (1, s.parallelism):
            order = lost
        self._note(f"  {kind} {s.parallelism} -> {parallelism}")
        return _Stream(stream, parallelism, idents, order, s.place)

    def _key(self, s: _Stream, key: Hash, parallelism: int | None = None) -> _Stream:
        order = keyed_order(s.order, s.idents, key)
        parallelism = parallelism or self._rng.randint(1, self._widest)
        self._note(f"  key_by {key} {s.parallelism} -> {parallelism}")
        return _Stream(s.stream, parallelism, s.idents, order)

    def _after(self, s: _Stream, stream: Any, name: str, idents: Counter[Ident] | None = None) -> _Stream:
        rng = self._rng
        stream = stream.set_parallelism(s.parallelism)
        chaining = rng.random()
        if chaining < 0.15:
            stream.disable_chaining()
        elif chaining < 0.3:
            stream.start_new_chain()
        if self._groups and rng.random() < 0.3:
            stream.slot_sharing_group("other")
        self._note(f"{name} p={s.parallelism}")
        return _Stream(stream, s.parallelism, s.idents if idents is None else idents, s.order)

    def _expect_keyed(self, name: str, key: Hash, s: _Stream, rich: bool, has_state: bool = True) -> None:
        self._note_depths[name] = depths(s.idents)
        self._keyed.append(ExpectedKeyed(name, key, s.idents, s.order, rich, has_state))

    def _keys(self) -> int:
        """Few keys make conflicts; many make increments, since only some of them change between two checkpoints."""
        return self._rng.choice((12, 40) if self._long else (1, 2, 3, 5, 12))

    def _hash(self, modulo: int) -> Hash:
        return Hash(modulo, self._rng.randint(0, 50))

    def _name(self, what: str) -> str:
        self._names += 1
        return f"{what}{self._names}"

    def _note(self, text: str) -> None:
        self._log.append(text)
