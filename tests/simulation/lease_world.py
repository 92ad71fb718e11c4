"""Drivers that want the same lease, in one thread, under faults drawn from a seed: slow, lost and late messages to the
store, partitions, freezes, crashes, clocks that run at different rates and show different times."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable

from tidegate.storage.leases.lease import (
    Answer,
    Found,
    Instruction,
    Lease,
    LeaseTimes,
    Put,
    Refused,
    Stored,
    Unanswered,
    Written,
)

FAULTY_MS = 30_000.0
TIMES = LeaseTimes(lease_ms=1000.0, renew_ms=300.0, look_ms=100.0, drift=0.05)
_RATES = 0.02  # each clock differs by no more than this from the true rate
_WORK_MS = 50.0
_FAULTS = ("driver frozen", "driver cut off", "driver killed", "driver frozen, then cut off")
_GIVE_UP_MS = 400.0  # a driver waits no longer for an answer


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
        self._rate = 1 + world.random.uniform(-_RATES, _RATES)
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
        self.world.later(self.world.random.uniform(5, 30), lambda: self._when_awake(self._tick))

    def _work(self) -> None:
        if self.held():
            self.world.written(self)
        self.world.later(self.world.random.uniform(1, _WORK_MS), lambda: self._when_awake(self._work))

    def _carry_out(self, instruction: Instruction | None) -> None:
        if instruction is None:
            return
        world, number = self.world, next(self._requests)
        self._waiting_for = number
        # A request can arrive, and take effect, long after its sender has given up.
        arrives = world.delay()
        if world.random.random() < world.loss or world.now < self.cut_off_until:
            arrives = world.random.choice([None, world.random.uniform(0, 3 * _GIVE_UP_MS)])
        if arrives is not None:
            world.later(arrives, lambda: self._arrived(number, instruction))
        world.later(_GIVE_UP_MS, lambda: self._when_awake(lambda: self._answered(number, Unanswered())))

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
    def __init__(self, seed: int, *, drivers: int = 3, faults: bool = True) -> None:
        self.random = random.Random(seed)
        self.seed = seed
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

    # Planted bugs replace these two.
    def make_lease(self, name: str) -> Lease:
        return Lease(name, TIMES)

    def may_write(self, lease: Lease, now_ms: float) -> bool:
        return lease.held(now_ms)

    def delay(self) -> float:
        return self.random.choice([1.0, 10.0, self.random.uniform(0, 150)])

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
        self._fault = lambda: None  # type: ignore[method-assign]
        for driver in self.drivers:
            driver.frozen_until = driver.cut_off_until = 0.0

    def _fault(self) -> None:
        driver = self.random.choice([d for d in self.drivers if d.alive])
        if self.random.random() < 0.6:  # most of all to the one that matters
            driver = next((d for d in self.drivers if d.held()), driver)
        length = self.random.choice([50.0, 500.0, 1000.0, 1200.0, 3000.0])
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
                driver.cut_off_until = driver.frozen_until + self.random.uniform(0, 2000)
        self.later(self.random.uniform(100, 2000), lambda: self._fault())

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
    world.run(FAULTY_MS)
    world.heal()
    world.run(FAULTY_MS + 5_000)
    before = len(world.log)
    world.run(FAULTY_MS + 6_000)
    world.check_log()
    if len(world.log) == before:
        raise BrokenLease(f"seed {world.seed}: nobody owns it although nothing fails any more")
    return world
