"""The simulation of one job: one seed, one thread, one schedule."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

from tests.simulation import end_checks, outside_world, verify
from tests.simulation.durations import MANY, any_ms
from tests.simulation.fake_storage import FakeStorage
from tests.simulation.fall_backs import FallBacks
from tests.simulation.faults import FaultPlan
from tests.simulation.led_drivers import LedDrivers
from tests.simulation.local_databases import LocalDatabases
from tests.simulation.outside_world import BrokenPromise
from tests.simulation.pools import Event, Life, Pool
from tests.simulation.random_job import RandomJob
from tests.simulation.restart_oracle import CheckedStrategy
from tests.simulation.restarts import Restarts
from tests.simulation.scenario import RESCALED, Scenario, Variation
from tests.simulation.sim_clock import EPSILON_MS
from tests.simulation.sim_slot import AsyncWork, check_credits
from tests.simulation.storage_host import SimStorageThreads
from tests.simulation.user_savepoints import UserSavepoints
from tests.simulation.workers import Workers
from tidegate.common.errors import SnapshotDamagedError, StorageUnavailableError
from tidegate.common.ids import AttemptNumber, CheckpointId
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
from tidegate.storage.handles import CHAIN, CheckpointMetadata
from tidegate.storage.job_directory import METADATA_NAME, metadata_file
from tidegate.storage.metadata import read_metadata_file
from tidegate.taskmanager.deployment import SlotPlan

T = TypeVar("T")

_MAX_STARTS = 20  # that the user tries in vain

MAX_STEPS = 60_000
"""A job that has not ended by then, counted from when the last worker or helper went on that had stood still, hangs;
unless so little time has passed that a helper may still be held up. (While one stands still checkpoints are tried and
given up, hundreds of them, and what was sent to it for each is waiting for it.)"""
LONGEST_HANG_MS = 3_000.0
MAX_SIMULATED_MS = 1_800_000.0
"""Far more than all planned delays together, and less than `NEVER_MS`: later, something was stuck."""
_LONGEST_PAUSE_MS = 10_000.0  # of commits that are tried again, and of the wait for metadata at the end of a job


class Simulation(Workers, InstructionCarrier):
    """`run` returns when the job has ended and everything was checked, or raises BrokenPromise (or InternalError)."""

    late_share = 0.3  # of the writes of workers whose driver was killed that come to their end nevertheless

    def __init__(self, scenario: Scenario, trace: bool = False) -> None:
        super().__init__(scenario, trace)
        self.world.checkpointing = scenario.runtime.checkpointing
        self.world.exactly_once = scenario.runtime.exactly_once
        self.job: RandomJob = scenario.job
        self.graph = scenario.job.graph  # as it runs
        self.runtime = scenario.runtime
        self.job_settings = scenario.job_settings
        self._kinds: list[tuple[Pool, float, Callable[[Any], None]]] = [
            (self.frames, scenario.weights.frames, self.pick_link),
            (self.control, scenario.weights.control, self.pick_link),
            (self.ready, scenario.weights.steps, self.pick_slot),
            (self.async_work, scenario.weights.async_work, self.pick_async),
            (self.helper_pool, scenario.weights.helper, self._pick_storage),
            (self.events, scenario.weights.events, self._pick_event),
        ]
        self.storage = scenario.storage
        self.worker_storage = None if self.storage is None else self.storage.worker_storage()
        self.databases: LocalDatabases | None = None  # made when the first one is needed
        self.ended: JobEnded | None = None
        self.cancelled_at: float | None = None
        self.aborted: set[int] = set()
        self.fall_backs = FallBacks(self)
        self.attempt_of: dict[int, tuple[int, int]] = {}  # checkpoint with metadata -> (run of the driver, attempt)
        self._tried: dict[int, tuple[int, int]] = {}  # the same, when it may or may not have been written
        self.requests: dict[int, int] = {}  # request -> answers
        self.cancelled_gangs: set[AttemptNumber] = set()  # by this driver
        self.savepoints: set[int] = set()
        self.savepoint_attempts: dict[str, tuple[int, int]] = {}  # savepoint with metadata, perhaps -> as in attempt_of
        self.collected: dict[str, list[tuple[int, Any]]] = {}
        self.restored: set[AttemptNumber] = set()  # attempts that started from a checkpoint
        self.with_channel_state = 0  # checkpoints whose metadata was written and holds in-flight records
        self.with_waiting = 0  # likewise, records that waited inside a chain
        self.doubled = 0
        self.base: RestorePoint | None = None  # the savepoint that this driver started from
        self._seen_ms = self._started_ms
        self.run_number = 0  # of the driver
        self.led = LedDrivers(self) if scenario.variation is Variation.LED else None
        self.inherited: set[CheckpointId] = set()  # completed checkpoints that an earlier driver left behind
        self.looked_into: dict[CheckpointId, tuple[bytes, CheckpointMetadata, set[str]]] = {}  # as read; its files
        self.coordinator: CheckpointCoordinator | None = None
        self.savepoints_taken = UserSavepoints(self)
        self.restarts = Restarts(self) if scenario.variation in RESCALED else None
        self.master = self._new_master(None)
        self.faults = FaultPlan(self, scenario)

    def _new_master(self, initial: RestorePoint | None) -> JobMaster:
        scenario, storage, graph = self.scenario, self.storage, self.graph
        self.coordinator = None
        older = [] if self.led is None else self.led.older()
        self.fall_backs.on_new_driver(initial, older)
        model: JobFaultTolerance = NoFaultTolerance(initial)
        if scenario.checkpoints is not None and storage is not None:
            self.look_again("what it starts from", lambda: self._metadata_at(initial))
            highest = self.look_again("the highest checkpoint", storage.highest_checkpoint)
            epoch = 0 if self.led is None else self.run_number + 1
            others = self.look_again("the other checkpoints", lambda: other_checkpoints(storage, initial))
            if self.led is not None:
                highest = max(highest, self.led.record)  # which may be damaged; new ones have to be higher
            self.coordinator = CheckpointCoordinator(
                graph,
                scenario.checkpoints,
                storage.root,
                initial,
                highest,
                older=older,
                others=others,
                epoch=epoch,
                stopped=self.led is not None and bool(self.led.stopped_at),
            )
            model = BarrierCheckpoints(self.coordinator, initial, older)
        runtime = dataclasses.replace(self.runtime, trace=self.lines is not None)
        if runtime.state_backend == ROCKSDB:
            self.databases = self.databases or LocalDatabases()
            runtime = dataclasses.replace(runtime, rocksdb=self.databases.settings)
        plan = pickle.dumps(SlotPlan(graph, runtime, None, "" if storage is None else storage.root))
        self.driver_clock = self.new_clock()
        self.discovery = DiscoveryWork(graph)
        self.strategy = CheckedStrategy(self.scenario.restart, self.rng)
        if isinstance(storage, FakeStorage):
            storage.on_orphans_left = self.fall_backs.on_orphans_left
        if storage is not None:
            self.storage_threads = SimStorageThreads(self)
            self.storage_work = StorageWork(storage, self.storage_threads)  # type: ignore[arg-type]
        return JobMaster(graph, self.job_settings, self.strategy, model, lambda attempt: plan)

    def _metadata_at(self, point: RestorePoint | None) -> CheckpointMetadata | None:
        if point is None or not isinstance(self.storage, FakeStorage):
            return None
        own = METADATA_NAME if point.metadata.self_contained else metadata_file(point.checkpoint_id)
        return read_metadata_file(self.storage.folder(point.root), own)

    def now_ms(self) -> float:
        """By the driver's clock."""
        return self.driver_clock.now_ms()

    def undisturbed(self) -> contextlib.AbstractContextManager[None]:
        """The storage works: for looks from outside."""
        files = getattr(self.storage, "fake_files", None)
        return contextlib.nullcontext() if files is None else files.undisturbed()

    def look_again(self, what: str, look: Callable[[], T]) -> T:
        """What a starting driver sees of the storage. When that is away the driver says so, and the user starts it
        again; never does it go by less than there is."""
        files = getattr(self.storage, "fake_files", None)
        if files is None:
            return look()
        with self.undisturbed():
            expected = look()
        for _ in range(_MAX_STARTS):
            try:
                with files.disturbed():
                    seen = look()
            except StorageUnavailableError as error:
                self.struck["a driver cannot start without the storage"] += 1
                self.trace(f"the driver does not start: {error}")
                self.clock.advance(any_ms(self.rng))
                continue
            verify.check(seen == expected, f"a starting driver takes {seen} for {what}, but there is {expected}")
            return seen
        return expected

    # ------------------------------------------------------------ running
    def run(self) -> Simulation:
        outside_world.enter(self.world)
        try:
            self.carry_out(self.master.start(self.now_ms()))
            while self.ended is None or self._goes_on():
                self.steps += 1
                if self.steps - self.went_on_at > MAX_STEPS * (
                    1 if self.clock.now_ms() - self._started_ms > LONGEST_HANG_MS else 4
                ):
                    if not any(slot.restoring for slot in self.live()):
                        raise BrokenPromise(f"the job hangs: {self.describe()}")
                    self.went_on_at = self.steps  # its timeout may be a minute, and heartbeats go on every few ms
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
        stopped = self.savepoints_taken.take_stopped()
        if stopped is None:
            return self.restarts is None and self._starts_again()
        end_checks.check_run(self)
        self.lose_everything()
        self.ended = None
        self.cancelled_at = None
        if self.restarts is not None:
            self.restarts.resume_stopped(stopped)
        else:
            self.world.rewind(stopped.checkpoint_id)
            if self.led is not None:
                self.led.begin_anew(stopped)
            self.start_again(stopped)
        return True

    def _starts_again(self) -> bool:
        """The job has failed or was cancelled, and has left a checkpoint: the user goes on from there, or does not."""
        assert self.ended is not None
        if self.ended.status is JobStatus.FINISHED or self.storage is None or self.rng.random() < 0.3:
            return False
        if self.led is not None:  # the record says so: no driver starts it again
            return False
        latest = self._latest(self.rng.random() < 0.5)
        if latest is None or (not latest.metadata.savepoint and not end_checks.retained_files(self)):
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

    def _pick_storage(self, thread: Any) -> None:
        self.storage_threads.step(thread)

    def _pick_event(self, event: Event) -> None:
        self.events.discard(event)
        self.trace(event.what)
        event.happen()

    # ------------------------------------------------------------ time
    def _advance_to_deadline(self) -> None:
        due = [slot.deadline for slot in self.live() if slot.deadline is not None and slot.working and not slot.frozen]
        due += [slot.next_heartbeat for slot in self.live() if not slot.frozen]
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
        for slot in self.live():
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

    # ------------------------------------------------------------ the JobManager's host
    def master_receive(self, incarnation: str, payload: bytes) -> None:
        if self.ended is not None:
            return
        try:
            message = decode_from_slot(payload)
        except ProtocolError as error:
            problem = str(error)
            self.on_event(lambda now: self.master.on_unreadable(incarnation, problem, False, now))
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
        self.submit(instruction.attempt, instruction.num_slots)

    def cancel_gang(self, instruction: CancelGang) -> None:
        attempt = instruction.attempt
        self.cancelled_gangs.add(attempt)
        self.later(f"Spark cancels attempt {attempt}", partial(self.kill, self.gangs[attempt]))

    def write_metadata(self, instruction: WriteMetadata) -> None:
        metadata, attempt, target = instruction.metadata, instruction.attempt, instruction.target
        n, by = metadata.checkpoint_id, (self.run_number, int(attempt))
        self._tried[n] = by
        if target:
            self.savepoint_attempts[target] = by
        else:
            self.fall_backs.on_writing(metadata)

        def done(error: str | None) -> None:
            self.trace(f"metadata of checkpoint {n}: {error or 'written'}")
            if self.run_number != by[0]:
                return  # it was written by a driver that has been followed since: nobody asks for it
            if error is None:
                self.with_channel_state += any(c.side != CHAIN for c in metadata.channels)
                self.with_waiting += any(c.side == CHAIN for c in metadata.channels)
                if not target:
                    self.attempt_of[n] = by
            if self.ended is None:
                answer = lambda now: self.master.on_metadata_written(attempt, n, error, now)  # noqa: E731
                self.later(f"JM learns of the metadata of checkpoint {n}", lambda: self.on_event(answer))

        self.storage_work.write_metadata(instruction, done)

    def record_snapshot(self, instruction: RecordSnapshot) -> None:
        assert self.led is not None
        self.led.record_snapshot(instruction)

    def delete_savepoint(self, instruction: DeleteSavepoint) -> None:
        self.storage_work.delete_savepoint(instruction)

    def delete_state(self, instruction: DeleteState) -> None:
        self.storage_work.delete_state(instruction)

    def delete_orphans(self, instruction: DeleteOrphans) -> None:
        self.storage_work.delete_orphans()

    def delete_claimed(self, instruction: DeleteClaimed) -> None:
        if self.led is not None:
            self.led.delete_claimed(instruction)
            return
        raise BrokenPromise(f"a checkpoint of another job was claimed, but there is none: {instruction}")

    def request_done(self, instruction: CheckpointRequestDone) -> None:
        request_id, checkpoint_id = instruction.request_id, instruction.checkpoint_id
        self.requests[request_id] += 1
        if instruction.error is not None or checkpoint_id is None:
            return
        if instruction.target:
            self.savepoints_taken.on_saved(request_id, checkpoint_id, instruction.target)
        else:
            self.faults.request_done(request_id, checkpoint_id)

    def discover_splits(self, instruction: DiscoverSplits) -> None:
        """At one moment the enumerator looks, at a later one the JobMaster hears of it."""
        attempt, operator_id, driver = instruction.attempt, instruction.operator_id, self.run_number

        def look() -> None:
            found = self.discovery.look(instruction)
            answer = lambda now: self.master.on_splits_discovered(attempt, operator_id, found, now)  # noqa: E731
            self.later(f"JM learns of splits of {operator_id}", lambda: self.on_event(answer))

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
        self.fall_backs.on_log(instruction.text)

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

    def on_event(self, event: Callable[[float], list[Instruction]]) -> None:
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
        self.fall_backs.on_results(name, rows := pickle.loads(chunk.payload))
        self.collected.setdefault(name, []).extend((chunk.subtask, row) for row in rows)
        taken = lambda now: self.master.on_results_taken(chunk.operator_id, chunk.subtask, chunk.seq, now)  # noqa: E731
        self.later("the client takes results", lambda: self.on_event(taken))

    # ------------------------------------------------------------ gangs and drivers
    def gang_is_over(self, attempt: AttemptNumber, error: str | None) -> None:
        self.on_event(lambda now: self.master.on_gang_exit(attempt, error, now))

    def crash_driver(self, claim: bool) -> None:
        """The JobManager is gone, and the workers with it. The user starts the job again from the latest checkpoint."""
        self.trace("the driver is killed")
        self.struck["the driver is killed"] += 1
        self.lose_everything()
        self.start_again(self._latest(claim))

    def _latest(self, claim: bool) -> RestorePoint | None:
        found = [self.latest_checkpoint(claim), self.base, self.savepoints_taken.latest_stop()]
        return max((p for p in found if p is not None), key=lambda p: p.checkpoint_id, default=None)

    def lose_everything(self, frozen: bool = False) -> None:
        """Nothing of this run of the driver will be heard of again, but for some of its workers' last writes; if it was
        only `frozen`, of more of them."""
        for slot in self.processes.values():
            slot.life = Life.DEAD
        late: list[AsyncWork] = []
        for work in list(self.async_work):
            if work.outcome is not None or self.rng.random() >= (0.7 if frozen else self.late_share):
                self.async_work.discard(work)
            elif self.rng.random() < 0.5:
                late.append(work)
        for pool in (self.frames, self.control, self.ready, self.helper_pool, self.events):
            pool.clear()
        self.timers.clear()
        for work in late:  # when the next driver is well under way
            self.async_work.discard(work)
            self.after(any_ms(self.rng, 0.3, 100.0), partial(self.async_work.add, work))
        self.processes, self.gangs = {}, {}
        self.requests.clear()
        self.cancelled_gangs.clear()
        if isinstance(self.storage, FakeStorage) and not frozen:
            self.storage.forget()

    def latest_checkpoint(self, claim: bool, ignored: Collection[int] = ()) -> RestorePoint | None:
        assert self.storage is not None
        with self.undisturbed():
            for n in reversed([n for n in self.storage.completed_checkpoints() if n not in ignored]):
                try:
                    metadata = self.storage.read_metadata(n)
                except SnapshotDamagedError:
                    self.fall_backs.check_damaged(n)
                    continue
                if not metadata.savepoint:
                    end_checks.check_whole(self, metadata)
                    return RestorePoint(metadata, self.storage.root, owned=claim)
        return None

    def start_again(self, initial: RestorePoint | None) -> None:
        """A new driver, after `lose_everything`."""
        if self.led is not None:
            self.storage = self.led.next_directory()
            self.worker_storage = self.storage.worker_storage()
        with self.undisturbed():
            self._start_again(initial)

    def _start_again(self, initial: RestorePoint | None) -> None:
        self.inherited = set(self.storage.completed_checkpoints())
        latest = initial.checkpoint_id if initial is not None else 0
        self.base = initial if initial is not None and initial.metadata.savepoint else None
        self.savepoints_taken.on_resume(initial)
        self.fall_backs.on_start(latest)
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

    # ------------------------------------------------------------ the user
    def cancel(self) -> None:
        if self.ended is None and self.cancelled_at is None:
            self.cancelled_at = self.clock.now_ms()
            self.struck["the user cancels"] += 1
        self.on_event(self.master.on_cancel)

    # ------------------------------------------------------------ checks
    def check_invariants(self) -> None:
        self.master.check_invariants()
        for slot in self.live():
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
            for s in self.live()
            if s.runtime is not None
            for t in s.runtime.tasks
        ]
        return f"{self.master.status.name}, attempt {self.master.attempt}, {slots}, checkpoints {pending}, {tasks}"
