"""Timers in event time fire in micro-batches exactly as the model says, wherever the batches begin and end, with and
without a batch that is killed; and the same in STREAMING mode, so that the model is held too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.effort import EXAMPLES
from tests.unit.micro_batch.engine import Engine
from tests.unit.windows.script_job import KEYS, Mark, Record, Step, Wait, outcome_of, run_script, script_environment
from tests.unit.windows.test_against_the_model import numbered, scripts
from tidegate.common import Types
from tidegate.datastream import DataStream, KeyedProcessFunction
from tidegate.datastream.state import ListStateDescriptor, ValueStateDescriptor

Emitted = tuple[str, int, str, int, tuple[int, ...]]
"""Key, place among what this key has emitted, "record" or "timer", value or time, values of the key that were there."""


def on_record(stamp: int, value: int) -> tuple[str, int]:
    """Which timer a record registers or deletes. Some are late already."""
    return ("delete", stamp + 7) if value % 4 == 0 else ("register", stamp + value % 5 * 7 - 7)


def on_fired(stamp: int) -> list[tuple[str, int]]:
    """What one that has fired does with others: a chain ends by itself."""
    return [("register", stamp + 5), ("delete", stamp + 1)] if stamp % 3 == 0 else []


class Timers(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.values = ctx.get_list_state(ListStateDescriptor("values", Types.INT()))
        self.place = ctx.get_state(ValueStateDescriptor("place", Types.INT()))

    def emitted(self, key: str, what: str, number: int) -> Emitted:
        place = self.place.value() or 0
        self.place.update(place + 1)
        return key, place, what, number, tuple(self.values.get())

    def process_element(self, value: Record, ctx: Any) -> Any:
        self.values.add(value.value)
        self.set([on_record(value.stamp, value.value)], ctx)
        yield self.emitted(value.key, "record", value.value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.set(on_fired(timestamp), ctx)
        yield self.emitted(ctx.get_current_key(), "timer", timestamp)

    def set(self, orders: Sequence[tuple[str, int]], ctx: Any) -> None:
        service = ctx.timer_service()
        for what, stamp in orders:
            if what == "register":
                service.register_event_time_timer(stamp)
            else:
                service.delete_event_time_timer(stamp)


@dataclass
class Key:
    name: str
    timers: set[int] = field(default_factory=set)
    values: list[int] = field(default_factory=list)
    emitted: list[Emitted] = field(default_factory=list)

    def emit(self, what: str, number: int) -> None:
        self.emitted.append((self.name, len(self.emitted), what, number, tuple(self.values)))

    def set(self, orders: Sequence[tuple[str, int]]) -> None:
        for what, stamp in orders:
            (self.timers.add if what == "register" else self.timers.discard)(stamp)

    def advance(self, watermark: float) -> None:
        while self.timers and min(self.timers) <= watermark:
            stamp = min(self.timers)
            self.timers.remove(stamp)
            self.set(on_fired(stamp))
            self.emit("timer", stamp)


def expected(steps: Sequence[Step]) -> list[Emitted]:
    """A timer fires once, when the watermark reaches it; one that is late when it is registered, when the watermark
    moves on next. Those of a key fire by their time. At the end of the input all do."""
    keys: dict[str, Key] = {}
    reached = float("-inf")
    for step in (*steps, None):
        if isinstance(step, Record):
            key = keys.setdefault(step.key, Key(step.key))
            key.values.append(step.value)
            key.set([on_record(step.stamp, step.value)])
            key.emit("record", step.value)
        elif step is None or (isinstance(step, Mark) and step.stamp > reached):
            reached = float("inf") if step is None else step.stamp
            for key in keys.values():
                key.advance(reached)
    return sorted(emitted for key in keys.values() for emitted in key.emitted)


def timers(stream: DataStream) -> DataStream:
    return stream.key_by(lambda record: record.key).process(Timers())


def tried(most: int) -> Callable[[Any], Any]:
    return settings(max_examples=min(EXAMPLES, 2000) or most, deadline=None, derandomize=not EXAMPLES)


@tried(60)
@given(
    steps=scripts.map(numbered),
    parallelism=st.sampled_from([1, 2]),
    per_batch=st.integers(1, 12),
    kills=st.integers(0, 2),
    buckets=st.sampled_from([128, 300]),
)
def test_timers_fire_as_the_model_says(
    steps: list[Step], parallelism: int, per_batch: int, kills: int, buckets: int
) -> None:
    steps = [step for step in steps if not isinstance(step, Wait)]  # the clock is the machine's here
    env = script_environment(steps, timers, KEYS, parallelism)
    engine = Engine(env, max_records=per_batch, buckets=buckets, kills=kills, seed=per_batch).run()
    assert sorted(outcome_of(engine.results, 0).results) == expected(steps)


@tried(20)
@given(scripts.map(numbered), st.sampled_from([1, 2]))
def test_the_model_is_what_streaming_does(steps: list[Step], parallelism: int) -> None:
    assert sorted(run_script(steps, timers, parallelism=parallelism).results) == expected(steps)
