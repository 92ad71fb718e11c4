"""The simulation of one job: one seed, one thread, one schedule."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import random
import re
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from tests.simulation import end_checks, outside_world, verify
from tests.simulation.durations import MANY, any_ms
from tests.simulation.fake_storage import FakeStorage
from tests.simulation.faults import FaultPlan
from tests.simulation.local_databases import LocalDatabases
from tests.simulation.outside_world import BrokenPromise, OutsideWorld, SimulatedCrash
from tests.simulation.pools import Event, Life, Link, Pool
from tests.simulation.random_job import RandomJob
from tests.simulation.restart_oracle import CheckedStrategy
from tests.simulation.restarts import Restarts
from tests.simulation.scenario import RESCALED, Scenario, Variation
from tests.simulation.sim_clock import EPSILON_MS, ProcessClock, SimClock
from tests.simulation.sim_slot import LOST, AsyncWork, SimSlot, check_credits
from tests.simulation.storage_host import SimStorageThreads
from tidegate.common.errors import SnapshotDamagedError
from tidegate.common.ids import AttemptNumber, CheckpointId, SlotIndex
from tidegate.common.job_status import JobStatus
from tidegate.common.restart_strategy import FixedDelayRestartStrategyConfiguration
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.job import BarrierCheckpoints
from tidegate.fault_tolerance.job_side import JobFaultTolerance
from tidegate.fault_tolerance.none.job import NoFaultTolerance
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.jobmanager.carrier import InstructionCarrier
from tidegate.jobmanager.discovery_work import DiscoveryWork
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.preparation import other_checkpoints
from tidegate.jobmanager.storage_work import StorageWork
from tidegate.network.wire import Frame
from tidegate.protocol.codec import ProtocolError, decode_from_slot, encode
from tidegate.protocol.instructions import (
    CancelGang,
    CheckpointRequestDone,
    DeleteClaimed,
    DeleteOrphans,
    DeleteSavepoint,
    DeleteState,
    DeliverResults,
    DiscoverSplits,
    Instruction,
    JobEnded,
    Log,
    RecordSnapshot,
    Send,
    StateReadDone,
    StatusChanged,
    SubmitGang,
    WriteMetadata,
)
from tidegate.protocol.messages import (
    DeclineCheckpoint,
    Deploy,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    SlotHeartbeat,
)
from tidegate.state.factory import ROCKSDB
from tidegate.taskmanager.deployment import SlotPlan

MAX_STEPS = 60_000
"""A job that has not ended by then hangs, unless so little time has passed that a helper may still be held up."""
LONGEST_HANG_MS = 3_000.0
MAX_SIMULATED_MS = 1_800_000.0
"""Far more than all planned delays together, and less than `NEVER_MS`: later, something was stuck."""
_LONGEST_PAUSE_MS = 10_000.0  # of commits that are tried again, and of the wait for metadata at the end of a job
_RANDOM_NAME = re.compile(r"-[0-9a-f]{12}(?=\.state)")  # in the names of state files: differs from run to run


class Simulation(InstructionCarrier):
    """`run` returns when the job has ended and everything was checked, or raises BrokenPromise (or InternalError)."""

    def __init__(self, scenario: Scenario, trace: bool = False) -> None:
        self.scenario = scenario
        self.rng: random.Random = scenario.rng
        self.clock = SimClock()
        self.world = OutsideWorld(self.rng, self.clock)
        self.world.checkpointing = scenario.runtime.checkpointing
        self.world.exactly_once = scenario.runtime.exactly_once
        self.job: RandomJob = scenario.job
        self.graph = scenario.job.graph  # as it runs
        self.runtime = scenario.runtime
        self.job_settings = scenario.job_settings
        self.lines: list[str] | None = [] if trace else None
        # Everything that may happen next, by kind.
        self.frames, self.control, self.ready = Pool(), Pool(), Pool()
        self.async_work, self.helper_pool, self.events = Pool(), Pool(), Pool()
        self._kinds: list[tuple[Pool, float, Callable[[Any], None]]] = [
            (self.frames, scenario.weights.frames, self._pick_link),
            (self.control, scenario.weights.control, self._pick_link),
            (self.ready, scenario.weights.steps, self._pick_slot),
            (self.async_work, scenario.weights.async_work, self._pick_async),
            (self.helper_pool, scenario.weights.helper, self._pick_storage),
            (self.events, scenario.weights.events, self._pick_event),
        ]
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.storage = scenario.storage
        self.worker_storage = None if self.storage is None else self.storage.worker_storage()
        self.databases: LocalDatabases | None = None  # made when the first one is needed
        self.gangs: dict[AttemptNumber, list[SimSlot]] = {}
        self.processes: dict[str, SimSlot] = {}
        self.struck = self.world.struck
        self.ended: JobEnded | None = None
        self.cancelled_at: float | None = None
        self.steps = 0
        self.in_worker = False  # what happens now happens in a worker process
        self._calm_after = scenario.calm_after
        self._wall_ms = 0.0  # how far wrong the wall clocks are
        self.aborted: set[int] = set()
        self.attempt_of: dict[int, tuple[int, int]] = {}  # checkpoint with metadata -> (run of the driver, attempt)
        self._tried: dict[int, tuple[int, int]] = {}  # the same, when it may or may not have been written
        self.requests: dict[int, int] = {}  # request -> answers
        self.savepoints: set[int] = set()
        self.savepoint_attempts: dict[str, tuple[int, int]] = {}  # savepoint with metadata -> as in attempt_of
        self.collected: dict[str, list[tuple[int, Any]]] = {}
        self.restored: set[AttemptNumber] = set()  # attempts that started from a checkpoint
        self.with_channel_state = 0  # checkpoints whose metadata was written and holds in-flight records
        self.doubled = 0
        self._started_ms = self._seen_ms = self.clock.now_ms()
        self.run_number = 0  # of the driver
        self.led = scenario.variation is Variation.LED
        self.record = 0  # led: the newest checkpoint in the job's record; 0: none
        self.recording: deque[RecordSnapshot] = deque()  # one after the other
        self.inherited: set[CheckpointId] = set()  # completed checkpoints that an earlier driver left behind
        self.coordinator: CheckpointCoordinator | None = None
        self.restarts = Restarts(self) if scenario.variation in RESCALED else None
        self.master = self._new_master(None)
        self.faults = FaultPlan(self, scenario)

    def _new_master(self, initial: RestorePoint | None) -> JobMaster:
        scenario, storage, graph = self.scenario, self.storage, self.graph
        self.coordinator = None
        model: JobFaultTolerance = NoFaultTolerance(initial)
        if scenario.checkpoints is not None and storage is not None:
            highest = storage.highest_checkpoint()
            epoch = self.run_number + 1 if self.led else 0
            others = other_checkpoints(storage, initial)
            self.coordinator = CheckpointCoordinator(
                graph, scenario.checkpoints, storage.root, initial, highest, others=others, epoch=epoch
            )
            model = BarrierCheckpoints(self.coordinator, initial)
        runtime = dataclasses.replace(self.runtime, trace=self.lines is not None)
        if runtime.state_backend == ROCKSDB:
            self.databases = self.databases or LocalDatabases()
            runtime = dataclasses.replace(runtime, rocksdb=self.databases.settings)
        plan = pickle.dumps(SlotPlan(graph, runtime, None, "" if storage is None else storage.root))
        self.driver_clock = self.new_clock()
        self.discovery = DiscoveryWork(graph)
        self.strategy = CheckedStrategy(self.scenario.restart, self.rng)
        if storage is not None:
            self.storage_threads = SimStorageThreads(self)
            self.storage_work = StorageWork(storage, self.storage_threads)  # type: ignore[arg-type]
        return JobMaster(graph, self.job_settings, self.strategy, model, lambda attempt: plan)

    @property
    def calm(self) -> bool:
        """Nothing goes wrong any more."""
        return self.steps > self._calm_after

    def hangs(self) -> bool:
        return not self.calm and self.rng.random() < self.scenario.hang_rate

    def now_ms(self) -> float:
        """By the driver's clock."""
        return self.driver_clock.now_ms()

    def new_clock(self) -> ProcessClock:
        """Of a process that starts now."""
        if not self.scenario.clock_skew:
            return ProcessClock(self.clock, 0.0)
        skew = self.rng.choice((-1, 0, 1)) * any_ms(self.rng, 0.1, 1_000_000.0)
        return ProcessClock(self.clock, self._wall_ms + skew)

    def set_wall_clocks(self, by_ms: float) -> None:
        self.trace(f"the wall clocks jump by {by_ms:.0f} ms")
        self.struck["the wall clocks jump"] += 1
        self._wall_ms = max(-6_000_000.0, self._wall_ms + by_ms)

    def undisturbed(self) -> contextlib.AbstractContextManager[None]:
        """The storage works: for looks from outside."""
        files = getattr(self.storage, "fake_files", None)
        return contextlib.nullcontext() if files is None else files.undisturbed()

    # ------------------------------------------------------------ running
    def run(self) -> Simulation:
        outside_world.enter(self.world)
        try:
            self.carry_out(self.master.start(self.now_ms()))
            while self.ended is None or self._goes_on():
                self.steps += 1
                if self.steps > MAX_STEPS * (1 if self.clock.now_ms() - self._started_ms > LONGEST_HANG_MS else 4):
                    raise BrokenPromise(f"the job hangs: {self.describe()}")
                if self.clock.now_ms() - self._started_ms > MAX_SIMULATED_MS:
                    raise BrokenPromise(f"something waits for a timeout: {self.describe()}")
                self.faults.strike()
                self._one_step()
                if self.world.broken is not None:
                    raise BrokenPromise(self.world.broken)
                if self.scenario.check_every and self.steps % self.scenario.check_every == 0:
                    self.check_invariants()
            self.doubled = end_checks.check_end(self)
        finally:
            outside_world.enter(None)
            if self.databases is not None:
                self.databases.remove()
        return self

    def _goes_on(self) -> bool:
        """The job has ended; False when that is the end of it."""
        if self.storage is not None:
            self.storage_threads.finish()
        return self._starts_again() if self.restarts is None else self.restarts.resume_if_stopped()

    def _starts_again(self) -> bool:
        """The job has failed or was cancelled, and has left a checkpoint: the user goes on from there, or does not."""
        assert self.ended is not None
        if self.ended.status is JobStatus.FINISHED or self.storage is None or self.rng.random() < 0.3:
            return False
        if self.led:  # the record says so: no driver starts it again
            return False
        if not end_checks.retained_files(self) or (latest := self.latest_checkpoint(self.rng.random() < 0.5)) is None:
            return False
        end_checks.check_legal(self)
        end_checks.check_run(self)
        self.trace(f"the user finds the job {self.ended.status.name}")
        self.lose_everything()
        self.ended = None
        self.cancelled_at = None
        self.scenario.restart = FixedDelayRestartStrategyConfiguration(MANY, 0)
        self.start_again(latest)
        return True

    def _one_step(self) -> None:
        rng = self.rng
        calm = self.world.calm = self.calm
        possible = [kind for kind in self._kinds if kind[0].items]
        if not possible:
            self._advance_to_deadline()
            return
        total = 0.0 if calm else self.scenario.weights.clock
        for _, weight, _ in possible:
            total += weight
        draw = rng.random() * total
        for pool, weight, act in possible:
            draw -= weight
            if draw < 0:
                item = pool.pick(rng)
                if not calm and item.slowness and rng.random() < item.slowness:
                    return
                act(item)
                break
        else:
            self.clock.advance(rng.expovariate(1.0) * self.scenario.tick_ms)
        if self.clock.now_ms() != self._seen_ms:
            self._time_passed()

    def _pick_link(self, link: Link) -> None:
        if self.lines is not None:
            self.trace(f"deliver on {link.name}")
        link.pop_and_deliver()

    def _pick_storage(self, thread: Any) -> None:
        self.storage_threads.step(thread)

    def _pick_slot(self, slot: SimSlot) -> None:
        if self.lines is not None:
            self.trace(f"step {slot}")
        slot.step()

    def _pick_event(self, event: Event) -> None:
        self.events.discard(event)
        self.trace(event.what)
        event.happen()

    def _pick_async(self, work: AsyncWork) -> None:
        slot = work.slot
        if work.outcome is None:
            self.trace(f"helper of {slot} works")
            try:
                work.outcome = slot.inside(work.work), None
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

    # ------------------------------------------------------------ time
    def _advance_to_deadline(self) -> None:
        due = [slot.deadline for slot in self._live() if slot.deadline is not None and slot.working and not slot.frozen]
        due += [slot.next_heartbeat for slot in self._live() if not slot.frozen]
        due += [time for time, _ in self.timers]
        deadline = self.master.next_deadline()
        if deadline is not None:
            due.append(self.driver_clock.true_ms(deadline))
        if not due:
            raise BrokenPromise(f"deadlock, nothing will ever happen: {self.describe()}")
        self.clock.advance_to(min(due) + (EPSILON_MS if self.scenario.clock_skew else 0.0))
        self._time_passed()

    def _time_passed(self) -> None:
        now = self._seen_ms = self.clock.now_ms()
        for slot in self._live():
            if slot.frozen or (slot.next_heartbeat > now and (slot.deadline is None or slot.deadline > now)):
                continue
            if slot.deadline is not None and slot.deadline <= now:
                slot.wake()
            if slot.life is Life.ALIVE and slot.next_heartbeat <= now:
                slot.next_heartbeat = now + self.job_settings.heartbeat_interval_ms
                slot.send_to_master(SlotHeartbeat(attempt=slot.attempt, slot=slot.slot))
        if self.timers:
            fired = [timer for timer in self.timers if timer[0] <= now]
            self.timers = [timer for timer in self.timers if timer[0] > now]
            for _, fire in fired:
                fire()
        self._tick_if_due()

    def _tick_if_due(self) -> None:
        while self.ended is None:
            deadline = self.master.next_deadline()
            if deadline is None or deadline > self.now_ms():
                return
            self.carry_out(self.master.on_tick(self.now_ms()))

    def _live(self) -> list[SimSlot]:
        return [s for s in self.processes.values() if s.life is Life.ALIVE]

    # ------------------------------------------------------------ the JobManager's host
    def master_receive(self, incarnation: str, payload: bytes) -> None:
        if self.ended is not None:
            return
        try:
            message = decode_from_slot(payload)
        except ProtocolError as error:
            problem = str(error)
            self._master_event(lambda now: self.master.on_unreadable(incarnation, problem, False, now))
            return
        if self.lines is not None and not isinstance(message, SlotHeartbeat):
            self.trace(f"JM <- {type(message).__name__} of attempt {message.attempt}")
        if isinstance(message, DeclineCheckpoint):
            self.faults.check_decline(message)
        self.carry_out(self.master.on_message(message, self.now_ms()))
        self._tick_if_due()

    def send(self, instruction: Send) -> None:
        self._observe(instruction.message)
        process = self.processes.get(instruction.incarnation)
        if process is not None and process.life is Life.ALIVE:
            process.down.push(encode(instruction.message))

    def submit_gang(self, instruction: SubmitGang) -> None:
        self._submit(instruction.attempt, instruction.num_slots)

    def cancel_gang(self, instruction: CancelGang) -> None:
        attempt = instruction.attempt
        self.later(f"Spark cancels attempt {attempt}", partial(self._kill, self.gangs[attempt]))

    def write_metadata(self, instruction: WriteMetadata) -> None:
        metadata, attempt, target = instruction.metadata, instruction.attempt, instruction.target
        n, by = metadata.checkpoint_id, (self.run_number, int(attempt))
        self._tried[n] = by

        def done(error: str | None) -> None:
            self.trace(f"metadata of checkpoint {n}: {error or 'written'}")
            if error is None:
                self.with_channel_state += bool(metadata.channels)
                if target:
                    self.savepoint_attempts[target] = by
                else:
                    self.attempt_of[n] = by
            if self.ended is None:
                answer = lambda now: self.master.on_metadata_written(attempt, n, error, now)  # noqa: E731
                self.later(f"JM learns of the metadata of checkpoint {n}", lambda: self._master_event(answer))

        self.storage_work.write_metadata(instruction, done)

    def record_snapshot(self, instruction: RecordSnapshot) -> None:
        """The record is written when the scheduler picks it, and the answer comes later again: the driver may die
        before, in between and after."""
        self.recording.append(instruction)
        if len(self.recording) == 1:
            self.later(f"checkpoint {instruction.checkpoint_id} is recorded", self._write_record)

    def _write_record(self) -> None:
        instruction = self.recording[0]
        n, savepoint = instruction.checkpoint_id, instruction.savepoint
        recorded = savepoint or n > self.record
        if recorded and not savepoint:
            self.record = n
            self.world.completed[n] = self.run_number, instruction.attempt  # whether or not anybody lives to hear of it

        def answer() -> None:
            self.recording.popleft()
            if self.recording:
                following = self.recording[0].checkpoint_id
                self.later(f"checkpoint {following} is recorded", self._write_record)
            self._master_event(lambda now: self.master.on_recorded(n, recorded, now))

        self.later(f"JM learns that {n} is recorded", answer)

    def delete_savepoint(self, instruction: DeleteSavepoint) -> None:
        self.storage_work.delete_savepoint(instruction)

    def delete_state(self, instruction: DeleteState) -> None:
        self.storage_work.delete_state(instruction)

    def delete_orphans(self, instruction: DeleteOrphans) -> None:
        self.storage_work.delete_orphans()

    def delete_claimed(self, instruction: DeleteClaimed) -> None:
        raise BrokenPromise(f"a checkpoint of another job was claimed, but there is none: {instruction}")

    def request_done(self, instruction: CheckpointRequestDone) -> None:
        request_id, checkpoint_id = instruction.request_id, instruction.checkpoint_id
        self.requests[request_id] += 1
        if instruction.error is not None or checkpoint_id is None:
            return
        if instruction.target and self.restarts is not None:
            self.restarts.on_saved(request_id, checkpoint_id, instruction.target)
        else:
            self.faults.request_done(request_id, checkpoint_id)

    def discover_splits(self, instruction: DiscoverSplits) -> None:
        """At one moment the enumerator looks, at a later one the JobMaster hears of it."""
        attempt, operator_id, driver = instruction.attempt, instruction.operator_id, self.run_number

        def look() -> None:
            found = self.discovery.look(instruction)
            answer = lambda now: self.master.on_splits_discovered(attempt, operator_id, found, now)  # noqa: E731
            self.later(f"JM learns of splits of {operator_id}", lambda: self._master_event(answer))

        self.later(f"the enumerator of {operator_id} looks, driver {driver}", look)

    def state_read_done(self, instruction: StateReadDone) -> None:
        """Nobody looks at state here."""

    def status_changed(self, instruction: StatusChanged) -> None:
        self.trace(f"job is {instruction.status.name}")

    def job_ended(self, instruction: JobEnded) -> None:
        self.ended = instruction
        self.struck["the restart strategy gives up"] += self.strategy.gave_up
        if self.cancelled_at is not None:
            took = self.clock.now_ms() - self.cancelled_at
            most = 2 * self.job_settings.leave_grace_ms + _LONGEST_PAUSE_MS
            verify.check(took <= most, f"a cancelled job went on for {took:.0f} ms")

    def log(self, instruction: Log) -> None:
        self.trace(f"JM: {instruction.text}")
        fell_back = "falling back" in instruction.text
        verify.check(not fell_back or self.faults.damaged, f"nothing is damaged, but {instruction.text}")

    def _observe(self, message: Any) -> None:
        if isinstance(message, NotifyCheckpointComplete):
            n = message.checkpoint_id
            verify.check(n not in self.aborted, f"checkpoint {n} is complete after it was aborted")
            self.world.completed[n] = self.run_number, message.attempt
        elif isinstance(message, NotifyCheckpointAborted):
            n = message.checkpoint_id
            verify.check(n not in self.world.completed, f"checkpoint {n} is aborted after it was complete")
            self.aborted.add(n)
        elif isinstance(message, Deploy) and message.restore:
            self.restored.add(message.attempt)

    def _master_event(self, event: Callable[[float], list[Instruction]]) -> None:
        if self.ended is None:
            self.carry_out(event(self.now_ms()))
            self._tick_if_due()

    def deliver_results(self, chunk: DeliverResults) -> None:
        name = next(
            node.name.removeprefix("Sink: ")
            for vertex in self.graph.vertices
            for node in vertex.operators
            if node.operator_id == chunk.operator_id
        )
        rows = self.collected.setdefault(name, [])
        rows.extend((chunk.subtask, row) for row in pickle.loads(chunk.payload))
        taken = lambda now: self.master.on_results_taken(chunk.operator_id, chunk.subtask, chunk.seq, now)  # noqa: E731
        self.later("the client takes results", lambda: self._master_event(taken))

    # ------------------------------------------------------------ Spark
    def _submit(self, attempt: AttemptNumber, slots: int) -> None:
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
        self.later(f"Spark notices that {slot} is gone", lambda: self._kill(gang))
        if self.rng.random() < 0.1:  # Spark runs a stage again when it has lost a task
            self.struck["Spark runs a task twice"] += 1
            rival = SimSlot(self, slot.attempt, slot.slot, "again")
            self.processes[rival.incarnation] = rival
            self.later(f"Spark starts {rival}", rival.start)
        self._gang_may_be_over(slot.attempt)

    def crash_driver(self, claim: bool) -> None:
        """The JobManager is gone, and the workers with it. The user starts the job again from the latest checkpoint."""
        self.trace("the driver is killed")
        self.struck["the driver is killed"] += 1
        self.lose_everything()
        self.start_again(self.latest_checkpoint(claim))

    def lose_everything(self) -> None:
        """Nothing of this run of the driver will be heard of again, but for some of its workers' last writes."""
        for slot in self.processes.values():
            slot.life = Life.DEAD
        for work in list(self.async_work):
            if work.outcome is not None or self.rng.random() < 0.7:
                self.async_work.discard(work)
        for pool in (self.frames, self.control, self.ready, self.helper_pool, self.events):
            pool.clear()
        self.timers.clear()
        self.recording.clear()
        self.processes, self.gangs = {}, {}
        self.requests.clear()
        if isinstance(self.storage, FakeStorage):
            self.storage.forget()

    def latest_checkpoint(self, claim: bool, ignored: Collection[int] = ()) -> RestorePoint | None:
        assert self.storage is not None
        if self.led:
            return self._recorded_checkpoint()
        with self.undisturbed():
            for n in reversed([n for n in self.storage.completed_checkpoints() if n not in ignored]):
                try:
                    metadata = self.storage.read_metadata(n)
                except SnapshotDamagedError:
                    verify.check(self.faults.damaged, f"checkpoint {n} is damaged")
                    continue
                if not metadata.savepoint:
                    end_checks.check_whole(self, metadata)
                    return RestorePoint(metadata, self.storage.root, owned=claim)
        return None

    def _recorded_checkpoint(self) -> RestorePoint | None:
        """What a driver that takes over starts from, whatever else lies in the storage."""
        if not self.record:
            return None
        with self.undisturbed():
            metadata = self.storage.read_metadata(CheckpointId(self.record))
            end_checks.check_whole(self, metadata)
            return RestorePoint(metadata, self.storage.root, owned=True)

    def start_again(self, initial: RestorePoint | None) -> None:
        """A new driver, after `lose_everything`."""
        with self.undisturbed():
            self._start_again(initial)

    def _start_again(self, initial: RestorePoint | None) -> None:
        self.inherited = set(self.storage.completed_checkpoints())
        latest = initial.checkpoint_id if initial is not None else 0
        if latest in self._tried:
            self.attempt_of.setdefault(latest, self._tried[latest])
        self.world.begin_run({n: a for n, a in self.attempt_of.items() if n <= latest})
        self.world.state.clear()  # of subtasks that may be no more
        self.world.counted.clear()
        self.aborted.clear()
        self.run_number = self.world.run_number
        self.faults.on_new_driver()
        self.trace(f"the user starts the job again from checkpoint {latest}")
        self.master = self._new_master(initial)
        self.carry_out(self.master.start(self.now_ms()))

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

    def _kill(self, gang: list[SimSlot]) -> None:
        for slot in gang:
            self.crash(slot, "by Spark")

    def _gang_may_be_over(self, attempt: AttemptNumber) -> None:
        gang = self.gangs[attempt]
        if all(slot.life in (Life.DEAD, Life.LEFT) for slot in gang):
            error = "a worker was lost" if any(slot.life is Life.DEAD for slot in gang) else None
            exit_ = lambda now: self.master.on_gang_exit(attempt, error, now)  # noqa: E731
            self.later(f"Spark reports the end of attempt {attempt}: {error}", lambda: self._master_event(exit_))

    # ------------------------------------------------------------ network and helpers
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

    def add_async(self, work: AsyncWork) -> None:
        work.slowness = self.scenario.async_slowness if self.rng.random() < 0.5 else 0.0
        if not self.hangs():
            self.async_work.add(work)
            return
        self.trace(f"work of {work.slot} hangs")
        self.struck["a helper of a worker hangs"] += 1
        self.after(any_ms(self.rng), lambda: self._goes_on_working(work))

    def _goes_on_working(self, work: AsyncWork) -> None:
        if work.slot.frozen:
            self.after(1.0, lambda: self._goes_on_working(work))
        else:
            self.async_work.add(work)

    def later(self, what: str, happen: Callable[[], None]) -> None:
        self.events.add(Event(what, happen))

    def cancel(self) -> None:
        if self.ended is None and self.cancelled_at is None:
            self.cancelled_at = self.clock.now_ms()
            self.struck["the user cancels"] += 1
        self._master_event(self.master.on_cancel)

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
                slot.receive_or_wait()
                for work in held:
                    self.async_work.add(work)
                slot.wake()

        self.after(for_ms, thaw)

    def after(self, ms: float, do: Callable[[], None]) -> None:
        self.timers.append((self.clock.now_ms() + ms, do))

    def draw_slowness(self) -> float:
        return self.scenario.link_slowness if self.rng.random() < 0.3 else 0.0

    def trace(self, text: str) -> None:
        if self.lines is not None:
            text = _RANDOM_NAME.sub("", text)
            self.lines.append(f"{self.steps:>5} {self.clock.now_ms() - self._started_ms:9.2f} ms  {text}")

    # ------------------------------------------------------------ checks
    def check_invariants(self) -> None:
        self.master.check_invariants()
        for slot in self._live():
            if slot.runtime is not None and not slot.failed:
                slot.runtime.check_invariants()
        for gang in self.gangs.values():
            if all(slot.working for slot in gang):
                check_credits(gang)

    def describe(self) -> str:
        slots = [f"{s}: {s.life.value}{' failed' if s.failed else ''}" for s in self.processes.values()][-6:]
        pending = self.coordinator.in_progress if self.coordinator is not None else ()
        tasks = [
            f"{s} {t.name} {t.state.value} {[(len(c.queue), c.blocked) for c in t.inputs]}"
            for s in self._live()
            if s.runtime is not None
            for t in s.runtime.tasks
        ]
        return f"{self.master.status.name}, attempt {self.master.attempt}, {slots}, checkpoints {pending}, {tasks}"
