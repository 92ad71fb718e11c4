"""The worker processes of a simulation: Spark, which starts and kills them, and the network between them."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

from tests.simulation.durations import NEVER_MS, any_ms
from tests.simulation.faults import FaultPlan
from tests.simulation.outside_world import BrokenPromise, SimulatedCrash, SimulatedHang
from tests.simulation.pools import Life, Link
from tests.simulation.scenario import Scenario
from tests.simulation.schedule import Schedule
from tests.simulation.sim_slot import LOST, AsyncWork, SimSlot
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.network.wire import Frame


class Workers(Schedule):
    stuck_share = 0.1  # of the writes of workers that hang
    faults: FaultPlan

    def __init__(self, scenario: Scenario, trace: bool) -> None:
        super().__init__(scenario, trace)
        self.gangs: dict[AttemptNumber, list[SimSlot]] = {}
        self.processes: dict[str, SimSlot] = {}
        self.in_worker = False  # what happens now happens in a worker process

    @abstractmethod
    def gang_is_over(self, attempt: AttemptNumber, error: str | None) -> None:
        """Spark tells the driver."""

    def live(self) -> list[SimSlot]:
        return [s for s in self.processes.values() if s.life is Life.ALIVE]

    def submit(self, attempt: AttemptNumber, slots: int) -> None:
        gang = [SimSlot(self, attempt, SlotIndex(i)) for i in range(slots)]
        self.gangs[attempt] = gang
        for slot in gang:
            self.processes[slot.incarnation] = slot
            self.later(f"Spark starts {slot}", slot.start)
        self.faults.on_new_gang(gang)

    def crash(self, slot: SimSlot, why: str) -> None:
        """The process is gone, with all that it has not handed to the network, and part of what it has."""
        if slot.life in (Life.DEAD, Life.LEFT):
            return
        self.trace(f"{slot} is killed ({why})")
        self.struck["a worker is killed"] += why != "by Spark"
        self._vanish(slot, Life.DEAD)
        slot.up.cut(self.rng.randint(0, len(slot.up.queue)))
        gang = self.gangs[slot.attempt]
        self.later(f"Spark notices that {slot} is gone", lambda: self.kill(gang))
        if self.rng.random() < 0.1:  # Spark runs a stage again when it has lost a task
            self.struck["Spark runs a task twice"] += 1
            rival = SimSlot(self, slot.attempt, slot.slot, "again")
            self.processes[rival.incarnation] = rival
            self.later(f"Spark starts {rival}", rival.start)
        self._gang_may_be_over(slot.attempt)

    def leave(self, slot: SimSlot) -> None:
        if slot.life is Life.ALIVE:
            if slot.runtime is not None:
                slot.runtime.close()
            self._vanish(slot, Life.LEFT)
            self._gang_may_be_over(slot.attempt)

    def _vanish(self, slot: SimSlot, life: Life) -> None:
        rng = self.rng
        slot.life = life
        slot.frozen = False
        self.ready.discard(slot)
        slot.down.cut(0)
        for link in slot.incoming:
            link.cut(0)
        for link in slot.data.values():
            link.cut(rng.randint(0, len(link.queue)))
        for work in [w for w in self.async_work if w.slot is slot]:
            # A helper thread of a process that leaves by itself may come to its end; one of a killed process may not.
            if work.outcome is not None or life is Life.DEAD or rng.random() < 0.5:
                self.async_work.discard(work)
        for peer in self.gangs[slot.attempt]:
            if peer.life is Life.ALIVE and rng.random() < 0.7:
                self.later(f"{peer} loses its connection to {slot}", peer.connection_lost)

    def kill(self, gang: list[SimSlot]) -> None:
        for slot in gang:
            self.crash(slot, "by Spark")

    def _gang_may_be_over(self, attempt: AttemptNumber) -> None:
        gang = self.gangs[attempt]
        if all(slot.life in (Life.DEAD, Life.LEFT) for slot in gang):
            error = "a worker was lost" if any(slot.life is Life.DEAD for slot in gang) else None
            self.later(
                f"Spark reports the end of attempt {attempt}: {error}", lambda: self.gang_is_over(attempt, error)
            )

    def network_send(self, sender: SimSlot, to: SlotIndex, frame: Frame) -> None:
        link = sender.data.get(to)
        if link is None:
            target = self.gangs[sender.attempt][to]
            link = Link(f"{sender}->{target}", self.frames, target.on_frame, self.draw_slowness())
            sender.data[to] = link
            target.incoming.append(link)
            if target.life in (Life.DEAD, Life.LEFT):
                link.dead = True
            target.receive_or_wait()
        if link.dead:
            self.faults.on_undeliverable(to, frame)
        link.push(frame)

    def break_link(self, link: Link) -> None:
        self.trace(f"the connection {link.name} breaks")
        self.struck["a connection breaks"] += 1
        link.queue.clear()
        link.push(LOST)
        link.dead = True

    def pick_link(self, link: Link) -> None:
        if self.lines is not None:
            self.trace(f"deliver on {link.name}")
        link.pop_and_deliver()

    def pick_slot(self, slot: SimSlot) -> None:
        if self.lines is not None:
            self.trace(f"step {slot}")
        slot.step()

    def pick_async(self, work: AsyncWork) -> None:
        slot = work.slot
        if work.outcome is None:
            self.trace(f"helper of {slot} works")
            try:
                work.outcome = slot.inside(work.work), None
            except SimulatedHang as hang:
                self.async_work.discard(work)
                if slot.life is Life.ALIVE:
                    slot.helper_hangs(str(hang))
                return
            except SimulatedCrash as crash:
                self.async_work.discard(work)
                if slot.life is Life.ALIVE:
                    self.crash(slot, str(crash))
                return
            except BrokenPromise:
                raise
            except Exception as error:
                work.outcome = None, error
            if slot.life is not Life.ALIVE:
                self.async_work.discard(work)
            return
        self.async_work.discard(work)
        if slot.life is Life.ALIVE:
            self.trace(f"helper of {slot} is done")
            result, failure = work.outcome
            slot.guard(lambda: work.done(result, failure))
            slot.wake()

    def add_async(self, work: AsyncWork, of_storage: bool) -> None:
        """`of_storage`: it writes part of a snapshot."""
        work.slowness = self.scenario.async_slowness if self.rng.random() < 0.5 else 0.0
        if not self.hangs():
            self.async_work.add(work)
            return
        if self.scenario.harsher and of_storage and self.rng.random() < self.stuck_share:
            self._never_returns(work)
            return
        self.trace(f"work of {work.slot} hangs")
        self.struck["a helper of a worker hangs"] += 1
        self.after(any_ms(self.rng), lambda: self._goes_on_working(work))

    def _never_returns(self, work: AsyncWork) -> None:
        """The checkpoint can only time out. Where it never does an operator ends the process."""
        self.trace(f"work of {work.slot} never returns")
        self.struck["a write of a worker never returns"] += 1
        if self.scenario.checkpoints is None or self.scenario.checkpoints.timeout_ms >= NEVER_MS:
            ends = partial(self.crash, work.slot, "what it writes never returns")
            self.after(any_ms(self.rng, 1.0, 3000.0), ends)

    def _goes_on_working(self, work: AsyncWork) -> None:
        if work.slot.frozen:
            self.after(1.0, lambda: self._goes_on_working(work))
        else:
            self.went_on_at = self.steps
            self.async_work.add(work)

    def freeze(self, slot: SimSlot, for_ms: float) -> None:
        """The process stops (as under SIGSTOP) and goes on later, unless it was killed meanwhile."""
        self.trace(f"{slot} freezes")
        self.struck["a worker freezes"] += 1
        slot.frozen = True
        self.ready.discard(slot)
        held = [w for w in self.async_work if w.slot is slot]
        for work in held:
            self.async_work.discard(work)
        slot.receive_or_wait()

        def thaw() -> None:
            if slot.frozen:
                self.trace(f"{slot} goes on")
                slot.frozen = False
                self.went_on_at = self.steps
                slot.receive_or_wait()
                for work in held:
                    self.async_work.add(work)
                slot.wake()

        self.after(for_ms, thaw)
