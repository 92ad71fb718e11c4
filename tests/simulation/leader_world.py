"""Drivers of one job: each wants the lease, claims the record, takes checkpoints, records them and lets workers commit.
On top of the faults of `lease_world`, metadata, deletions and commits are slow, lost, or late: also after the driver
that sent them was frozen, replaced or killed.

The job is a chain of checkpoints: each has the one before it as its parent, and stands for the results between the two.
A target has got everything once if and only if what is committed is one chain, without a gap and without a fork.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tests.simulation.lease_world import BrokenLease, Driver, World
from tests.simulation.world_durations import WorldDurations
from tidegate.common.ids import CheckpointId
from tidegate.jobmanager.leadership.job_record import GraphOutline, JobRecord, SnapshotPointer
from tidegate.jobmanager.leadership.record_claim import (
    CheckpointCompleted,
    Deposed,
    Leading,
    PutRecord,
    RecordAnswer,
    RecordClaim,
    RecordFound,
    RecordInstruction,
    RecordRefused,
    RecordUnanswered,
    RecordWritten,
)
from tidegate.protocol.instructions import Recording

_CANDIDATE = JobRecord(job_id="job", name="job", graph=GraphOutline(operators=(), edges=()))


@dataclass(frozen=True)
class Checkpoint:
    path: str
    number: int
    parent: str  # "" for the beginning


class RecordStore:
    """Conditional writes, in the order in which they arrive."""

    def __init__(self) -> None:
        self.record: JobRecord | None = None
        self.version: str | None = None
        self._versions = itertools.count(1)
        self.conditional = True

    def carry_out(self, instruction: RecordInstruction) -> RecordAnswer:
        if not isinstance(instruction, PutRecord):
            return RecordFound(self.record, self.version)
        if self.conditional and instruction.expected != self.version:
            return RecordRefused()
        self.record, self.version = instruction.record, str(next(self._versions))
        return RecordWritten(self.version)


class Target:
    """Where the workers' sinks commit. Transactions that a leader does not find in its checkpoint are aborted."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.chain: list[str] = [""]
        self._aborted: set[str] = set()
        self._prepared: dict[str, Checkpoint] = {}

    def prepare(self, checkpoint: Checkpoint) -> None:
        self._prepared[checkpoint.path] = checkpoint

    def commit(self, checkpoint: Checkpoint) -> None:
        """With what it is built upon. May come twice, and late."""
        if checkpoint.path in self.chain:
            return
        if checkpoint.path in self._aborted:
            raise BrokenLease(f"seed {self._seed}: {checkpoint} is committed, but was aborted: its results are lost")
        if checkpoint.parent:
            self.commit(self._prepared[checkpoint.parent])
        if checkpoint.parent != self.chain[-1]:
            raise BrokenLease(f"seed {self._seed}: {checkpoint} is committed after {self.chain[-1]}: a fork")
        self.chain.append(checkpoint.path)

    def abort_others(self) -> None:
        """Of those that a leader has not found in what it starts from, and has not committed."""
        self._aborted |= self._prepared.keys() - set(self.chain)


