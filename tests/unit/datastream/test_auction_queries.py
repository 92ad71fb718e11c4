"""Queries over an auction, as benchmarks of streaming systems ask them: each with the answer that plain Python gives,
also when a worker is killed on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tidegate.common import Configuration, Time, WatermarkStrategy
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.functions import (
    AggregateFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
)
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from tidegate.testing import InProcessJob, KillWorker

EVENTS = 1500


class Bid(NamedTuple):
    auction: int
    bidder: int
    price: int
    at: int


class Auction(NamedTuple):
    auction: int
    seller: int
    ends: int
    at: int


def bid(n: int) -> Bid:
    """Bidders pause for two seconds now and then."""
    return Bid(n * 7 % 23, n * n % 11, n * 7919 % 1000, n * 10 + n // 300 * 2000)


def auction(n: int) -> Auction:
    return Auction(n, n % 5, 4000 + n * 700, 0)


BIDS = [bid(n) for n in range(EVENTS)]
AUCTIONS = [auction(n) for n in range(23)]


def bids(env: StreamExecutionEnvironment) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda b, _: b.at)
    return env.from_source(DataGeneratorSource(bid, count=EVENTS, records_per_second=1000), strategy, "bids")


def auctions(env: StreamExecutionEnvironment) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda a, _: a.at)
    return env.from_source(DataGeneratorSource(auction, count=len(AUCTIONS)), strategy, "auctions")


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class WithWindow(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield context.window().start, key, *elements


# ---------------------------------------------------------------- the highest bid of each period, over all auctions
def highest(env: StreamExecutionEnvironment) -> DataStream:
    windows = bids(env).key_by(lambda b: b.auction).window(TumblingEventTimeWindows.of(Time.seconds(1)))
    best = windows.reduce(lambda a, b: max(a, b, key=lambda x: (x.price, x)), WithWindow())
    return best.map(lambda r: (r[0], r[2])).key_by(lambda r: r[0]).process(BestOfWindow())


class BestOfWindow(KeyedProcessFunction):
    """All results of a window carry its last moment as timestamp."""

    def open(self, runtime_context: Any) -> None:
        self.best = runtime_context.get_state(ValueStateDescriptor("best"))

    def process_element(self, value: Any, ctx: Any) -> None:
        best = self.best.value()
        if best is None or (value[1].price, value[1]) > (best.price, best):
            self.best.update(value[1])
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), tuple(self.best.value())
        self.best.clear()


def highest_answer() -> list[Any]:
    best: dict[int, Bid] = {}
    for b in BIDS:
        start = b.at // 1000 * 1000
        best[start] = max(best.get(start, b), b, key=lambda x: (x.price, x))
    return [(start, tuple(b)) for start, b in best.items()]


# ---------------------------------------------------------------- bids per auction, in windows that overlap
def hot(env: StreamExecutionEnvironment) -> DataStream:
    windows = bids(env).key_by(lambda b: b.auction).window(SlidingEventTimeWindows.of(Time.seconds(4), Time.seconds(2)))
    return windows.aggregate(Count(), WithWindow())


def hot_answer() -> list[Any]:
    counts = Counter((start, b.auction) for b in BIDS for start in (b.at // 2000 * 2000, b.at // 2000 * 2000 - 2000))
    return [(start, key, count) for (start, key), count in counts.items()]


# ---------------------------------------------------------------- bids of a bidder without a pause of a second
def sessions(env: StreamExecutionEnvironment) -> DataStream:
    windows = bids(env).key_by(lambda b: b.bidder).window(EventTimeSessionWindows.with_gap(Time.seconds(1)))
    return windows.aggregate(Count(), WithWindow())


def sessions_answer() -> list[Any]:
    found = []
    for bidder in {b.bidder for b in BIDS}:
        times = [b.at for b in BIDS if b.bidder == bidder]
        start, count = times[0], 0
        for before, at in zip([times[0], *times], times, strict=False):
            if at - before >= 1000:
                found.append((start, bidder, count))
                start, count = at, 0
            count += 1
        found.append((start, bidder, count))
    return found


# ---------------------------------------------------------------- the winning bid of each auction, when it ends
class Winning(KeyedCoProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.auction = runtime_context.get_state(ValueStateDescriptor("auction"))
        self.best = runtime_context.get_state(ValueStateDescriptor("best"))

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.auction.update(value)
        ctx.timer_service().register_event_time_timer(value.ends)

    def process_element2(self, value: Any, ctx: Any) -> None:
        """Bids may come before their auction, and after its end."""
        if value.at <= auction(value.auction).ends:
            best = self.best.value()
            if best is None or (value.price, value) > (best.price, best):
                self.best.update(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        best = self.best.value()
        if best is not None:
            yield self.auction.value().seller, tuple(best)
        self.best.clear()


def winning(env: StreamExecutionEnvironment) -> DataStream:
    keyed = auctions(env).key_by(lambda a: a.auction).connect(bids(env).key_by(lambda b: b.auction))
    return keyed.process(Winning())


def winning_answer() -> list[Any]:
    best: dict[int, Bid] = {}
    for b in BIDS:
        if b.at <= AUCTIONS[b.auction].ends:
            best[b.auction] = max(best.get(b.auction, b), b, key=lambda x: (x.price, x))
    return [(AUCTIONS[key].seller, tuple(b)) for key, b in best.items()]


# ---------------------------------------------------------------- numbered in order at parallelism 1, then widened
class Numbered(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.number = runtime_context.get_state(ValueStateDescriptor("number"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        number = self.number.value() or 0
        self.number.update(number + 1)
        yield number, value


def prefix(env: StreamExecutionEnvironment) -> DataStream:
    parallelism = env.get_parallelism()
    env.set_parallelism(1)
    numbered = bids(env).key_by(lambda b: 0).process(Numbered())
    env.set_parallelism(parallelism)
    return numbered.key_by(lambda r: r[1].auction).process(InOrder())


class InOrder(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        number, numbered = value
        last = self.last.value()
        self.last.update(number)
        yield number, tuple(numbered), last is None or number > last


def prefix_answer() -> list[Any]:
    return [(n, tuple(b), True) for n, b in enumerate(BIDS)]


QUERIES: dict[str, tuple[Callable[[StreamExecutionEnvironment], DataStream], Callable[[], list[Any]]]] = {
    "highest bid of each second": (highest, highest_answer),
    "hot auctions": (hot, hot_answer),
    "sessions of bidders": (sessions, sessions_answer),
    "winning bids": (winning, winning_answer),
    "ordered prefix": (prefix, prefix_answer),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("killed", [False, True], ids=["quiet", "killed"])
def test_the_answer_is_that_of_plain_python(query: str, killed: bool) -> None:
    build, answer = QUERIES[query]
    env = StreamExecutionEnvironment.get_execution_environment(
        Configuration.from_dict({"execution.checkpointing.interval": "200 ms", "parallelism.default": 2})
    )
    faults = [KillWorker(after_ms=700), KillWorker(after_ms=1300)] if killed else []
    with InProcessJob.collecting(build(env), faults) as job:
        job.run_to_end()
        assert job.restarts == len(faults)
        assert sorted(job.results) == sorted(answer())
