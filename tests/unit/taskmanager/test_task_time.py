"""What a task takes over from the time in a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.network.channels import InputChannel
from tidegate.network.elements import MIN_WATERMARK, Watermark
from tidegate.taskmanager.task_time import TaskTime

NONE = MIN_WATERMARK


class Lists:
    """Union list state, shared by the subtasks that are given it."""

    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries

    def get_union_list_state(self, descriptor: Any) -> Lists:
        return self

    def get(self) -> list[Any]:
        return self.entries

    def update(self, entries: list[Any]) -> None:
        self.entries = entries

    def clear(self) -> None:
        self.entries = []


class Head:
    def __init__(self, lists: Lists) -> None:
        self.context = SimpleNamespace(operator_state=lists)
        self.current_watermark = NONE
        self.said: list[Any] = []

    def process_watermark(self, timestamp: int) -> None:
        self.said.append(timestamp)

    def process_status(self, idle: bool) -> None:
        self.said.append(idle)

    def fire_event_timers(self, limit: int) -> bool:
        return True


class Maker:
    def __init__(self, head: Head) -> None:
        self._head = head

    def announce_time(self) -> None:
        self._head.said.append("active")


def restored(
    entries: list[Any],
    subtask: int = 0,
    parallelism: int = 2,
    names: tuple[str, ...] = ("e/0", "e/1"),
    exact_cuts: bool = True,
) -> Any:
    """(the task's time, its head) after a restore."""
    head: Any = Head(Lists(entries))
    inputs: Any = [InputChannel.__new__(InputChannel) for _ in names]
    chain: Any = SimpleNamespace(head=head, periodic=[Maker(head)])
    time = TaskTime(chain, inputs, list(names), subtask, parallelism, 200.0, exact_cuts)
    time.restore()
    return time, head


def entry(subtask: int, watermark: int, firing: bool = False, of: int = 2, **channels: tuple[int, bool]) -> Any:
    return subtask, watermark, {f"e/{n[1:]}": c for n, c in channels.items()}, firing, of


def test_every_subtask_gets_its_own_time_and_says_it_again() -> None:
    entries = [entry(0, 10, c0=(10, False), c1=(20, False)), entry(1, 30, c0=(30, False), c1=(40, True))]
    time, head = restored(entries, subtask=1)
    assert (head.current_watermark, head.said, time.pending) == (30, [False, 30, "active"], False)
    time, head = restored([entry(0, 9, c0=(9, True), c1=(3, True))])
    assert head.said == [True, 9, "active"], "idle as before"


def test_a_subtask_that_had_no_watermark_has_none_whatever_the_others_have() -> None:
    for parallelism in (2, 3):
        _, head = restored([entry(0, 10, c0=(10, False), c1=(20, False))], subtask=1, parallelism=parallelism)
        assert (head.current_watermark, head.said) == (NONE, ["active"])


@pytest.mark.parametrize("firing", [False, True])
def test_timers_are_fired_only_if_they_were_being_fired(firing: bool) -> None:
    time, head = restored([entry(0, 10, firing, 1, c0=(10, False), c1=(20, False))], parallelism=1)
    assert time.pending is firing
    assert head.said == ([False, "active"] if firing else [False, 10, "active"])


@pytest.mark.parametrize("exact", [True, False])
def test_at_least_once_the_time_of_a_task_with_inputs_begins_anew(exact: bool) -> None:
    """It may be ahead of the cut, and what is read again may come another way."""
    time, head = restored([], exact_cuts=exact)
    for channel in (0, 1):
        time.on_element(channel, Watermark(70))
    time.save()
    _, again = restored(list(time._state.get()), exact_cuts=exact)
    assert head.current_watermark == 70
    assert again.current_watermark == (70 if exact else NONE)


def test_with_another_parallelism_the_lowest_counts() -> None:
    entries = [entry(0, 10, c0=(10, False)), entry(1, 30, True, c0=(30, False))]
    time, head = restored(entries, subtask=2, parallelism=3)
    assert (head.current_watermark, time.pending) == (10, True)


@pytest.mark.parametrize("names", [("live/0", "live/1"), ("live/0", "live/1", "live/2")])
def test_time_never_goes_back_when_other_inputs_begin_before_it(names: tuple[str, ...]) -> None:
    """A job goes on with another source, or at another parallelism."""
    time, head = restored([entry(0, 50, of=1, c0=(50, False))], parallelism=len(names) - 1, names=names)
    assert head.current_watermark == 50
    said = len(head.said)
    for stamp in (10, 49, 50):
        for channel in range(len(names)):
            time.on_element(channel, Watermark(stamp))
        assert (head.current_watermark, head.said[said:]) == (50, [])
    for channel in range(len(names)):
        assert head.current_watermark == 50
        time.on_element(channel, Watermark(60))
    assert (head.current_watermark, head.said[said:]) == (60, [60])


def test_a_snapshot_of_before_says_less_and_is_read() -> None:
    time, head = restored([(0, 10, {"e/0": (10, False), "e/1": (20, False)}), (1, 30, {})])
    assert (head.current_watermark, time.pending) == (10, True)


def test_what_is_saved_is_what_is_restored() -> None:
    time, head = restored([entry(0, 10, True, c0=(10, False), c1=(20, True)), entry(1, 30)])
    time.save()
    saved = list(head.context.operator_state.get())
    assert saved == [entry(0, 10, True, c0=(10, False), c1=(20, True))]
    time.save(drained=True)
    assert head.context.operator_state.get() == []
