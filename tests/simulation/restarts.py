"""The variation `rescale`: jobs that are stopped or killed and go on at another parallelism, from a savepoint or from a
checkpoint, on the same state backend or on the other one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING
from unittest.mock import patch

from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.channel_assignment import UnmovableRecordsError
from tidegate.jobmanager.state_assignment import adopt_max_parallelism, assign_state
from tidegate.state.factory import HASHMAP, ROCKSDB
from tidegate.storage import filesystem
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.job_directory import metadata_file

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

_MAX_WIDTH = 4


class Restarts:
    """What a user does between two runs of the job. `crash` is struck by the fault plan."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._rng = sim.rng
        self._base: RestorePoint | None = None  # what the present run was started from
        self._abandoned: set[int] = set()  # checkpoints that are newer than a point that the job was rewound to
        self.rescaled = 0
        self.unmovable = 0  # rescales that in-flight records stood in the way of
        self.from_savepoint = 0
        self.backend_changed = 0
        self.in_order = True  # until a rescale changes how records get from one operator to the next

    # ------------------------------------------------------------ the end of a run
    def crash(self) -> None:
        """The driver dies. The job goes on from the latest checkpoint, or from the latest savepoint."""
        sim, rng = self._sim, self._rng
        sim.trace("the driver is killed")
        sim.struck["the driver is killed"] += 1
        sim.lose_everything()
        # One from before the present run would do as well, but not one from a run that was rewound since.
        usable = [s for s in sim.savepoints_taken.complete if s.taken_in[0] == sim.run_number]
        with sim.undisturbed():
            if usable and rng.random() < 0.4:
                self._resume_from(sim.savepoints_taken.read(usable[-1].target))
            else:
                self._resume(self._latest(claim=rng.random() < 0.5), rewound=False)

    def _latest(self, claim: bool) -> RestorePoint | None:
        sim = self._sim
        found = [sim.latest_checkpoint(claim, self._abandoned), self._kept_base(), sim.savepoints_taken.latest_stop()]
        return max((p for p in found if p is not None), key=lambda p: p.checkpoint_id, default=None)

    def _kept_base(self) -> RestorePoint | None:
        """What the present run was started from, unless that was a checkpoint which has been replaced or damaged
        since."""
        sim, base = self._sim, self._base
        if base is None or base.metadata.savepoint or base.root != sim.storage.root:
            return base
        if metadata_file(base.checkpoint_id) in sim.storage.fake_files.damaged:
            return None
        return base if base.checkpoint_id in sim.storage.completed_checkpoints() else None

    def resume_stopped(self, point: RestorePoint) -> None:
        """The job had ended with a savepoint, and now runs again."""
        with self._sim.undisturbed():
            self._resume_from(point)

    def _resume_from(self, point: RestorePoint | None) -> None:
        assert point is not None
        sim = self._sim
        self.from_savepoint += 1
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
        self._base = point
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
        """What the job would start from instead; None for one from before a point that the job was rewound to."""
        sim = self._sim
        if point.root != sim.storage.root:
            return None
        metadata = sim.look_again("the latest aligned checkpoint", lambda: self._look_for_aligned(point))
        if metadata is None or metadata.checkpoint_id in self._abandoned or metadata.savepoint:
            return None
        return RestorePoint(metadata, point.root)

    def _look_for_aligned(self, point: RestorePoint) -> CheckpointMetadata | None:
        """By the real function, on the simulated files."""
        with patch.object(filesystem, "storage_in", lambda location: self._sim.storage):
            return filesystem.latest_aligned(point.root, point.checkpoint_id)


def _restorable(graph: JobGraph, point: RestorePoint) -> bool:
    try:
        assign_state(graph, point, False)
        return True
    except UnmovableRecordsError:
        return False
