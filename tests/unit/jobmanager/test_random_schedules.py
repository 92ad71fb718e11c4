"""Many random schedules of faults: see fake_world. A failing seed reproduces the run exactly."""

from __future__ import annotations

from collections import Counter

import pytest
from fake_world import World

from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.job import BarrierCheckpoints


@pytest.mark.parametrize("block", range(10))
def test_every_schedule_ends_well(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        try:
            World(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("block", range(5))
def test_every_schedule_of_a_led_job_ends_well(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        try:
            World(seed, led=True).run()
        except Exception as error:
            error.add_note(f"seed {seed}, led")
            raise


def test_an_attempt_that_does_not_wait_for_the_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BarrierCheckpoints, "undecided", property(lambda self: False))
    problems = []
    for seed in range(100):
        try:
            World(seed, led=True).run()
        except Exception as error:
            problems.append(str(error))
    assert any("is restored although" in problem or "start from nothing" in problem for problem in problems), problems


def test_the_schedules_of_led_jobs_reach_what_they_are_meant_to_test() -> None:
    worlds = [World(seed, led=True) for seed in range(100)]
    for world in worlds:
        world.run()
    assert sum(world.undecided_restarts for world in worlds) > 2
    assert sum(world.ended is not None and world.ended.status is JobStatus.SUSPENDED for world in worlds) > 5
    assert sum(len(world.completed) for world in worlds) > 200


def test_the_schedules_reach_what_they_are_meant_to_test() -> None:
    ends: Counter[JobStatus] = Counter()
    restores = subsumed = completed = fallbacks = fenced = 0
    for seed in range(150):
        world = World(seed)
        world.run()
        assert world.ended is not None
        ends[world.ended.status] += 1
        stats = world.coordinator.stats
        restores += stats.restores
        completed += stats.completed
        subsumed += sum(r.name == "SUBSUMED" for r in stats.failures_by_reason)
        fallbacks += len(world.corrupt)
        fenced += world.master.fenced_messages
    assert all(ends[status] > 5 for status in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED)), ends
    assert restores > 30
    assert completed > 300
    assert subsumed > 3
    assert fallbacks > 1
    assert fenced > 100
