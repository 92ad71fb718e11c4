"""What is checked when a simulated job has ended, and whenever something is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.fake_storage import FakeFiles, FakeStorage
from tests.simulation.verify import check, check_counted, check_output, check_state
from tidegate.common.errors import SnapshotDamagedError
from tidegate.common.ids import CheckpointId
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.settings import Retention
from tidegate.storage import cleanup
from tidegate.storage.checksums import checksum
from tidegate.storage.cleanup import checkpoint_files
from tidegate.storage.handles import CheckpointMetadata, FileRange
from tidegate.storage.job_directory import checkpoint_directory, metadata_file

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


def check_end(sim: Simulation) -> int:
    """Raises BrokenPromise. Returns how many records were doubled where that is allowed."""
    assert sim.ended is not None
    status = sim.ended.status
    check_legal(sim)
    complete = status is JobStatus.FINISHED
    visible = {sink.name: sim.world.visible(sink.name) for sink in sim.job.sinks} | sim.collected
    exactly_once = sim.scenario.runtime.exactly_once
    exact = {"transactional"} if sim.run_number else {"transactional", "collect"}  # a client dies with its driver
    if not sim.scenario.runtime.checkpointing and sim.master.attempt:  # results left before anything covered them
        exact -= {"collect"}
    in_order = sim.restarts is None or sim.restarts.in_order
    excused = sim.fall_backs.excused
    doubled = check_output(sim.job, visible, exact if exactly_once else set(), complete, in_order, excused)
    if complete and sim.scenario.runtime.exactly_once:
        check_state(sim.job, sim.world.state, in_order)
        check_counted(sim.job, sim.world.counted)
    check_run(sim)
    return doubled


def check_legal(sim: Simulation) -> None:
    """Whether a job may end like this: FAILED when its restart strategy says so, or when all is damaged that it could
    go on from."""
    assert sim.ended is not None
    status = sim.ended.status
    legal = {
        JobStatus.FINISHED: True,
        JobStatus.CANCELED: sim.faults.cancelled,
        JobStatus.FAILED: sim.strategy.gave_up or sim.fall_backs.nothing_left(sim.ended.reason),
    }
    check(legal[status], f"the job ended as {status.name}: {sim.ended}")


def check_whole(sim: Simulation, metadata: CheckpointMetadata, storage: Any = None) -> None:
    """A checkpoint that looks complete to a new driver; `storage`: where it lies, if not where the job has its own."""
    files: FakeFiles | None = getattr(storage or sim.storage, "fake_files", None)
    if files is not None:
        _check_whole(files, metadata, checkpoint_files(metadata))


def _check_whole(files: FakeFiles, metadata: CheckpointMetadata, needed: set[str]) -> None:
    gone = _gone(files, needed)
    check(not gone, f"checkpoint {metadata.checkpoint_id} looks complete without {gone}")
    _check_unchanged(files, metadata)


def _gone(files: FakeFiles, wanted: set[str]) -> set[str]:
    """Those that are not there; one that was damaged may be missing. Path by path: there are hundreds of files, and the
    difference with the view of a dict walks through all of them, after every deletion."""
    return {path for path in wanted if path not in files.content and path not in files.damaged}


def _check_unchanged(files: FakeFiles, metadata: CheckpointMetadata) -> None:
    """What a completed checkpoint refers to is what was written for it: nobody has written there since."""
    subtasks = [subtask for operator in metadata.operators for subtask in operator.subtasks]
    for handle in cleanup._handles(subtasks, metadata.channels):
        if isinstance(handle, FileRange) and handle.path in files.content and handle.path not in files.damaged:
            content, part = files.content[handle.path], (handle.path, handle.offset, handle.length, handle.checksum)
            if files.intact.get(part) is content:
                continue  # the same bytes as when it was looked at last
            changed = checksum(content[handle.offset : handle.offset + handle.length]) != handle.checksum
            check(not changed, f"somebody else wrote to {handle.path} of checkpoint {metadata.checkpoint_id}")
            files.intact[part] = content


def check_run(sim: Simulation) -> None:
    """At the end of each run of the driver that was not killed."""
    unanswered = [request for request, answers in sim.requests.items() if answers != 1]
    check(not unanswered, f"checkpoint requests {unanswered} were answered {sim.requests} times")
    left = [slot for slot in sim.live() if slot.hanging and slot.attempt not in sim.cancelled_gangs]
    check(not left, f"{left} do not leave, and nobody has asked Spark to kill them")
    with sim.undisturbed():
        _check_storage(sim)
    sim.savepoints_taken.check_all()


def check_retained(sim: Simulation) -> None:
    """Whatever is deleted, the completed checkpoints stay whole, and whatever cannot be deleted: no other checkpoint
    looks complete that is not."""
    if not isinstance(sim.storage, FakeStorage) or sim.coordinator is None:
        return
    checkpoints = sim.coordinator.store.checkpoints
    _check_undeleted(sim, {checkpoint.checkpoint_id for checkpoint in checkpoints})
    for checkpoint in checkpoints:
        _check_there(sim.storage.fake_files, checkpoint.metadata)


def _check_there(files: FakeFiles, metadata: CheckpointMetadata) -> None:
    """A checkpoint that is to be kept is there, but for what was damaged. One without metadata is none: whoever cleans
    up takes its files for left over."""
    own = metadata_file(metadata.checkpoint_id)
    if own in files.damaged:
        return
    gone = _gone(files, checkpoint_files(metadata) | {own})
    check(not gone, f"files of the completed checkpoint {metadata.checkpoint_id} are gone: {gone}")
    _check_unchanged(files, metadata)


def _check_undeleted(sim: Simulation, known: set[CheckpointId]) -> None:
    files = sim.storage.fake_files
    with sim.undisturbed():
        for n in sim.storage.completed_checkpoints():
            if n not in known:
                content = files.content[metadata_file(n)]
                known_as = sim.looked_into.get(n)
                if known_as is None or known_as[0] is not content:  # hundreds may be left that cannot be deleted
                    try:
                        metadata = sim.storage.read_metadata(n)
                    except SnapshotDamagedError:
                        sim.fall_backs.check_damaged(n)
                        continue
                    known_as = sim.looked_into[n] = content, metadata, checkpoint_files(metadata)
                _check_whole(files, *known_as[1:])


def _check_storage(sim: Simulation) -> None:
    """Only savepoints, and what an earlier driver has left behind, are still there."""
    if not isinstance(sim.storage, FakeStorage):
        return
    files = sim.storage.fake_files
    kept = [*_metadata_of(sim, sim.savepoints - sim.inherited), *_retained(sim)]
    for metadata in kept:
        _check_there(files, metadata)
    may_stay = [*kept, *_metadata_of(sim, sim.inherited | _undecided(sim))]
    left = files.content.keys() - set().union(*map(_files_of, may_stay))
    if sim.run_number:  # a worker of the killed driver may have written late, into the directory of a kept checkpoint
        folders = tuple(f"{checkpoint_directory(metadata.checkpoint_id)}/" for metadata in may_stay)
        left = {path for path in left if not path.startswith(folders)}
    excused = files.undeleted | sim.storage.waiting()
    left = {path for path in left if path not in excused and path.partition("/")[0] not in excused}
    check(not left or sim.storage_threads.stuck, f"left behind in the storage: {sorted(left)}")


def _undecided(sim: Simulation) -> set[Any]:
    """The checkpoints and savepoints of a led job that it ended without an answer of: the record may name them. What of
    them is not to be kept the coordinator has forgotten at the end."""
    return set() if sim.coordinator is None else set(sim.coordinator._undecided)


def retained_files(sim: Simulation) -> set[str]:
    """The files of the checkpoints that the user wants to find at this end of the job."""
    return set().union(*map(_files_of, _retained(sim)))


def _retained(sim: Simulation) -> list[CheckpointMetadata]:
    assert sim.ended is not None
    if sim.coordinator is None:
        return []
    retention = sim.coordinator.settings.retention
    keeps = {
        JobStatus.FAILED: retention is not Retention.NO_EXTERNALIZED_CHECKPOINTS,
        JobStatus.CANCELED: retention is Retention.RETAIN_ON_CANCELLATION,
    }
    if not keeps.get(sim.ended.status, False):
        return []
    return [checkpoint.metadata for checkpoint in sim.coordinator.store.checkpoints]


def _files_of(metadata: CheckpointMetadata) -> set[str]:
    return checkpoint_files(metadata) | {metadata_file(metadata.checkpoint_id)}


def _metadata_of(sim: Simulation, checkpoints: set[Any]) -> list[CheckpointMetadata]:
    """Of those that look complete, as it was written."""
    return [sim.fall_backs.written(n) for n in sorted(checkpoints & set(sim.storage.completed_checkpoints()))]
