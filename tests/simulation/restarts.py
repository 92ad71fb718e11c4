"""The variation `rescale`: jobs that are stopped or killed and go on at another parallelism, from a savepoint or from a
checkpoint, on the same state backend or on the other one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation import end_checks
from tests.simulation.verify import check
from tidegate.common.errors import SnapshotDamagedError
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.channel_assignment import UnmovableRecordsError
from tidegate.jobmanager.state_assignment import adopt_max_parallelism, assign_state
from tidegate.state.factory import HASHMAP, ROCKSDB
from tidegate.storage.cleanup import checkpoint_files
from tidegate.storage.job_directory import METADATA_NAME
from tidegate.storage.location import StorageLocation
from tidegate.storage.metadata import read_metadata_file

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

_MAX_WIDTH = 4
_FIRST_REQUEST = 100  # of stops; the numbers below are those of the other requests


@dataclass(frozen=True)
class Savepoint:
    target: str
    checkpoint_id: int
    taken_in: tuple[int, int]  # (run of the driver, attempt)


class Restarts:
    """What a user does between two runs of the job. `stop` and `crash` are struck by the fault plan."""

    drains = 0.4  # share of the stops

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._rng = sim.rng
        self.savepoints: list[Savepoint] = []  # complete, oldest first
        self._base: RestorePoint | None = None  # what the present run was started from
        self._abandoned: set[int] = set()  # checkpoints that are newer than a point that the job was rewound to
        self.rescaled = 0
        self.unmovable = 0  # rescales that in-flight records stood in the way of
        self.from_savepoint = 0
        self.backend_changed = 0
        self.in_order = True  # until a rescale changes how records get from one operator to the next
        self._targets = 0
        self._stop_requests: set[int] = set()
        self._stops: dict[str, bool] = {}  # this run's savepoints to stop with, complete or not -> drained
        self._stopped: Savepoint | None = None  # the job ends with it

    # ------------------------------------------------------------ requests
    def new_target(self) -> str:
        self._targets += 1
        return str(StorageLocation.parse(f"/savepoints/{self._targets}"))

    def stop(self) -> None:
        sim, drain = self._sim, self._rng.random() < self.drains
        number, target = _FIRST_REQUEST + self._targets, self.new_target()
        self._stop_requests.add(number)
        self._stops[target] = drain
        sim.requests[number] = 0
        sim.trace(f"the user stops the job with a savepoint{', drained' if drain else ''}")
        sim.struck["the user stops the job with a savepoint"] += 1
        sim.on_event(lambda now: sim.master.on_stop_request(number, drain, target, now))

    def on_saved(self, request_id: int, checkpoint_id: int, target: str) -> None:
        savepoint = Savepoint(target, checkpoint_id, self._sim.savepoint_attempts[target])
        self.savepoints.append(savepoint)
        with self._sim.undisturbed():
            self._check_whole(savepoint)
        if request_id in self._stop_requests:
            self._stopped = savepoint

    # ------------------------------------------------------------ the end of a run
    def crash(self) -> None:
        """The driver dies. The job goes on from the latest checkpoint, or from the latest savepoint."""
        sim, rng = self._sim, self._rng
        sim.trace("the driver is killed")
        sim.struck["the driver is killed"] += 1
        sim.lose_everything()
        # One from before the present run would do as well, but not one from a run that was rewound since.
        usable = [s for s in self.savepoints if s.taken_in[0] == sim.run_number]
        with sim.undisturbed():
            if usable and rng.random() < 0.4:
                self._resume_from(usable[-1])
            else:
                self._resume(self._latest(claim=rng.random() < 0.5), rewound=False)

    def _latest(self, claim: bool) -> RestorePoint | None:
        """A savepoint to stop with counts as a checkpoint: when it is complete, what it holds is committed, and the
        user looks into its folder when the driver died before it could answer."""
        found = [self._sim.latest_checkpoint(claim, self._abandoned), self._base, *map(self._read, self._stops)]
        return max((p for p in found if p is not None), key=lambda p: p.checkpoint_id, default=None)

    def _read(self, target: str) -> RestorePoint | None:
        files = self._sim.storage.folder(target)
        if METADATA_NAME not in files.content:
            return None
        return RestorePoint(read_metadata_file(files, METADATA_NAME), target)

    def resume_if_stopped(self) -> bool:
        """True: the job had ended with a savepoint, and now runs again."""
        sim, stopped = self._sim, self._stopped
        if stopped is None:
            return False
        self._stopped = None
        assert sim.ended is not None
        check(sim.ended.status is JobStatus.FINISHED, f"a stopped job ended as {sim.ended.status.name}")
        end_checks.check_run(sim)
        sim.lose_everything()
        sim.ended = None
        with sim.undisturbed():
            self._resume_from(stopped)
        return True

    def _resume_from(self, savepoint: Savepoint) -> None:
        sim = self._sim
        self.from_savepoint += 1
        point = self._read(savepoint.target)
        assert point is not None
        if self._rng.random() < 0.4:
            self.backend_changed += 1
            other = {HASHMAP: ROCKSDB, ROCKSDB: HASHMAP}[sim.runtime.state_backend]
            sim.runtime = dataclasses.replace(sim.runtime, state_backend=other)
        self._resume(point, rewound=True)

    def _resume(self, point: RestorePoint | None, rewound: bool) -> None:
        """`rewound`: the point need not be the latest one."""
        sim = self._sim
        if point is not None and self._rng.random() < 0.8:
            nearest = self._rescale(point)
            rewound |= nearest is not point
            point = nearest
        if point is not None and rewound:
            sim.world.rewind(point.checkpoint_id)
            self._abandoned |= {n for n in sim.storage.completed_checkpoints() if n > point.checkpoint_id}
        if point is not None and self._stops.get(point.root):
            sim.world.drained_runs.add(sim.run_number)
        if point is not None and point.root in sim.savepoint_attempts:
            sim.attempt_of[point.checkpoint_id] = sim.savepoint_attempts[point.root]
        self._base = point
        self._stops.clear()
        sim.start_again(point)

    # ------------------------------------------------------------ another parallelism
    def _rescale(self, point: RestorePoint) -> RestorePoint:
        """What the job can start from at a new parallelism. When its in-flight records cannot be moved: an older one
        without any, if there is one and the user likes it better than the old parallelism."""
        sim, program = self._sim, self._sim.job.program
        before = program.widths
        widths, in_order = self._draw_widths(before)
        graph = adopt_max_parallelism(program.graph(widths), point.metadata)
        fits = _restorable(graph, point)
        if not fits:
            self.unmovable += 1
            aligned = self._latest_aligned(point)
            if aligned is None or self._rng.random() < 0.3:
                program.graph(before)
                return point
            point = aligned
        self.in_order &= in_order
        self.rescaled += widths != before
        sim.struck["the parallelism is changed"] += widths != before
        sim.graph = graph
        sim.world.epoch += 1
        sim.trace(f"another parallelism: {before} -> {widths}")
        return point

    def _draw_widths(self, before: list[int]) -> tuple[list[int], bool]:
        """The new ones, and whether records that took the same way still do."""
        rng, fixed = self._rng, self._sim.job.program.fixed
        if rng.random() < 0.6:
            # Operators of the same width stay so, and single ones single: every edge stays what it is.
            new = {width: 1 if width == 1 else rng.randint(1, _MAX_WIDTH) for width in sorted(set(before))}
            in_order = True
            if rng.random() < 0.4:
                new[1], in_order = rng.randint(1, _MAX_WIDTH), False
            for index in sorted(fixed):
                new[before[index]] = before[index]
            return [new[width] for width in before], in_order
        # Any operator for itself: what was forward becomes a rebalance (or the reverse), and chains are made anew.
        changes = [rng.random() < 0.4 and index not in fixed for index in range(len(before))]
        return [rng.randint(1, _MAX_WIDTH) if c else b for c, b in zip(changes, before, strict=True)], False

    def _latest_aligned(self, point: RestorePoint) -> RestorePoint | None:
        """As `storage.filesystem.latest_aligned`, which opens real folders."""
        storage = self._sim.storage
        if point.root == storage.root:
            for n in reversed(storage.completed_checkpoints()):
                try:
                    metadata = storage.read_metadata(n)
                except SnapshotDamagedError:
                    self._sim.fall_backs.check_damaged(n)
                    continue
                if (
                    n < point.checkpoint_id
                    and n not in self._abandoned
                    and not metadata.channels
                    and not metadata.savepoint
                ):
                    return RestorePoint(metadata, point.root)
        return None

    # ------------------------------------------------------------ checks
    def check_savepoints(self) -> None:
        with self._sim.undisturbed():
            for savepoint in self.savepoints:
                self._check_whole(savepoint)

    def _check_whole(self, savepoint: Savepoint) -> None:
        files = self._sim.storage.folder(savepoint.target)
        check(METADATA_NAME in files.content, f"savepoint {savepoint.target} has no metadata")
        metadata = read_metadata_file(files, METADATA_NAME)
        gone = (checkpoint_files(metadata) | set(metadata.companions)) - files.content.keys()
        check(not gone, f"files of savepoint {savepoint.target} are gone: {gone}")
        check(not metadata.channels, f"savepoint {savepoint.target} holds in-flight records")


def _restorable(graph: JobGraph, point: RestorePoint) -> bool:
    try:
        assign_state(graph, point, False)
        return True
    except UnmovableRecordsError:
        return False
