"""Drivers that want the same lease, in one thread, under faults drawn from a seed: slow, lost and late messages to the
store, partitions, freezes, crashes, clocks that run at different rates and show different times. How long everything
takes is drawn too (`world_durations.py`)."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable

from tests.simulation.durations import any_ms
from tests.simulation.world_durations import USUAL, WorldDurations, draw_durations, draw_owner_times
from tidegate.storage.leases.lease import (
    Answer,
    Found,
    Instruction,
    Lease,
    LeaseTimes,
    Over,
    Put,
    Refused,
    Stored,
    Unanswered,
    Written,
)

_FAULTS = ("driver frozen", "driver cut off", "driver killed", "driver frozen, then cut off")


class BrokenLease(AssertionError):
    pass


class Store:
    """Conditional writes, in the order in which they arrive."""

    def __init__(self) -> None:
        self.stored: Stored | None = None
        self._versions = itertools.count(1)

    def carry_out(self, instruction: Instruction) -> Answer:
        if not isinstance(instruction, Put):
            return Found(self.stored)
        if (self.stored.version if self.stored is not None else None) != instruction.expected:
            return Refused()
        self.stored = Stored(instruction.record, str(next(self._versions)))
        return Written(self.stored.version)


class Driver:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.lease = world.make_lease(name)
        self.alive = True
        self.frozen_until = 0.0
        self.cut_off_until = 0.0
        rates = world.durations.rates
        self._rate = 1 + world.random.choice([-rates, rates, world.random.uniform(-rates, rates)])
        self._shown = world.random.uniform(0, 1e9)  # no two clocks show the same
        self._waiting_for = 0  # the number of the request whose answer is taken
        self._requests = itertools.count(1)
        self._tick()
        self._work()

    def now(self) -> float:
        return self._shown + self.world.now * self._rate

    def held(self) -> bool:
        return self.alive and self.world.may_write(self.lease, self.now())

    def _when_awake(self, do: Callable[[], None]) -> None:
        """Now, or when it thaws; never when it is dead."""
        if not self.alive:
            return
        if self.world.now < self.frozen_until:
            self.world.at(self.frozen_until, lambda: self._when_awake(do))
        else:
            do()

    def _tick(self) -> None:
        self._carry_out(self.lease.on_tick(self.now()))
        self.world.later(self.world.between(self.world.durations.tick_ms), lambda: self._when_awake(self._tick))

    def _work(self) -> None:
        if self.held():
            self.world.written(self)
        self.world.later(self.world.between(self.world.durations.work_ms), lambda: self._when_awake(self._work))

    def _carry_out(self, instruction: Instruction | None) -> None:
        if instruction is None:
            return
        world, number = self.world, next(self._requests)
        self._waiting_for = number
        world.send(self, lambda: self._arrived(number, instruction))
        given_up = lambda: self._when_awake(lambda: self._answered(number, Unanswered()))  # noqa: E731
        world.later(world.durations.give_up_ms, given_up)

    def _arrived(self, number: int, instruction: Instruction) -> None:
        world = self.world
        answer = world.store.carry_out(instruction)
        if world.random.random() >= world.loss and world.now >= self.cut_off_until:
            world.later(world.delay(), lambda: self._when_awake(lambda: self._answered(number, answer)))

    def _answered(self, number: int, answer: Answer) -> None:
        if number == self._waiting_for:
            self._waiting_for = 0
            self._carry_out(self.lease.on_answer(answer, self.now()))
            self.lease.check_invariants()


class World:
    """Without `faults` and without `durations` they are the usual ones, whatever the seed."""

    def __init__(
        self, seed: int, *, drivers: int = 3, faults: bool = True, durations: WorldDurations | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self._draws = random.Random(f"{seed}/durations")
        self._mixed = faults and durations is None  # not all drivers have the same lease
        self.durations = durations or (draw_durations(self._draws) if faults else USUAL)
        self._calm = False
        self.now = 0.0
        self.loss = 0.05 if faults else 0.0
        self.store = Store()
        self.log: list[tuple[float, str, int]] = []  # (time, owner, epoch) of everything done under the lease
        self.struck: Counter[str] = Counter()  # faults
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._names = itertools.count()
        self.drivers = [self.make_driver(self.new_name()) for _ in range(drivers)]
        if faults:
            self._fault()

    def make_driver(self, name: str) -> Driver:
        return Driver(self, name)

    def new_name(self) -> str:
        return f"driver-{next(self._names)}"

    def lease_times(self) -> LeaseTimes:
        """Of the next driver."""
        times = self.durations.times
        return draw_owner_times(self._draws, times) if self._mixed else times

    # Planted bugs replace these two.
    def make_lease(self, name: str) -> Lease:
        return Lease(name, self.lease_times())

    def may_write(self, lease: Lease, now_ms: float) -> bool:
        return lease.held(now_ms)

    def between(self, range_ms: tuple[float, float]) -> float:
        return self.random.uniform(*range_ms)

    def delay(self) -> float:
        """Of a message. In calm times nobody gives it up."""
        longest = self.durations.delay_ms
        if self._calm:
            longest = min(longest, self.durations.give_up_ms / 3, self.durations.times.lease_ms / 50)
        return self.random.choice([longest / 150, longest / 15, self.random.uniform(0, longest)])

    def send(self, driver: Driver, arrived: Callable[[], None]) -> None:
        """To a store: on its way it may be lost, or come, and take effect, long after its sender has given up."""
        arrives: float | None = self.delay()
        if self.random.random() < self.loss or self.now < driver.cut_off_until:
            late = self.random.choice([3 * self.durations.give_up_ms, 2 * self.durations.times.lease_ms])
            arrives = self.random.choice([None, self.random.uniform(0, late)])
        if arrives is not None:
            self.later(arrives, arrived)

    def at(self, time: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), do))

    def later(self, ms: float, do: Callable[[], None]) -> None:
        self.at(self.now + ms, do)

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
            self._check()
        self.now = until

    def written(self, driver: Driver) -> None:
        self.log.append((self.now, driver.name, driver.lease.epoch))

    def heal(self) -> None:
        self.loss = 0.0
        self._calm = True
        self._fault = lambda: None  # type: ignore[method-assign]
        for driver in self.drivers:
            driver.frozen_until = driver.cut_off_until = 0.0
        self._replace_losers()

    def _replace_losers(self) -> None:
        """A process supervisor starts them again."""
        for driver in [d for d in self.drivers if d.alive and isinstance(d.lease.state, Over)]:
            driver.alive = False
            self.drivers.append(self.make_driver(self.new_name()))

    def _fault(self) -> None:
        if self.random.random() < 0.5:
            self._replace_losers()
        driver = self.random.choice([d for d in self.drivers if d.alive])
        if self.random.random() < 0.6:  # most of all to the one that matters
            driver = next((d for d in self.drivers if d.held()), driver)
        lease_ms = self.durations.times.lease_ms
        length = lease_ms * self.random.choice([any_ms(self.random, 0.03, 5.0), self.random.uniform(0.8, 1.5)])
        kind = self.random.randrange(4)
        self.struck[_FAULTS[kind]] += 1
        match kind:
            case 0:
                driver.frozen_until = self.now + length
            case 1:
                driver.cut_off_until = self.now + length
            case 2:
                driver.alive = False
                self.drivers.append(self.make_driver(self.new_name()))
            case 3:
                driver.frozen_until = self.now + length
                driver.cut_off_until = driver.frozen_until + self.random.uniform(0, 2 * lease_ms)
        self.later(lease_ms * self.random.uniform(0.1, 2.0), lambda: self._fault())

    def _check(self) -> None:
        """By their own clocks, frozen or not, no two may believe."""
        believers = [d.name for d in self.drivers if d.held()]
        if len(believers) > 1:
            raise BrokenLease(f"seed {self.seed}: {believers} all believe at {self.now}")

    def check_log(self) -> None:
        owners: dict[int, str] = {}
        last = 0
        for time, owner, epoch in self.log:
            if epoch < last:
                raise BrokenLease(f"seed {self.seed}: {owner} wrote under epoch {epoch} after {last}, at {time}")
            if owners.setdefault(epoch, owner) != owner:
                raise BrokenLease(f"seed {self.seed}: epoch {epoch} belongs to {owners[epoch]} and {owner}")
            last = epoch


def run_lease_world(world: World) -> World:
    """To its end: faults for a while, then none. Raises BrokenLease."""
    durations = world.durations
    world.run(durations.faulty_ms)
    world.heal()
    world.run(durations.faulty_ms + durations.settled_ms)
    before = len(world.log)
    world.run(durations.faulty_ms + durations.settled_ms + durations.proof_ms)
    world.check_log()
    if len(world.log) == before:
        raise BrokenLease(f"seed {world.seed}: nobody owns it although nothing fails any more")
    return world
