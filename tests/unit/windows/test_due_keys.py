"""The keys that are due at the ends of sliding windows, against a plain model; and what they leave in the state, which
is what timers leave there."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.taskmanager.operators.window_due import DueKeys
from tidegate.taskmanager.timers import OperatorTimers

NAME = OperatorTimers.EVENT


def backend() -> HeapKeyedStateBackend:
    return HeapKeyedStateBackend("op", (0, 128), 128)


def entries(on: HeapKeyedStateBackend) -> set[tuple[int, Any]]:
    (table,) = (t for t in on.tables() if t.info.name == NAME)
    return {(stamp + 1, key) for key, (_, stamp) in table.live_keys()}


@pytest.mark.parametrize("seed", range(30))
def test_each_key_fires_once_per_end_whatever_comes_between(seed: int) -> None:
    chance, on = random.Random(seed), backend()
    due, model = DueKeys(on, NAME), dict[int, dict[str, None]]()
    clock_turns_back = seed % 3 == 0
    now = 0
    for _ in range(300):
        match chance.randrange(5):
            case 0 | 1:
                first = now - 20 if clock_turns_back else now + 1
                end = chance.randrange(first // 5 * 5 + 5, now + 40, 5)
                keys = [chance.choice("abcdefgh") for _ in range(chance.randrange(4))]
                due.add(end, keys)
                if keys:
                    model.setdefault(end, {}).update(dict.fromkeys(keys))
            case 2:
                now += chance.randrange(8)
            case 3:
                for _ in range(chance.randrange(1, 4)):
                    limit = chance.randrange(1, 4)
                    found = due.first(now, limit)
                    ended = min((end for end, keys in model.items() if keys), default=None)
                    if ended is None or ended - 1 > now:
                        assert found is None
                        break
                    assert found is not None
                    end, keys = found
                    assert end == ended
                    assert 0 < len(keys) <= limit
                    done = chance.randrange(1, len(keys) + 1)
                    last = due.fired(done)
                    for key in keys[:done]:
                        del model[end][key]
                    assert last or model[end]
            case _:
                due.save()
                left = {(end, key) for end, keys in model.items() for key in keys}
                assert entries(on) == left
                if chance.random() < 0.4:
                    due = DueKeys(on, NAME)
        left = {end for end, keys in model.items() if keys}
        assert due.next_end() == min(left, default=None)
        assert due.last_end() == max(left, default=None)
        assert due.count() == len({key for keys in model.values() for key in keys})


def test_timers_read_what_due_keys_leave_and_the_other_way_round() -> None:
    on = backend()
    due = DueKeys(on, NAME)
    due.add(10, ["a", "b"])
    due.add(15, ["a"])
    due.save()
    timers = OperatorTimers(on)
    assert [timers.event.pop_due(100) for _ in range(3)] == [(9, "a", None), (9, "b", None), (14, "a", None)]
    timers.event.register(19, "c")
    timers.save()
    due = DueKeys(on, NAME)
    assert due.first(100, 10) == (20, ["c"])
    assert due.fired(1)
    assert due.next_end() is None
    due.save()
    assert entries(on) == set()
