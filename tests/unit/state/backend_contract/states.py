"""States of every kind, and what the tests do to them."""

from __future__ import annotations

import enum

from tidegate.datastream.functions import AggregateFunction
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)


class Average(AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


VALUE, LIST, MAP = ValueStateDescriptor("v"), ListStateDescriptor("l"), MapStateDescriptor("m")
REDUCING = ReducingStateDescriptor("r", lambda a, b: a + b)
AGGREGATING = AggregatingStateDescriptor("a", Average())


class Color(enum.Enum):
    RED = 1


def at(backend, key, namespace=None):
    backend.current_key, backend.current_namespace = key, namespace


def fill(backend, keys, value=lambda key: key):
    states = [backend.get_state(d) for d in (VALUE, LIST, MAP, REDUCING, AGGREGATING)]
    windows = backend.get_state(ListStateDescriptor("w"), namespaced=True)
    for key in keys:
        at(backend, key, ("ns", key))
        states[0].update(value(key))
        states[1].update([value(key), key])
        states[2].put(value(key), key)
        states[3].add(key)
        states[4].add(key)
        windows.add(value(key))


def contents(backend):
    found = {}
    read = {
        VALUE: lambda s: s.value(),
        LIST: lambda s: list(s.get()),
        MAP: lambda s: dict(s.items()),
        REDUCING: lambda s: s.get(),
        AGGREGATING: lambda s: s.get(),
    }
    for descriptor, get in read.items():
        state = backend.get_state(descriptor)
        for key in list(backend.keys(descriptor.name)):
            at(backend, key)
            found[descriptor.name, key] = get(state)
    windows = backend.get_state(ListStateDescriptor("w"), namespaced=True)
    for key in list(backend.keys("w")):
        at(backend, key, ("ns", key))
        found["w", key] = list(windows.get())
    return found
