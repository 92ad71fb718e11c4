"""Control messages that come twice (the copy at once or much later, in the same attempt or in a later one), and bytes
that are no message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.pools import Life
from tidegate.protocol.codec import encode
from tidegate.protocol.messages import SlotHeartbeat

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario
    from tests.simulation.simulation import Simulation

_MAX_KEPT = 20

Deliver = Callable[[bytes], None]


class MessageFaults:
    def __init__(self, sim: Simulation, scenario: Scenario) -> None:
        self._sim = sim
        self._rng = scenario.rng
        self._rate = scenario.rng.choice((0.0, 0.0, 0.02, 0.2)) if scenario.faulty else 0.0
        # How soon they come again: one of the copies with this probability in each step.
        self._pace = scenario.rng.choice((0.05, 0.05, 0.005)) if scenario.harsher else 0.05
        self._kept: list[tuple[Deliver, bytes]] = []  # copies that are still under way
        self.repeated = 0
        self._unreadable_left = scenario.rng.choice((0,) * 9 + (1, 2)) if scenario.faulty else 0
        self.unreadable = 0

    def deliver(self, deliver: Deliver, payload: bytes) -> None:
        """A message arrives."""
        if self._rate and not self._sim.calm and self._rng.random() < self._rate and len(self._kept) < _MAX_KEPT:
            self._kept.append((deliver, payload))
        deliver(payload)

    def strike(self) -> None:
        if self._kept and not self._sim.calm and self._rng.random() < self._pace:
            deliver, payload = self._kept.pop(self._rng.randrange(len(self._kept)))
            self.repeated += 1
            self._sim.struck["a message comes again"] += 1
            self._sim.trace("a message comes again")
            deliver(payload)

        if self._unreadable_left and not self._sim.calm and self._rng.random() < 0.005:
            self._send_nonsense()

    def _send_nonsense(self) -> None:
        rng, sim = self._rng, self._sim
        alive = [slot for slot in sim.processes.values() if slot.life is Life.ALIVE]
        if not alive:
            return
        slot = rng.choice(alive)
        whole = encode(SlotHeartbeat(attempt=slot.attempt, slot=slot.slot))
        nonsense = rng.choice((whole[: rng.randrange(len(whole))], rng.randbytes(rng.randint(1, 50))))
        self._unreadable_left -= 1
        self.unreadable += 1
        sim.struck["bytes are no message"] += 1
        sim.trace(f"bytes that are no message go between {slot} and the driver: {nonsense!r}")
        rng.choice((slot.up, slot.down)).push(nonsense)

    def on_new_driver(self) -> None:
        """It has keys of its own."""
        self._kept.clear()
