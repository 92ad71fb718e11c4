"""What may happen next in a simulation, and its time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tests.simulation.durations import any_ms
from tests.simulation.outside_world import OutsideWorld
from tests.simulation.pools import Event, Pool
from tests.simulation.scenario import Scenario
from tests.simulation.sim_clock import ProcessClock, SimClock

_RANDOM_NAME = re.compile(r"-[0-9a-f]{12}(?=\.state)")  # in the names of state files: differs from run to run


class Schedule:
    """Pools of things that may happen, of which one is picked at a time; and timers. One clock for all."""

    stuck_restores = 0.3  # of the restores that hang

    def __init__(self, scenario: Scenario, trace: bool) -> None:
        self.scenario = scenario
        self.rng: random.Random = scenario.rng
        self.clock = SimClock()
        self.world = OutsideWorld(self.rng, self.clock)
        self.struck = self.world.struck
        self.lines: list[str] | None = [] if trace else None
        # Everything that may happen next, by kind.
        self.frames, self.control, self.ready = Pool(), Pool(), Pool()
        self.async_work, self.helper_pool, self.events = Pool(), Pool(), Pool()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.steps = 0
        self.went_on_at = 0  # the step at which somebody last went on who had stood still
        self._calm_after = scenario.calm_after
        self._wall_ms = 0.0  # how far wrong the wall clocks are
        self._started_ms = self.clock.now_ms()

    @property
    def calm(self) -> bool:
        """Nothing goes wrong any more."""
        return self.steps > self._calm_after

    def hangs(self) -> bool:
        return not self.calm and self.rng.random() < self.scenario.hang_rate

    def restore_hangs(self) -> bool:
        """A read of a worker that is just restoring its state."""
        return not self.calm and self.rng.random() < self.scenario.restore_hang_rate

    def new_clock(self) -> ProcessClock:
        """Of a process that starts now."""
        if not self.scenario.clock_skew:
            return ProcessClock(self.clock, 0.0)
        skew = self.rng.choice((-1, 0, 1)) * any_ms(self.rng, 0.1, 1_000_000.0)
        return ProcessClock(self.clock, self._wall_ms + skew)

    def set_wall_clocks(self, by_ms: float) -> None:
        self.trace(f"the wall clocks jump by {by_ms:.0f} ms")
        self.struck["the wall clocks jump"] += 1
        self._wall_ms = max(-8_000_000.0, self._wall_ms + by_ms)

    def later(self, what: str, happen: Callable[[], None]) -> None:
        self.events.add(Event(what, happen))

    def after(self, ms: float, do: Callable[[], None]) -> None:
        self.timers.append((self.clock.now_ms() + ms, do))

    def draw_slowness(self) -> float:
        return self.scenario.link_slowness if self.rng.random() < 0.3 else 0.0

    def trace(self, text: str) -> None:
        if self.lines is not None:
            text = _RANDOM_NAME.sub("", text)
            self.lines.append(f"{self.steps:>5} {self.clock.now_ms() - self._started_ms:9.2f} ms  {text}")
