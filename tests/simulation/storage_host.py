"""The threads of the JobManager that talk to its storage, without threads: the real queues, and work that is done when
the scheduler picks it. Some of it hangs, for a while or for ever."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import end_checks
from tests.simulation.durations import NEVER_MS, any_ms
from tidegate.storage.work_queues import Lane, Work, WorkQueues
from tidegate.storage.workers import Closed

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


class _Thread:
    """What one lane is at. In the simulation's pool while it has something to do and does not hang."""

    def __init__(self, lane: Lane, slowness: float) -> None:
        self.lane = lane
        self.slowness = slowness
        self.work: Work | None = None
        self.has_hung = False  # with this piece of work
        self.stuck = False  # for ever, or until after the end of the job


class SimStorageThreads:
    """Takes the place of `StorageThreads`."""

    stuck_share = 0.1  # of what hangs never comes back, or only after the end of the job
    most_stuck = 3  # threads of a lane: more are not left behind

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._queues = WorkQueues()
        self._threads = [_Thread(lane, sim.draw_slowness()) for lane in Lane]

    def write(self, what: str, do: Callable[[], object], folder: str) -> bool:
        return self._add(Lane.WRITES, Work(what, do, frozenset([folder])))

    def write_savepoint(self, what: str, do: Callable[[], object], folder: str) -> bool:
        return self._add(Lane.SAVEPOINTS, Work(what, do, frozenset([folder])))

    def delete(self, what: str, do: Callable[[], object], folders: Collection[str] | None) -> bool:
        return self._add(Lane.DELETIONS, Work(what, do, None if folders is None else frozenset(folders)))

    def delete_pieces(
        self, pieces: Sequence[tuple[str, Callable[[], object]]], folders: Collection[str] | None
    ) -> bool:
        return all(self.delete(what, do, folders) for what, do in pieces)

    def look(self, what: str, do: Callable[[], object]) -> bool:
        return self._add(Lane.LOOKS, Work(what, do))

    def watch(self, stuck: _Thread) -> None:
        """As the driver does every few seconds: a thread that has not come back for long is left behind at what it
        does, and another takes its place. Deletions, whose order matters, have no other."""
        if stuck.work is not None and stuck.lane is not Lane.DELETIONS and stuck in self._threads:
            self._sim.trace(f"{stuck.work.what} is left behind")
            self._threads.append(_Thread(stuck.lane, self._sim.draw_slowness()))
            self._begin()

    def close(self, last: Callable[[], object], patience_s: float) -> Closed:
        raise AssertionError("the simulator calls finish")

    def _add(self, lane: Lane, work: Work) -> bool:
        self._queues.add(lane, work)
        self._begin()
        return True

    def _begin(self) -> None:
        """Every thread that has nothing to do takes what it may."""
        for thread in self._threads:
            if thread.work is None and not thread.stuck:
                thread.work = self._queues.take(thread.lane)
                thread.has_hung = False
                if thread.work is not None:
                    self._sim.helper_pool.add(thread)

    def step(self, thread: _Thread) -> None:
        sim, work = self._sim, thread.work
        assert work is not None
        if not thread.has_hung and sim.hangs():
            sim.trace(f"{work.what} hangs")
            thread.has_hung = True
            sim.helper_pool.discard(thread)
            if self._may_stick(thread.lane) and sim.rng.random() < self.stuck_share:
                self._stick(thread)
                return
            sim.struck["a storage thread of the driver hangs"] += 1
            sim.after(any_ms(sim.rng), lambda: sim.helper_pool.add(thread) if thread.work is work else None)
            return
        if sim.led is not None and sim.led.at_work():
            return
        sim.trace(work.what)
        sim.helper_pool.discard(thread)
        work.do()
        thread.work = None
        self._queues.ended(thread.lane, work)
        if thread.lane is Lane.DELETIONS:
            end_checks.check_retained(sim)
        self._begin()

    def _may_stick(self, lane: Lane) -> bool:
        """Of the lanes but that of metadata only where the faults are harsher."""
        if not self._sim.scenario.harsher:
            return lane is Lane.WRITES
        return sum(thread.stuck for thread in self._threads if thread.lane is lane) < self.most_stuck

    def _stick(self, thread: _Thread) -> None:
        """What is written into is under way until its timeout; where there is none no other checkpoint begins, and the
        user gives the job up (always, where the faults are not harsher: no other thread takes the place of the one
        that is stuck). Deletions that never return keep nobody."""
        sim, thread.stuck = self._sim, True
        sim.struck[f"one of the storage threads for {thread.lane.value} never returns"] += 1
        if not sim.scenario.harsher:
            sim.after(any_ms(sim.rng, 1.0, 3000.0), sim.faults.cancel)
        elif thread.lane is not Lane.DELETIONS:
            sim.after(any_ms(sim.rng, 1.0, 3000.0), partial(self.watch, thread))
            if sim.coordinator is None or sim.coordinator.settings.timeout_ms >= NEVER_MS:
                sim.after(any_ms(sim.rng, 1.0, 3000.0), sim.faults.cancel)

    def finish(self) -> None:
        """At the end of the job: what was asked for is done, but for what is stuck and what waits for it. A stuck write
        may come to its end when nobody looks any more."""
        while busy := [thread for thread in self._threads if thread.work is not None and not thread.stuck]:
            for thread in busy:
                thread.has_hung = True
                self.step(thread)
        for thread in self._threads:
            if not thread.stuck or thread.work is None or thread.lane is Lane.SAVEPOINTS:
                continue
            if self._sim.rng.random() < 0.7:
                self._sim.trace(f"late: {thread.work.what}")
                thread.work.do()
                thread.work = None
                end_checks.check_retained(self._sim)

    def under_way(self) -> list[Work]:
        return [thread.work for thread in self._threads if thread.work is not None]

    @property
    def stuck(self) -> bool:
        return any(thread.stuck for thread in self._threads)
