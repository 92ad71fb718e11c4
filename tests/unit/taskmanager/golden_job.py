"""The job behind the golden savepoints: every kind of state, declared and not. It must not change in a way that makes
an old savepoint unfit: what is here is what users have. What a later version of the format adds is asked for by its
number."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

from small_jobs import environment, ticks

from tidegate.common import Instant, Row, Time, Types
from tidegate.common.typeinfo import LocalTimeTypeInfo
from tidegate.datastream import KeyedProcessFunction, RuntimeContext
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

KEYS = 10
ROW = Types.ROW_NAMED(["id", "tags"], [Types.LONG(), Types.LIST(Types.STRING())])


# Since version 2: types that are columns of their own there. Of each value: what the column gives back, and what not.
TYPED: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "big int": (Types.BIG_INT(), lambda n: n << (40 * (n % 4))),
    "big dec": (Types.BIG_DEC(), lambda n: decimal.Decimal(n) / 8 if n % 2 else decimal.Decimal(f"{n}.50")),
    "instant": (Types.INSTANT(), lambda n: Instant(n, n % 2 * 1000 + n % 3)),
    "bytes": (Types.PRIMITIVE_ARRAY(Types.BYTE()), lambda n: bytes([n % 256]) if n % 2 else [n % 100]),
    "float": (Types.FLOAT(), lambda n: n / 10),
    "time": (Types.SQL_TIME(), lambda n: datetime.time(n % 24, fold=n % 2)),
    "day": (LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_DATE), lambda n: datetime.date(2026, 1, 1 + n % 28)),
}


class Everything(KeyedProcessFunction):
    """Emits (key, all of its state) for every record."""

    def __init__(self, version: int) -> None:
        self.version = version

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.row = runtime_context.get_state(ValueStateDescriptor("row", ROW))
        self.anything = runtime_context.get_state(ValueStateDescriptor("anything"))
        self.items = runtime_context.get_list_state(ListStateDescriptor("items", Types.DOUBLE()))
        self.by_name = runtime_context.get_map_state(MapStateDescriptor("by name", Types.STRING(), Types.INT()))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        lasting = ValueStateDescriptor("lasting", Types.STRING())
        lasting.enable_time_to_live(StateTtlConfig.new_builder(Time.days(100_000)).build())
        self.lasting = runtime_context.get_state(lasting)
        typed = TYPED if self.version >= 2 else {}
        self.typed = {n: runtime_context.get_state(ValueStateDescriptor(n, t)) for n, (t, _) in typed.items()}

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.row.update(Row(id=value, tags=["a"] * (value % 3)))
        self.anything.update((value, decimal.Decimal(value), datetime.datetime(2026, 1, 1)))
        self.items.add(value / 4)
        self.by_name.put(f"n{value % 4}", value)
        self.sum.add(value)
        self.lasting.update(str(value))
        for name, state in self.typed.items():
            state.update(TYPED[name][1](value))
        ctx.timer_service().register_event_time_timer(10**12 + value)
        yield self.everything(ctx.get_current_key())

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield "timer", timestamp

    def everything(self, key: Any) -> Any:
        return (
            key,
            self.count.value(),
            self.row.value(),
            self.anything.value(),
            list(self.items.get()),
            sorted(self.by_name.items()),
            self.sum.get(),
            self.lasting.value(),
            [state.value() for state in self.typed.values()],
        )


def golden_job(keys: dict[str, Any], parallelism: int, count: int, version: int) -> Any:
    """`count` records; a job that is stopped at 60 stands at the end of the burst."""
    env = environment({"pipeline.max-parallelism": 32, **keys}, parallelism)
    keyed = ticks(env, burst=60, count=count if count > 60 else None).key_by(lambda i: i % KEYS, Types.INT())
    keyed.process(Everything(version)).name("everything").uid("everything").sink_to(CollectSink()).name("out").uid(
        "out"
    )
    return env
