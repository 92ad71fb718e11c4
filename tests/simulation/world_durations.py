"""The durations of a world of leases or leaders. Drawn as those of a job are (`durations.py`): each for itself, every
order of magnitude alike, so that which of two is the longer one is open. All but the lease itself are shares of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.durations import any_ms
from tidegate.storage.leases.lease import LeaseTimes


@dataclass(frozen=True)
class WorldDurations:
    times: LeaseTimes
    rates: float  # each clock differs by no more than this from the true rate
    give_up_ms: float  # a driver waits no longer for an answer
    retry_ms: float  # of the record, after a request without an answer
    tick_ms: tuple[float, float]  # between two looks of a driver at its lease
    work_ms: tuple[float, float]  # between two deeds of an owner
    delay_ms: float  # of a message that is neither lost nor held up, at most

    @property
    def faulty_ms(self) -> float:
        """So long things go wrong."""
        return 30 * self.times.lease_ms

    @property
    def settled_ms(self) -> float:
        """So long after the last fault the last one that was frozen is awake, the last late message has come, and
        whoever then has the lease has had time to lose it and another one to take it."""
        times = self.times
        late = 5 * times.lease_ms + 3 * self.give_up_ms + 2 * times.lease_ms
        waiting = 2 * times.lease_ms * (1 + times.drift) + 4 * times.look_ms
        return late + waiting + 4 * (self.give_up_ms + self.retry_ms) + 10 * (self.tick_ms[1] + self.work_ms[1])

    @property
    def proof_ms(self) -> float:
        """In so long something is done when nothing goes wrong."""
        return 6 * self.times.lease_ms + 20 * self.work_ms[1]


USUAL = WorldDurations(
    times=LeaseTimes(lease_ms=1000.0, renew_ms=300.0, look_ms=100.0, drift=0.05),
    rates=0.02,
    give_up_ms=400.0,
    retry_ms=50.0,
    tick_ms=(5.0, 30.0),
    work_ms=(1.0, 50.0),
    delay_ms=150.0,
)


def draw_durations(rng: random.Random) -> WorldDurations:
    lease = any_ms(rng, 100.0, 10_000.0)
    drift = any_ms(rng, 0.001, 0.3)
    tick, work = lease * any_ms(rng, 0.02, 0.2), lease * any_ms(rng, 0.02, 0.2)
    return WorldDurations(
        times=LeaseTimes(
            lease_ms=lease,
            renew_ms=lease * any_ms(rng, 0.02, 0.5),
            look_ms=lease * any_ms(rng, 0.01, 1.0),
            drift=drift,
        ),
        rates=0.99 * drift / (2 + drift),  # of the fastest and the slowest one: just within the drift
        give_up_ms=lease * any_ms(rng, 0.03, 1.0),
        retry_ms=lease * any_ms(rng, 0.005, 0.5),
        tick_ms=(tick / 6, tick),
        work_ms=(work / 50, work),
        delay_ms=lease * any_ms(rng, 0.01, 0.5),
    )


def draw_owner_times(rng: random.Random, times: LeaseTimes) -> LeaseTimes:
    """Of one driver: a few have been told another lease than the others."""
    if rng.random() < 0.8:
        return times
    share = any_ms(rng, 0.2, 1.0)
    return LeaseTimes(times.lease_ms * share, times.renew_ms * share, times.look_ms, times.drift)
