"""The savepoints that the user takes, each in a folder of its own, and the stops with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.fake_storage import FakeStorage
from tests.simulation.scenario import Variation
from tests.simulation.verify import check
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.storage.cleanup import checkpoint_files
from tidegate.storage.job_directory import METADATA_NAME
from tidegate.storage.location import StorageLocation
from tidegate.storage.metadata import read_metadata_file

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

_FIRST_REQUEST = 100  # of stops; the numbers below are those of the other requests


@dataclass(frozen=True)
class Savepoint:
    target: str
    checkpoint_id: int
    taken_in: tuple[int, int]  # (run of the driver, attempt)


class UserSavepoints:
    """`stop` is struck by the fault plan. A job that has ended with a savepoint is gone on with from there."""

    drains = 0.4  # share of the stops
    stop_share = 0.3  # of the jobs that are not stopped again and again (`restarts.py`)
    beside_stops = 0.4  # share of the stops of jobs with high availability that come upon another savepoint

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.complete: list[Savepoint] = []  # oldest first
        self._targets = 0
        self._stop_requests: set[int] = set()
        self._stops: dict[str, bool] = {}  # this run's savepoints to stop with, complete or not -> drained
        self._stopped: Savepoint | None = None  # the job ends with it
        self.stops = 0  # jobs that ended with a savepoint

    @property
    def possible(self) -> bool:
        return isinstance(self._sim.storage, FakeStorage)

    # ------------------------------------------------------------ requests
    def new_target(self) -> str:
        self._targets += 1
        return str(StorageLocation.parse(f"/savepoints/{self._targets}"))

    def stop(self) -> None:
        # A drain fires all windows, which is not what the model of the windows reckons with.
        sim = self._sim
        if sim.led is not None and sim.rng.random() < self.beside_stops:
            sim.faults.request_savepoint()
        drain = sim.rng.random() < self.drains and sim.scenario.variation is not Variation.TIME
        number, target = _FIRST_REQUEST + self._targets, self.new_target()
        self._stop_requests.add(number)
        self._stops[target] = drain
        sim.requests[number] = 0
        sim.trace(f"the user stops the job with a savepoint{', drained' if drain else ''}")
        sim.struck["the user stops the job with a savepoint"] += 1
        sim.on_event(lambda now: sim.master.on_stop_request(number, drain, target, now))

    def on_saved(self, request_id: int, checkpoint_id: int, target: str) -> None:
        savepoint = Savepoint(target, checkpoint_id, self._sim.savepoint_attempts[target])
        self.complete.append(savepoint)
        with self._sim.undisturbed():
            self._check_whole(savepoint)
        if request_id in self._stop_requests:
            self._stopped = savepoint

    # ------------------------------------------------------------ what a user finds
    def read(self, target: str) -> RestorePoint | None:
        files = self._sim.storage.folder(target)
        if METADATA_NAME not in files.content:
            return None
        return RestorePoint(read_metadata_file(files, METADATA_NAME), target)

    def latest_stop(self) -> RestorePoint | None:
        """A savepoint to stop with counts as a checkpoint: when it is complete, what it holds is committed, and the
        user looks into its folder when the driver died before it could answer."""
        if not self.possible:
            return None
        with self._sim.undisturbed():
            found = [point for point in map(self.read, self._stops) if point is not None]
        return max(found, key=lambda point: point.checkpoint_id, default=None)

    def take_stopped(self) -> RestorePoint | None:
        """The job has ended: the savepoint that it has ended with, if it has. Of a job with high availability that is
        the one in its record, whoever has asked for it."""
        sim, stopped = self._sim, self._stopped
        self._stopped = None
        target = stopped.target if stopped is not None else None
        if sim.led is not None and sim.led.stopped_at:
            target = sim.led.stopped_at
        assert sim.ended is not None
        if target is None or (sim.led is not None and sim.ended.status is not JobStatus.FINISHED):
            return None
        check(sim.ended.status is JobStatus.FINISHED, f"a stopped job ended as {sim.ended.status.name}")
        self.stops += 1
        with sim.undisturbed():
            return self.read(target)

    def on_resume(self, point: RestorePoint | None) -> None:
        """The next run starts from it."""
        sim = self._sim
        if point is not None and self._stops.get(point.root):
            sim.world.drained_runs.add(sim.run_number)
        if point is not None and point.root in sim.savepoint_attempts:
            sim.attempt_of[point.checkpoint_id] = sim.savepoint_attempts[point.root]
        self._stops.clear()
        self._stopped = None

    # ------------------------------------------------------------ checks
    def check_all(self) -> None:
        with self._sim.undisturbed():
            for savepoint in self.complete:
                self._check_whole(savepoint)

    def _check_whole(self, savepoint: Savepoint) -> None:
        files = self._sim.storage.folder(savepoint.target)
        check(METADATA_NAME in files.content, f"savepoint {savepoint.target} has no metadata")
        metadata = read_metadata_file(files, METADATA_NAME)
        gone = (checkpoint_files(metadata) | set(metadata.companions)) - files.content.keys()
        check(not gone, f"files of savepoint {savepoint.target} are gone: {gone}")
        check(not metadata.channels, f"savepoint {savepoint.target} holds in-flight records")
