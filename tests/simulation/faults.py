"""What goes wrong in a run, and when."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation import verify
from tests.simulation.durations import any_ms
from tests.simulation.message_faults import MessageFaults
from tests.simulation.pools import Life, Link
from tests.simulation.sim_slot import LOST, SimSlot
from tests.simulation.storage_faults import StorageFaults
from tidegate.common.ids import SlotIndex
from tidegate.network.wire import Frame
from tidegate.protocol.messages import DeclineCheckpoint, DeclineReason

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario
    from tests.simulation.simulation import Simulation

_TASK_HAS_ENDED = ("the RocksDB database", "the task was closed before its snapshot could be written")
_BESIDE = 50  # the number of the first request that is not planned; those of stops begin at 100
_MAX_STALE = 10  # frames of an old attempt that turn up in a new one


class FaultPlan:
    """Drawn once; `strike` is called before every step. After `scenario.calm_after` steps nothing goes wrong."""

    damage_share = 0.1  # of the runs
    partition_share = 0.1  # of the harsher ones
    commit_hang_share = 0.1  # likewise
    jumps = (0, 1, 3)  # of the wall clocks, where they are drawn at all

    def __init__(self, sim: Simulation, scenario: Scenario) -> None:
        self._sim = sim
        self._rng = rng = scenario.rng
        self._calm_after = scenario.calm_after
        self.cancelled = False
        self.messages = MessageFaults(sim, scenario)
        self.storage = StorageFaults(sim, scenario)
        self.stale_delivered = 0
        self._savepoint_requests: set[int] = set()
        self._planned: dict[int, list[Any]] = {}  # step -> what strikes
        self._again = 0  # how many more recoveries are hit while they are under way
        self._stale: list[tuple[SlotIndex, Frame]] = []
        self._armed: list[tuple[int, Any]] = []  # (completed checkpoints that are waited for, what strikes soon after)
        if scenario.checkpoints is not None:
            for i in range(rng.choice((0, 0, 1, 2, 5))):
                self._plan(lambda i=i: self._request(i), 600)
        if sim.restarts is not None:
            for _ in range(rng.choice((1, 2, 2, 3))):
                checkpointing = scenario.runtime.checkpointing
                strike = sim.restarts.crash if rng.random() < 0.6 and checkpointing else sim.savepoints_taken.stop
                if rng.random() < 0.8 and checkpointing:  # most when there is something to start from
                    self._armed.append((rng.randint(1, 4), strike))
                else:
                    self._plan(strike, 600 if checkpointing else 200)
        elif sim.savepoints_taken.possible and rng.random() < sim.savepoints_taken.stop_share:
            self._plan(sim.savepoints_taken.stop, 600)
        if scenario.faulty:
            self._plan_faults(scenario)

    def _plan(self, strike: Any, within: int) -> None:
        """At a random step, or some time after a number of checkpoints are complete."""
        if self._rng.random() < 0.5 and self._sim.scenario.runtime.checkpointing:
            self._armed.append((self._rng.randint(1, 3), strike))
            return
        self._planned.setdefault(self._rng.randint(1, within), []).append(strike)

    def _plan_faults(self, scenario: Scenario) -> None:
        rng, sim, world = self._rng, self._sim, self._sim.world
        within = rng.choice((200, 500, 1000))
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            kind = rng.randrange(6)
            if kind <= 1:
                self._plan(self._crash, within)
            elif kind == 2:
                self._plan(self._break, within)
            elif kind == 3:
                self._plan(self._freeze, within)
            elif kind == 4:
                world.raise_at.add(rng.randint(1, 200))
            else:
                world.crash_at.add(rng.randint(1, 200))
        if rng.random() < 0.3:
            world.slow_rate = rng.choice((0.01, 0.1))
        if rng.random() < 0.4:
            world.commit_faults_left = rng.randint(1, 4)
            world.commit_fault_rate, world.commit_crash_rate = rng.choice(((0.5, 0.0), (0.2, 0.2), (0.0, 0.3)))
        if scenario.harsher:
            self._plan_harsher_faults(within)
        if rng.random() < 0.06:
            self._plan(self.cancel, within)
        files = getattr(sim.storage, "fake_files", None)
        if files is not None and sim.restarts is None:
            self._plan_driver_faults(within)
        elif files is not None and rng.random() < self.damage_share:
            self._armed.append((rng.randint(1, 4), self._damage))
        if files is not None:
            self.storage.begin(files)
        self._again = rng.choice((0, 0, 0, 1, 2, 4))
        if scenario.clock_skew:
            for _ in range(rng.choice(self.jumps)):
                self._plan(self._jump, within)

    def _plan_harsher_faults(self, within: int) -> None:
        rng, sim, world = self._rng, self._sim, self._sim.world
        if rng.random() < 0.15:
            began = sim.clock.now_ms() + any_ms(rng, 0.5, 60.0)
            world.commit_outages.append((began, began + any_ms(rng, 0.3, 3000.0)))
        if rng.random() < self.commit_hang_share:
            world.commit_hangs_left, world.commit_hang_rate = rng.randint(1, 3), rng.choice((0.1, 0.5))
        if rng.random() < self.partition_share:
            for _ in range(rng.choice((1, 1, 2))):
                self._plan(self._partition, within)

    def _plan_driver_faults(self, within: int) -> None:
        rng, sim = self._rng, self._sim
        if sim.led is not None:
            for _ in range(rng.choice((0, 1, 1, 2, 3))):
                self._plan(rng.choice((sim.led.kill, sim.led.freeze)), within)
            if rng.random() < self.damage_share:
                self._armed.append((rng.randint(1, 4), self._damage))
        elif rng.random() < 0.15:
            claim = rng.random() < 0.5
            self._plan(lambda: sim.crash_driver(claim), within)
        elif rng.random() < self.damage_share:
            self._armed.append((rng.randint(1, 4), self._damage))

    # ------------------------------------------------------------ strikes
    def strike(self) -> None:
        sim = self._sim
        if sim.steps in self._planned:
            for strike in self._planned.pop(sim.steps):
                strike()
        if self._armed and self._rng.random() < 0.02:
            completed = len(sim.world.completed)
            for wait in [a for a in self._armed if a[0] <= completed][:1]:
                self._armed.remove(wait)
                if sim.steps <= self._calm_after:
                    wait[1]()
        if self._stale and self._rng.random() < 0.05:
            self._deliver_stale()
        self.messages.strike()

    def _live(self) -> list[SimSlot]:
        return [s for s in self._sim.processes.values() if s.life is Life.ALIVE and not s.frozen]

    def _crash(self) -> None:
        live = self._live()
        if live:
            self._sim.crash(self._rng.choice(live), "planned")

    def _break(self) -> None:
        links = [link for s in self._live() for link in s.data.values() if not link.dead and LOST not in link.queue]
        if links:
            link: Link = self._rng.choice(links)
            self._sim.break_link(link)

    def _freeze(self) -> None:
        live = self._live()
        if live:
            self._sim.freeze(self._rng.choice(live), any_ms(self._rng, 1.0, 3000.0))

    def _partition(self) -> None:
        """Between a slot and the driver nothing gets through, one way or both, for a while or for good. What was sent
        meanwhile comes when it is over."""
        live, rng, sim = self._live(), self._rng, self._sim
        if not live:
            return
        slot = rng.choice(live)
        up, down = rng.choice(((True, False), (False, True), (True, True)))
        for_ms = math.inf if rng.random() < 0.3 else any_ms(rng, 1.0, 3000.0)
        sim.trace(f"{slot} is cut off from the driver for {for_ms:.0f} ms: up {up}, down {down}")
        sim.struck["a slot is cut off from the driver"] += 1
        slot.cut_up, slot.cut_down = slot.cut_up or up, slot.cut_down or down
        slot.receive_or_wait()
        if slot.cut_down and for_ms > sim.job_settings.heartbeat_timeout_ms:
            sim.after(sim.job_settings.heartbeat_timeout_ms, partial(self._leave_unheard, slot))
        if for_ms < math.inf:
            sim.after(for_ms, partial(self._heal, slot))

    def _leave_unheard(self, slot: SimSlot) -> None:
        """As its control thread does when it has not heard the driver for too long."""
        if slot.life is not Life.ALIVE or not slot.cut_down:
            return
        if slot.frozen:
            self._sim.after(1.0, partial(self._leave_unheard, slot))
        elif slot.hanging or slot.restoring:
            self._sim.crash(slot, "it does not leave, since it hangs")
        else:
            self._sim.trace(f"{slot} has not heard the driver for too long")
            self._sim.leave(slot)

    def _heal(self, slot: SimSlot) -> None:
        slot.cut_up = slot.cut_down = False
        self._sim.went_on_at = self._sim.steps
        slot.receive_or_wait()

    def _damage(self) -> None:
        """Of a file of a checkpoint, and somebody has to read it: a worker, or a new driver."""
        if not self.storage.damage():
            return
        for _ in range(self._rng.choice((0, 0, 1, 2))):
            self.storage.damage()
        if self._rng.random() >= 0.3:
            self._crash()
        elif self._sim.restarts is not None:
            self._sim.restarts.crash()
        elif self._sim.led is not None:
            self._sim.led.kill()
        else:
            self._sim.crash_driver(self._rng.random() < 0.5)

    def _jump(self) -> None:
        """The wall clocks are set. A process goes by the time at its start; those that start later see it."""
        longest = 20_000_000.0 if self._sim.scenario.harsher else 2_000_000.0
        self._sim.set_wall_clocks(self._rng.choice((-1, 1)) * any_ms(self._rng, 1.0, longest))

    def cancel(self) -> None:
        self.cancelled = True
        self._sim.later("the user cancels", self._sim.cancel)

    def request_savepoint(self) -> None:
        """Beside those that are planned."""
        self._request(_BESIDE + len(self._savepoint_requests), savepoint=True)

    def _request(self, number: int, savepoint: bool | None = None) -> None:
        sim = self._sim
        if savepoint is None:
            savepoint = self._rng.random() < 0.6
        target = ""
        if savepoint:
            self._savepoint_requests.add(number)
            in_folder = sim.restarts is not None or sim.led is not None or self._rng.random() < 0.5
            target = sim.savepoints_taken.new_target() if in_folder and sim.savepoints_taken.possible else ""
        sim.requests[number] = 0
        sim.trace(f"the user asks for a {'savepoint' if savepoint else 'checkpoint'}")
        sim.on_event(lambda now: sim.master.on_checkpoint_request(number, savepoint, now, target))

    def request_done(self, number: int, checkpoint_id: int) -> None:
        if number in self._savepoint_requests:
            self._sim.savepoints.add(checkpoint_id)

    # ------------------------------------------------------------ frames of old attempts
    def on_new_gang(self, gang: list[SimSlot]) -> None:
        """Some of what is still under way in older attempts will reach the new one, as if an address was used again."""
        for old in self._sim.processes.values():
            if old.attempt == gang[0].attempt:
                continue
            for to, link in old.data.items():
                self._stale += [(to, frame) for frame in link.queue if frame is not LOST][:3]
        del self._stale[:-_MAX_STALE]
        if self._again and gang[0].attempt:
            self._again -= 1
            strike = self._rng.choice((self._crash, self._crash, self._break, self._freeze))
            self._planned.setdefault(self._sim.steps + self._rng.randint(1, 100), []).append(strike)

    def on_new_driver(self) -> None:
        """It has keys of its own: nothing of the old workers gets through."""
        self._stale.clear()
        self.messages.on_new_driver()

    def on_undeliverable(self, to: SlotIndex, frame: Frame) -> None:
        if len(self._stale) < _MAX_STALE and self._sim.scenario.faulty:
            self._stale.append((to, frame))

    def _deliver_stale(self) -> None:
        sim = self._sim
        to, frame = self._stale[int(self._rng.random() * len(self._stale))]
        current = sim.gangs.get(sim.master.attempt)
        if current is None:
            return
        target = current[to]
        if frame.attempt < target.attempt and target.working and not target.frozen:
            self._stale.remove((to, frame))
            self.stale_delivered += 1
            sim.struck["a frame of an old attempt arrives"] += 1
            sim.trace(f"a frame of attempt {frame.attempt} reaches {target}")
            target.on_frame(frame)

    # ------------------------------------------------------------ what may be declined
    def check_decline(self, message: DeclineCheckpoint) -> None:
        injected = "the test says so" in message.detail or "InjectedFault" in message.detail
        # A task that has ended has deleted its database: the write of an aborted checkpoint or savepoint then fails.
        coordinator = self._sim.coordinator
        over = coordinator is not None and message.checkpoint_id not in coordinator.in_progress
        late = over and any(text in message.detail for text in _TASK_HAS_ENDED)
        # Where an upstream task has declined, its barrier never comes, and that of the next checkpoint overtakes it.
        follows = message.reason is DeclineReason.SUPERSEDED and over
        verify.check(
            injected or late or follows, f"a task declined a checkpoint by itself: {message.reason}: {message.detail}"
        )
