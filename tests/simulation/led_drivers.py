"""The variation `led`: a job with high availability. Its drivers are killed, or frozen until another one leads.

Each leader has a directory of its own in the store, and goes on from the checkpoint that the job's record names. A
leader that was frozen does one more thing when it goes on: what each of its storage threads was in the middle of, with
the question whether it leads behind it. Everything else that it would do is asked for again, and refused (the record by
its version, the rest by the lease: `leader_world.py` has both)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tests.simulation import end_checks, verify
from tests.simulation.durations import any_ms
from tests.simulation.fake_storage import FakeStorage
from tidegate.common.errors import SnapshotDamagedError
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.jobmanager.leadership import record_claim
from tidegate.jobmanager.leadership.job_record import GraphOutline, JobRecord, SnapshotPointer
from tidegate.protocol.instructions import DeleteClaimed, RecordSnapshot
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.job_directory import metadata_file
from tidegate.storage.work_queues import Work

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


_EMPTY = JobRecord(job_id="0" * 32, name="job", graph=GraphOutline(operators=(), edges=()))


class LedDrivers:
    """What outlives a driver: the record, the directories. `kill` and `freeze` are struck by the fault plan. What a
    snapshot changes in the record is what the real leader changes in it."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._record = _EMPTY
        self._storage_of: dict[str, FakeStorage] = {}  # the path of a recorded checkpoint -> where it lies
        self._storages: dict[str, FakeStorage] = {sim.storage.root: sim.storage}
        self._frozen: set[str] = set()  # the directories whose lock a frozen leader still has
        self._recording: deque[RecordSnapshot] = deque()  # one after the other
        self._stopped_by = -1  # run of the driver
        self.ended_for_another = 0  # drivers that had to end what another one had stopped
        self._started_from: RestorePoint | None = None  # what the program was started with
        self.late = 0  # deeds of leaders that were frozen
        self._freezes_at_work = False

    # ------------------------------------------------------------ the record
    @property
    def record(self) -> CheckpointId:
        """The newest checkpoint in it; 0: none."""
        newest = self._record.checkpoint
        return CheckpointId(0) if newest is None else newest.checkpoint_id

    @property
    def stopped_at(self) -> str:
        """The savepoint that the job is stopped with, in the record."""
        savepoint = self._record.savepoint
        return savepoint.path if self._record.stopped and savepoint is not None else ""

    def _named(self) -> list[tuple[CheckpointId, FakeStorage]]:
        """The checkpoints in it, newest first, and where they lie."""
        newest = self._record.checkpoint
        pointers = () if newest is None else (newest, *self._record.older)
        return [(pointer.checkpoint_id, self._storage_of[pointer.path]) for pointer in pointers]

    def record_snapshot(self, instruction: RecordSnapshot) -> None:
        """The record is written when the scheduler picks it, and the answer comes later again: the driver may die
        before, in between and after."""
        self._recording.append(instruction)
        if len(self._recording) == 1:
            self._sim.later(f"checkpoint {instruction.checkpoint_id} is recorded", self._write)

    def _write(self) -> None:
        sim, instruction = self._sim, self._recording[0]
        n, savepoint = instruction.checkpoint_id, instruction.savepoint
        pointer = SnapshotPointer(checkpoint_id=n, path=instruction.path, epoch=sim.run_number + 1)
        changed = record_claim.applied(
            self._record,
            record_claim.SavepointCompleted(pointer, instruction.stop)
            if savepoint
            else record_claim.CheckpointCompleted(pointer, instruction.num_retained, instruction.refused),
        )
        recorded = changed is not None
        if instruction.stop:
            sim.trace(f"the record says that the job is stopped with {instruction.path}")
            self._stopped_by = sim.run_number
            sim.world.completed[n] = sim.run_number, instruction.attempt
        elif recorded and not savepoint:
            self._storage_of[pointer.path] = sim.storage
            sim.world.completed[n] = sim.run_number, instruction.attempt  # whether or not anybody lives to hear of it
        self._record = changed or self._record
        if self._stopped_by == sim.run_number and not sim.calm and sim.rng.random() < 0.4:
            # Before the end, after some of the commits; and not only of the one that the stop is recorded with.
            wait_ms = sim.rng.choice((0.0, any_ms(sim.rng, 0.1, 100.0)))
            sim.after(wait_ms, lambda: sim.later("the driver of a stopped job is killed", self._kill_stopped))
        verify.check(
            not self.stopped_at or self._stopped_by == sim.run_number,
            f"the job is stopped with {self.stopped_at}, but snapshot {n} of a later driver is recorded",
        )

        def answer() -> None:
            self._recording.popleft()
            if self._recording:
                sim.later(f"checkpoint {self._recording[0].checkpoint_id} is recorded", self._write)
            sim.on_event(lambda now: sim.master.on_recorded(n, recorded, now))

        what = f"JM learns that {n} is recorded"
        slow = not sim.calm and sim.rng.random() < (0.5 if instruction.stop else 0.2)
        if slow:  # the store has it, and is long in saying so
            sim.after(any_ms(sim.rng), lambda: sim.later(what, answer))
        else:
            sim.later(what, answer)

    def recorded(self) -> RestorePoint | None:
        """What a driver that takes over starts from, whatever else lies in the storage."""
        if self.stopped_at:
            with self._sim.undisturbed():
                return self._sim.savepoints_taken.read(self.stopped_at)
        return self._points()[0] if self.record else self._started_from

    def older(self) -> list[RestorePoint]:
        """What it may fall back to."""
        return [] if self.stopped_at or not self.record else self._points()[1:]

    def _points(self) -> list[RestorePoint]:
        """What the record names, newest first, but for that whose metadata is damaged, as in `starting_points.py`.
        Nobody may have deleted any of it."""
        points = []
        with self._sim.undisturbed():
            for n, storage in self._named():
                try:
                    metadata = storage.read_metadata(n)
                except SnapshotDamagedError:
                    self._sim.fall_backs.check_damaged(n, storage)
                    continue
                end_checks.check_whole(self._sim, metadata, storage)
                points.append(RestorePoint(metadata, storage.root, owned=True))
        return points

    # ------------------------------------------------------------ damage
    def named(self) -> list[tuple[CheckpointMetadata, FakeStorage]]:
        """The checkpoints that the record names, oldest first, as they were written."""
        if self.stopped_at:
            return []
        return [(self._sim.fall_backs.written(n, storage), storage) for n, storage in reversed(self._named())]

    def can_spare(self, checkpoint_id: CheckpointId) -> bool:
        """The metadata of another checkpoint that the record names is whole: without any the job could not begin."""
        return any(n != checkpoint_id and metadata_file(n) not in s.fake_files.damaged for n, s in self._named())

    def begin_anew(self, point: RestorePoint) -> None:
        """The job is over. The user starts it from a savepoint, under another cluster id: with a record of its own."""
        self._record, self._started_from = _EMPTY, point
        self._recording.clear()  # a job that came to its end beside its stop does not wait for the record of the stop

    # ------------------------------------------------------------ the next driver
    def kill(self) -> None:
        self._sim.trace("the driver is killed")
        self._sim.struck["the driver is killed"] += 1
        self._follow(frozen=False)

    def _kill_stopped(self) -> None:
        if self._stopped_by == self._sim.run_number and self._sim.ended is None:
            self.kill()

    def freeze(self) -> None:
        """At once, or when one of its storage threads next has something to do."""
        if self._sim.rng.random() < 0.3:
            self._freeze()
        else:
            self._freezes_at_work = True

    def at_work(self) -> bool:
        """A storage thread of the driver is about to do something. True: it is frozen before it has."""
        if not self._freezes_at_work or self._sim.calm or self._sim.ended is not None:
            return False
        self._freezes_at_work = False
        self._freeze()
        return True

    def _freeze(self) -> None:
        """For longer than its lease: another driver leads when it goes on."""
        sim, before = self._sim, self._sim.storage
        sim.trace("the driver freezes")
        sim.struck["the driver freezes"] += 1
        self._frozen.add(before.root)
        under_way = sim.storage_threads.under_way()
        self._follow(frozen=True)
        for work in under_way:
            if sim.rng.random() < 0.8:
                sim.later(f"the driver that was frozen goes on: {work.what}", lambda work=work: self._late(work))
        sim.later("the driver that was frozen has left", lambda: self._frozen.discard(before.root))

    def _follow(self, frozen: bool) -> None:
        self.ended_for_another += bool(self.stopped_at)
        self._recording.clear()  # what was not written will be refused: the record has another epoch by then
        self._sim.lose_everything(frozen)
        point = self.recorded()
        if point is not None and not self.stopped_at and point.checkpoint_id < self.record:
            self._sim.fall_backs.leader_falls_back(point.checkpoint_id)
        self._sim.start_again(point)

    def next_directory(self) -> FakeStorage:
        made = self._sim.storage.successor(f"job-e{self._sim.run_number + 2}")
        self._storages[made.root] = made
        return made

    def _late(self, work: Work) -> None:
        self.late += 1
        work.do()
        if self._sim.ended is None:
            self.recorded()
            self.older()

    def delete_claimed(self, instruction: DeleteClaimed) -> None:
        sim, n, older = self._sim, instruction.checkpoint_id, instruction.older
        verify.check(instruction.root != sim.storage.root, f"a leader's own checkpoint {n} counts as claimed")
        verify.check(older, f"checkpoint {n} is not known as that of an earlier leader")
        if instruction.root not in self._frozen:
            storage, what = self._storages[instruction.root], f"deleting checkpoint {n} of an earlier leader"
            sim.storage_threads.delete(what, lambda: storage.delete_checkpoint(n, older), [])
