"""The jobs on bytewax. Run by `python -m bytewax.run` or `bytewax.testing`, which look for `flow`."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta

settings = json.loads(os.environ["PEER_SETTINGS"])
sys.path.insert(0, settings["code"])

import bytewax.operators as op  # noqa: E402
import bytewax.operators.windowing as win  # noqa: E402
from bytewax.dataflow import Dataflow  # noqa: E402
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition  # noqa: E402
from bytewax.operators.windowing import EventClock, TumblingWindower  # noqa: E402
from bytewax.testing import TestingSink  # noqa: E402

from benchmarks.peers.trace import Pace, Trace  # noqa: E402

KEYS, COUNT, RATE = settings["keys"], settings["count"], settings["per_second"]
PARTITIONS = settings["parallelism"]
ZERO = datetime(2024, 1, 1, tzinfo=UTC)
trace = Trace(settings["folder"])
BATCH = 1 if RATE else 1000


class Numbers(StatefulSourcePartition):
    def __init__(self, part, at):
        per_part = COUNT // PARTITIONS
        self.next = part * per_part if at is None else at
        self.end = (part + 1) * per_part
        self.pace = Pace(RATE) if RATE else None

    def next_batch(self):
        if self.next >= self.end:
            raise StopIteration
        trace.read()
        if self.pace is not None:
            self.pace.wait()
        begin, self.next = self.next, min(self.end, self.next + BATCH)
        return list(range(begin, self.next))

    def snapshot(self):
        return self.next


class NumbersSource(FixedPartitionedSource):
    def list_parts(self):
        return [str(part) for part in range(PARTITIONS)]

    def build_part(self, step_id, for_part, resume_state):
        return Numbers(int(for_part), resume_state)


def count_one(state, value):
    count = (state or 0) + 1
    if count >= COUNT // KEYS or settings["progress"]:
        trace.out(value, count)
    return count, count


def aged(keyed):
    trace.late(time.time() - keyed[1])
    return False


def written(closed):
    key, (window, total) = closed
    trace.out(int(key), window * settings["window_ms"], total)
    return False


flow = Dataflow("peer")
numbers = op.input("numbers", flow, NumbersSource())
if settings["job"] == "latency":
    stamped = op.map("stamp", numbers, lambda i: (str(i % KEYS), time.time()))
    moved = op.redistribute("exchange", stamped)
    result = op.filter("age", op.stateful_map("keyed", moved, lambda s, v: (None, v)), aged)
elif settings["job"] == "window":
    keyed = op.map("key", numbers, lambda i: (str(i % KEYS), i))
    clock = EventClock(lambda i: ZERO + timedelta(milliseconds=i), wait_for_system_duration=timedelta(days=1))
    windower = TumblingWindower(align_to=ZERO, length=timedelta(milliseconds=settings["window_ms"]))
    closed = win.fold_window(
        "window", keyed, clock, windower, lambda: 0, lambda total, i: total + 1, lambda a, b: a + b
    )
    result = op.filter("write", closed.down, written)
else:
    keyed = op.map("key", numbers, lambda i: (str(i % KEYS), i % KEYS))
    counted = op.stateful_map("count", keyed, count_one)
    result = op.filter("nothing", counted, lambda pair: False)
op.output("out", result, TestingSink([]))
