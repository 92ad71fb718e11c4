"""Random jobs with watermarks, timers and windows, on random schedules with failures: the results are those of the
reference model, whatever happens. And the simulator finds what would break that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation import scenario
from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import IN_ROCKSDB, Mode, Variation
from tests.simulation.time_jobs import TimeJobBuilder
from tests.simulation.user_savepoints import UserSavepoints
from tidegate.storage.handles import KeyedStateInfo
from tidegate.taskmanager import task_time
from tidegate.taskmanager.operators.source import SourceOperator
from tidegate.taskmanager.operators.timestamps import AssignTimestampsOperator
from tidegate.taskmanager.operators.window import WindowOperator
from tidegate.taskmanager.operators.window_merging import MergingWindowSet
from tidegate.taskmanager.operators.window_panes import PaneWindowOperator
from tidegate.taskmanager.operators.window_slices import SliceWindowOperator
from tidegate.taskmanager.task_time import SavedTime
from tidegate.taskmanager.timers import TimerQueue
from tidegate.taskmanager.watermark_valve import WatermarkValve

SCHEDULES = 20  # per mode
RESCALED = 12  # schedules per mode with changes of parallelism
MAX_SEEDS = 300
MODES = [Mode.ALIGNED, Mode.CONCURRENT, Mode.UNALIGNED, Mode.TIMEOUT]
Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.filterwarnings("ignore:.*never emits anything")


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_failures_do_not_show_in_windows_and_timers(mode: Mode) -> None:
    restored = 0
    for seed in range(SCHEDULES):
        restored += len(run_seed(seed, mode, variation=Variation.TIME).restored)
    assert restored >= SCHEDULES / 5


def test_at_least_once_loses_nothing_from_windows_and_timers() -> None:
    runs = [run_seed(seed, Mode.AT_LEAST_ONCE, variation=Variation.TIME) for seed in range(SCHEDULES)]
    assert sum(len(run.restored) for run in runs) > SCHEDULES / 4


def rescaling_time_jobs(patch: Patch) -> None:
    """Free jobs: they are the same at any parallelism. Without drains, which make windows fire before their time."""
    patch.setattr(scenario, "JobBuilder", TimeJobBuilder)
    patch.setattr(TimeJobBuilder, "scripted", 0.0)
    patch.setattr(UserSavepoints, "drains", 0.0)


def test_windows_and_timers_go_on_at_another_parallelism(monkeypatch: Patch) -> None:
    rescaling_time_jobs(monkeypatch)
    rescaled = seed = 0
    while seed < RESCALED or rescaled < 2:  # what a seed draws changes with the simulator: some have to rescale
        assert seed < 10 * RESCALED
        for mode in (Mode.ALIGNED, Mode.UNALIGNED):
            restarts = run_seed(seed, mode, variation=Variation.RESCALE).restarts
            assert restarts is not None
            rescaled += restarts.rescaled
        seed += 1


# ---------------------------------------------------------------- planted bugs


def timers_not_stored(patch: Patch) -> None:
    patch.setattr(TimerQueue, "save", lambda self: None)


def deleted_timers_stay_in_the_state(patch: Patch) -> None:
    delete = TimerQueue.delete

    def half_delete(self: Any, timestamp: int, key: Any, namespace: Any = None) -> None:
        stored = self._table.get((key, (namespace, timestamp)))
        delete(self, timestamp, key, namespace)
        if stored is not None:
            self._table.put((key, (namespace, timestamp)), stored)

    patch.setattr(TimerQueue, "delete", half_delete)


def _without_contents(patch: Patch, operator: Any, kind: str, namespaced: bool) -> None:
    opened = operator.open

    def open_empty(self: Any) -> None:
        stored = "list" if self.spec.kind == "elements" else kind
        table = self.backend.table(KeyedStateInfo(name=self.layout, kind=stored, namespaced=namespaced))
        for entry in list(table.live_keys()):
            table.remove(entry)
        opened(self)

    patch.setattr(operator, "open", open_empty)


def panes_not_restored(patch: Patch) -> None:
    _without_contents(patch, PaneWindowOperator, "value", True)


def slices_not_restored(patch: Patch) -> None:
    _without_contents(patch, SliceWindowOperator, "map", False)


def window_contents_not_restored(patch: Patch) -> None:
    _without_contents(patch, WindowOperator, "value", True)


def merging_windows_not_restored(patch: Patch) -> None:
    """Sessions that were open do not grow any more."""
    opened = WindowOperator.open

    def open_without(self: Any) -> None:
        opened(self)
        if self._merging is not None:
            for key in list(self.backend.keys(MergingWindowSet.STATE_NAME)):
                self.backend.current_key = key
                self._merging._state.clear()

    patch.setattr(WindowOperator, "open", open_without)


def _saved_otherwise(patch: Patch, change: Callable[[SavedTime], SavedTime]) -> None:
    found = task_time._saved_times

    def saved_times(entries: Any) -> tuple[dict[int, SavedTime], int]:
        saved, before = found(entries)
        return {subtask: change(time) for subtask, time in saved.items()}, before

    patch.setattr(task_time, "_saved_times", saved_times)


def one_subtask_takes_the_time_of_another(patch: Patch) -> None:
    """As if the subtasks that have no watermark yet had not been there."""
    found = task_time._saved_times
    patch.setattr(task_time, "_saved_times", lambda entries: (saved := found(entries)[0], len(saved)))


def channels_restored_at_the_highest_watermark(patch: Patch) -> None:
    def too_high(saved: SavedTime) -> SavedTime:
        highest = max((watermark for watermark, _ in saved.channels.values()), default=0)
        return saved._replace(channels={name: (highest, idle) for name, (_, idle) in saved.channels.items()})

    _saved_otherwise(patch, too_high)


def a_recovery_fires_what_waits_for_the_next_watermark(patch: Patch) -> None:
    _saved_otherwise(patch, lambda saved: saved._replace(firing=True))


def timers_left_by_a_watermark_wait_for_the_next(patch: Patch) -> None:
    _saved_otherwise(patch, lambda saved: saved._replace(firing=False))


def nobody_says_that_it_is_active_again(patch: Patch) -> None:
    for maker in (SourceOperator, AssignTimestampsOperator):
        patch.setattr(maker, "announce_time", lambda self: None)


def time_ends_for_idle_channels_too(patch: Patch) -> None:
    def advance_to(self: WatermarkValve, timestamp: int) -> int | None:
        if timestamp <= self.watermark:
            return None
        self.watermark = timestamp
        return timestamp

    patch.setattr(WatermarkValve, "_advance_to", advance_to)


# With the sort of jobs that shows the bug soonest.
SCRIPTED, FREE, IDLE = {"scripted": 1.0}, {"scripted": 0.0, "idle": 0.0}, {"scripted": 0.0, "idle": 1.0}
TIMERS = {"scripted": 1.0, "past_timers": 1.0}
BUGS: list[tuple[Callable[[Patch], None], Mode, dict[str, float]]] = [
    (timers_not_stored, Mode.ALIGNED, {}),
    (deleted_timers_stay_in_the_state, Mode.ALIGNED, FREE),
    (panes_not_restored, Mode.ALIGNED, {}),
    (slices_not_restored, Mode.ALIGNED, {}),
    (window_contents_not_restored, Mode.ALIGNED, {}),
    (merging_windows_not_restored, Mode.ALIGNED, {}),
    (one_subtask_takes_the_time_of_another, Mode.UNALIGNED, FREE),
    (channels_restored_at_the_highest_watermark, Mode.ALIGNED, FREE),
    (a_recovery_fires_what_waits_for_the_next_watermark, Mode.ALIGNED, TIMERS),
    (timers_left_by_a_watermark_wait_for_the_next, Mode.UNALIGNED, TIMERS),
    (nobody_says_that_it_is_active_again, Mode.UNALIGNED, IDLE),
    (time_ends_for_idle_channels_too, Mode.ALIGNED, IDLE),
]


def noticed(mode: Mode, variation: Variation) -> bool:
    for seed in range(MAX_SEEDS):
        try:
            run_seed(seed, mode, variation=variation)
        except SimulationFailed:
            return True
    return False


@pytest.mark.parametrize(("plant", "mode", "sort"), BUGS, ids=[f"{bug[0].__name__}-{bug[1].value}" for bug in BUGS])
def test_a_planted_bug_is_found(
    plant: Callable[[Patch], None], mode: Mode, sort: dict[str, float], monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    monkeypatch.setitem(IN_ROCKSDB, Variation.TIME, 0.0)  # soonest found where schedules are quick
    for name, share in sort.items():
        monkeypatch.setattr(TimeJobBuilder, name, share)
    assert noticed(mode, Variation.TIME), f"{plant.__name__} went unnoticed in {MAX_SEEDS} schedules"


def test_the_simulation_notices_when_a_rescaled_task_takes_the_highest_time(monkeypatch: Patch) -> None:
    rescaling_time_jobs(monkeypatch)
    monkeypatch.setitem(IN_ROCKSDB, Variation.RESCALE, 0.0)
    monkeypatch.setattr(task_time, "min", max, raising=False)
    assert noticed(Mode.UNALIGNED, Variation.RESCALE)
