"""Timers: registered once, deleted, fired in order, kept in keyed state."""

import pytest

from tests.unit.state.memory_sink import MemorySink
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.taskmanager.timers import OperatorTimers


def backend(groups=(0, 128)):
    return HeapKeyedStateBackend("op", groups, 128)


def fire(timers, up_to, limit=100):
    fired = []
    done = timers.fire(timers.event, up_to, limit, lambda t: fired.append((t.timestamp, t.key, t.namespace)))
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

    def on_timer(timer):
        fired.append(timer.timestamp)
        if timer.timestamp < 4:
            t.event.register(timer.timestamp + 1, "k")

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
