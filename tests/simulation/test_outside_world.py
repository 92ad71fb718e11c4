"""The oracle of commits: who may commit what."""

from __future__ import annotations

import random

import pytest

from tests.simulation.outside_world import BrokenPromise, OutsideWorld
from tests.simulation.sim_clock import SimClock


@pytest.fixture
def world() -> OutsideWorld:
    """A run of the driver has told its workers of checkpoint 1, which holds a transaction, and was killed; a new one
    found the checkpoint damaged and begins at the beginning."""
    world = OutsideWorld(random.Random(1), SimClock())
    world.checkpointing = True
    world.completed[1] = (0, 0)
    world.begin_run({})
    return world


def _staged(world: OutsideWorld, run: int, checkpoint: int) -> str:
    name = world.stage("sink", 0, 0, ["row"])
    world.transactions[name].attempt = (run, 0)
    world.transactions[name].checkpoint = checkpoint
    return name


def test_a_worker_of_a_killed_driver_may_commit_what_it_was_told_to(world: OutsideWorld) -> None:
    name = _staged(world, 0, 1)
    world.acting_run = 0
    world.commit(name)
    assert world.transactions[name].committed


def test_a_worker_of_a_killed_driver_may_not_commit_more_than_that(world: OutsideWorld) -> None:
    name = _staged(world, 0, 2)
    world.acting_run = 0
    with pytest.raises(BrokenPromise):
        world.commit(name)


def test_the_next_driver_may_not_commit_what_no_checkpoint_told_it_of(world: OutsideWorld) -> None:
    name = _staged(world, 0, 1)
    world.acting_run = 1
    with pytest.raises(BrokenPromise):
        world.commit(name)


def test_a_worker_of_a_killed_driver_gains_nothing_by_checkpoints_of_the_next(world: OutsideWorld) -> None:
    name = _staged(world, 1, 1)
    world.completed[1] = (1, 0)
    world.acting_run = 0
    with pytest.raises(BrokenPromise):
        world.commit(name)
    world.acting_run = 1
    world.commit(name)
