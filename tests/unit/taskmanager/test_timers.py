"""Timers: registered once, deleted, fired in order, kept in keyed state."""

import random

import pytest

from tests.unit.state.memory_sink import MemorySink
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.storage.handles import KeyedStateInfo
from tidegate.taskmanager.timers import OperatorTimers


def backend(groups=(0, 128)):
    return HeapKeyedStateBackend("op", groups, 128)


def fire(timers, up_to, limit=100):
    fired = []
    done = timers.fire(timers.event, up_to, limit, lambda *timer: fired.append(timer))
    return fired, done


def test_fires_in_order_of_time_and_then_of_registration():
    t = OperatorTimers(backend())
    for stamp, key in [(30, "a"), (10, "b"), (20, "c"), (10, "a")]:
        t.event.register(stamp, key)
    assert fire(t, 20) == ([(10, "b", None), (10, "a", None), (20, "c", None)], True)
    assert fire(t, 100) == ([(30, "a", None)], True)


def test_the_same_timer_twice_fires_once_and_namespaces_are_apart():
    t = OperatorTimers(backend())
    for namespace in (None, None, "w"):
        t.event.register(5, "k", namespace)
    assert len(t.event) == 2
    assert fire(t, 5)[0] == [(5, "k", None), (5, "k", "w")]


def test_a_deleted_timer_does_not_fire_and_can_be_set_again():
    t = OperatorTimers(backend())
    t.event.register(5, "k")
    t.event.delete(5, "k")
    t.event.delete(5, "never there")
    assert fire(t, 10) == ([], True)
    t.event.register(5, "k")
    assert fire(t, 10)[0] == [(5, "k", None)]


def test_firing_is_bounded_and_says_whether_something_is_left():
    t = OperatorTimers(backend())
    for i in range(10):
        t.event.register(i, "k")
    assert fire(t, 9, limit=0)[1] is False
    fired, done = fire(t, 9, limit=4)
    assert (len(fired), done) == (4, False)
    fired, done = fire(t, 9, limit=6)
    assert (len(fired), done) == (6, True)


def test_a_timer_set_while_firing_fires_too_when_it_is_due():
    t = OperatorTimers(backend())
    t.event.register(1, "k")
    fired = []

    def on_timer(timestamp, key, namespace):
        fired.append(timestamp)
        if timestamp < 4:
            t.event.register(timestamp + 1, "k")

    assert t.fire(t.event, 3, 100, on_timer) is True
    assert fired == [1, 2, 3]
    assert t.event.next_timestamp() == 4


@pytest.mark.parametrize("halves", [[(0, 128)], [(0, 64), (64, 128)]])
def test_timers_are_in_the_snapshot_and_move_with_their_keys(halves):
    original = backend()
    t = OperatorTimers(original)
    for i in range(50):
        t.event.register(i, f"key {i % 7}", ("w", i))
        t.processing.register(i, f"key {i % 7}")
    t.event.delete(3, "key 3", ("w", 3))
    sink = MemorySink()
    t.save()
    snapshot = original.snapshot(1).write(sink)
    t.event.register(999, "later")
    fired, processing = [], 0
    for groups in halves:
        restored = backend(groups)
        restored.restore([snapshot], sink)
        timers = OperatorTimers(restored)
        fired += fire(timers, 10_000)[0]
        processing += len(timers.processing)
    assert sorted(fired) == sorted((i, f"key {i % 7}", ("w", i)) for i in range(50) if i != 3)
    assert processing == 50


def test_a_timer_that_fires_before_the_next_snapshot_never_touches_the_state():
    b = backend()
    t = OperatorTimers(b)
    table = b.table(KeyedStateInfo(name=OperatorTimers.EVENT, kind="timers", namespaced=True))
    for key in ("a", "b"):
        t.event.register(1, key)
        t.event.register(ord(key), key)
    assert not list(table.live_keys())
    fire(t, 1)
    t.save()
    assert sorted(table.live_keys()) == [("a", (None, 97)), ("b", (None, 98))]
    t.event.register(97, "c")
    fire(t, 97)
    assert list(table.live_keys()) == [("b", (None, 98))]


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_calls_snapshots_and_restores_is_as_with_a_sorted_list(seed):
    rng = random.Random(seed)
    b = backend()
    t = OperatorTimers(b)
    there: list[tuple[int, str, object]] = []  # in the order of registration
    wide = rng.choice((5, 40, 1000))
    for i in range(600):
        step = rng.random()
        timer = rng.randrange(wide), rng.choice("abc"), rng.choice((None, "w"))
        if step < 0.6:
            t.event.register(*timer)
            if timer not in there:
                there.append(timer)
        elif step < 0.75:
            t.event.delete(*timer)
            there = [other for other in there if other != timer]
        elif step < 0.9:
            limit, up_to = rng.randrange(6), rng.randrange(wide)
            due = [timer for timer in sorted(there, key=lambda timer: timer[0]) if timer[0] <= up_to]
            assert fire(t, up_to, limit) == (due[:limit], len(due) <= limit)
            there = [timer for timer in there if timer not in due[:limit]]
        else:
            t.save()
            sink = MemorySink()
            snapshot = b.snapshot(i, full=True).write(sink)
            if rng.random() < 0.5:
                b = backend()
                b.restore([snapshot], sink)
                t = OperatorTimers(b)
                there = [(time, key, namespace) for key, (namespace, time) in t.event._table.live_keys()]
        assert len(t.event) == len(there)
        assert t.event.next_timestamp() == min((time for time, _, _ in there), default=None)