class LeaderDriver(Driver):
    """The lease is that of `Driver`; what it does under it is below."""

    world: LeaderWorld

    def __init__(self, world: LeaderWorld, name: str) -> None:
        self.claim: RecordClaim | None = None
        self.stopped = False  # deposed: a new process would have to begin again
        self._latest: Checkpoint | None = None  # what the next one is built upon
        self._restored = False
        self._busy = False  # with a checkpoint
        self._numbers = itertools.count(1)
        self._wanted: dict[int, Checkpoint] = {}  # number of the change
        self._waiting_for_record = 0
        self._record_requests = itertools.count(1)
        super().__init__(world, name)

    def leads(self) -> bool:
        return self.held() and self.claim is not None and isinstance(self.claim.state, Leading)

    # ------------------------------------------------------------ the record
    def _ask(self, instruction: RecordInstruction | None) -> None:
        if instruction is None:
            return
        world, number = self.world, next(self._record_requests)
        self._waiting_for_record = number

        def arrived() -> None:
            answer = world.records.carry_out(instruction)
            if world.random.random() >= world.loss and world.now >= self.cut_off_until:
                world.later(world.delay(), lambda: self._when_awake(lambda: self._record_answered(number, answer)))

        world.send(self, arrived)
        given_up = lambda: self._when_awake(lambda: self._record_answered(number, RecordUnanswered()))  # noqa: E731
        world.later(world.durations.give_up_ms, given_up)

    def _record_answered(self, number: int, answer: RecordAnswer) -> None:
        if number != self._waiting_for_record or self.claim is None:
            return
        self._waiting_for_record = 0
        self._ask(self.claim.on_answer(answer, self.now(), self.held()))
        self._settle()

    def _settle(self) -> None:
        assert self.claim is not None
        self.claim.check_invariants()
        for number, outcome in self.claim.settled:
            if outcome is Recording.WRITTEN:
                self._recorded(self._wanted.pop(number))
        self.claim.settled.clear()

    # ------------------------------------------------------------ the job
    def _work(self) -> None:
        """Again and again: what a leader does when it is one."""
        world = self.world
        if self.claim is not None and isinstance(self.claim.state, Deposed):
            self.stopped = True
        if not self.stopped:
            if self.held() and self.claim is None:
                self.claim = world.make_claim(self.name)
                self._ask(self.claim.start())
            elif self.claim is not None and not self.held():
                self.claim.give_up()
                self._settle()
            elif self.claim is not None:
                self._ask(self.claim.on_tick(self.now(), self.held()))
                if self.leads():
                    self._lead()
        world.later(world.between(world.durations.work_ms), lambda: self._when_awake(self._work))

    def _lead(self) -> None:
        assert self.claim is not None
        assert isinstance(self.claim.state, Leading)
        world = self.world
        if not self._restored:
            self._restored = True
            pointer = self.claim.state.record.checkpoint
            if pointer is not None:
                if pointer.path not in world.metadata:
                    raise BrokenLease(f"seed {world.seed}: the record names {pointer.path}, which is not there")
                self._latest = world.metadata[pointer.path]
                world.target.commit(self._latest)
            world.target.abort_others()
            world.led(self, self.claim.state.record.epoch)
        elif not self._busy and world.random.random() < 0.5:
            self._busy = True
            number = (0 if self._latest is None else self._latest.number) + 1
            path = f"e{self.claim.state.record.epoch}/chk-{number}"
            self.world.begin_checkpoint(self, Checkpoint(path, number, self._latest.path if self._latest else ""))

    def write_metadata(self, checkpoint: Checkpoint) -> None:
        world = self.world

        def arrived() -> None:
            world.metadata[checkpoint.path] = checkpoint
            if world.random.random() >= world.loss:
                world.later(world.delay(), lambda: self._when_awake(lambda: self._metadata_written(checkpoint)))

        world.target.prepare(checkpoint)
        world.send(self, arrived)
        given_up = lambda: self._when_awake(lambda: self._checkpoint_failed(checkpoint))  # noqa: E731
        world.later(world.durations.give_up_ms, given_up)

    def _checkpoint_failed(self, checkpoint: Checkpoint) -> None:
        """The write was given up; nothing was recorded, so the next attempt starts from the one before."""
        if self._busy and checkpoint not in self._wanted.values() and self._latest != checkpoint:
            self._busy = False

    def _metadata_written(self, checkpoint: Checkpoint) -> None:
        if self._busy and self.leads():
            self.record(checkpoint)

    def record(self, checkpoint: Checkpoint) -> None:
        assert self.claim is not None
        assert isinstance(self.claim.state, Leading)
        if checkpoint in self._wanted.values():
            return
        number = next(self._numbers)
        self._wanted[number] = checkpoint
        epoch = self.claim.state.record.epoch
        pointer = SnapshotPointer(checkpoint_id=CheckpointId(checkpoint.number), path=checkpoint.path, epoch=epoch)
        self._ask(self.claim.change(number, CheckpointCompleted(pointer)))
        self._settle()

    def _recorded(self, checkpoint: Checkpoint) -> None:
        """It is complete: workers commit, at some time, whatever becomes of the driver; the one before is deleted."""
        world = self.world
        before, self._latest, self._busy = self._latest, checkpoint, False
        late = world.random.choice([0.0, 2 * world.durations.times.lease_ms])
        world.later(world.delay() + late, lambda: world.target.commit(checkpoint))
        if before is not None:
            world.send(self, lambda: world.metadata.pop(before.path, None) and None)


class LeaderWorld(World):
    def __init__(
        self, seed: int, *, drivers: int = 3, faults: bool = True, durations: WorldDurations | None = None
    ) -> None:
        self.records = RecordStore()
        self.metadata: dict[str, Checkpoint] = {}
        self.target = Target(seed)
        self.epochs: dict[int, str] = {}  # epoch -> who led under it
        self._recorded: SnapshotPointer | None = None
        super().__init__(seed, drivers=drivers, faults=faults, durations=durations)

    def make_driver(self, name: str) -> Driver:
        return LeaderDriver(self, name)

    # Planted bugs replace these.
    def make_claim(self, name: str) -> RecordClaim:
        return RecordClaim(name, _CANDIDATE, "the record", retry_ms=self.durations.retry_ms)

    def begin_checkpoint(self, driver: LeaderDriver, checkpoint: Checkpoint) -> None:
        driver.write_metadata(checkpoint)

    def led(self, driver: LeaderDriver, epoch: int) -> None:
        if self.epochs.setdefault(epoch, driver.name) != driver.name:
            raise BrokenLease(f"seed {self.seed}: {self.epochs[epoch]} and {driver.name} lead under epoch {epoch}")

    def replace_stopped(self) -> None:
        """A process supervisor starts the program again."""
        for driver in [d for d in self.drivers if d.alive and isinstance(d, LeaderDriver)]:
            if driver.stopped:
                driver.alive = False
                self.drivers.append(self.make_driver(self.new_name()))

    def _check(self) -> None:
        super()._check()
        self.replace_stopped()
        record = self.records.record
        pointer = None if record is None else record.checkpoint
        before, self._recorded = self._recorded, pointer
        if pointer is not None and pointer.path not in self.metadata:
            raise BrokenLease(f"seed {self.seed}: the record names {pointer.path}, which is not there")
        if before is not None and (pointer is None or pointer.checkpoint_id < before.checkpoint_id):
            raise BrokenLease(f"seed {self.seed}: the record went back from {before} to {pointer}")


def run_leader_world(world: LeaderWorld) -> LeaderWorld:
    """To its end: faults for a while, then none. Raises BrokenLease."""
    durations = world.durations
    world.run(durations.faulty_ms)
    world.heal()
    world.run(durations.faulty_ms + durations.settled_ms)
    before = len(world.target.chain)
    world.run(durations.faulty_ms + durations.settled_ms + durations.proof_ms)
    if len(world.target.chain) == before:
        raise BrokenLease(f"seed {world.seed}: the job does not go on although nothing fails any more")
    return world
