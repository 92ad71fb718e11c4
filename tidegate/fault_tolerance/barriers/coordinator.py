"""The checkpoint coordinator: triggers checkpoints, collects acknowledgements, completes or aborts, cleans up.

A pure state machine beside the JobMaster, which gets its outcomes. One checkpoint::

    the decider lets a request through  -> TriggerCheckpoint to the slots with source subtasks
    one acknowledgement per subtask, all are here: its files are registered -> WriteMetadata
    metadata written                    -> complete: older ones are subsumed, NotifyCheckpointComplete to all slots
    with high availability              -> RecordSnapshot, and complete when the job's record names it

    decline, timeout, failed write, newer one complete  -> NotifyCheckpointAborted to all slots, files deleted

Checkpoint ids grow for the whole life of the job. A checkpoint belongs to the attempt that triggered it: when that is
over the checkpoint is dropped, and an acknowledgement that still comes only has its files deleted. One that is being
recorded at that moment is undecided: the record says whether it is complete, and the next attempt waits for that.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from tidegate.common.errors import check_internal
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SlotIndex
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.completed_store import CompletedCheckpoint, CompletedCheckpointStore
from tidegate.fault_tolerance.barriers.failures import CheckpointFailureReason, FailureManager, Tolerance
from tidegate.fault_tolerance.barriers.pending_checkpoint import Acknowledgement, PendingCheckpoint, PendingState
from tidegate.fault_tolerance.barriers.request_decider import (
    CheckpointKind,
    CheckpointRequest,
    Queueing,
    RequestDecider,
)
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings, Retention
from tidegate.fault_tolerance.barriers.statistics import CheckpointRecord, CheckpointStats
from tidegate.fault_tolerance.job_side import FailAttempt, FinishAttempt, Outcome, TellSlots
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.network.elements import Alignment, CheckpointBarrier
from tidegate.protocol.instructions import (
    CheckpointRequestDone,
    DeleteClaimed,
    DeleteOrphans,
    DeleteSavepoint,
    DeleteState,
    Log,
    RecordSnapshot,
    WriteMetadata,
)
from tidegate.protocol.messages import (
    AckCheckpoint,
    DeclineCheckpoint,
    DrainSources,
    FailureInfo,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from tidegate.storage.cleanup import Deletion, FileProtection, SharedFileRegistry
from tidegate.storage.handles import CheckpointMetadata, EnumeratorState
from tidegate.storage.job_directory import checkpoint_directory, metadata_file
from tidegate.storage.location import below

_MAX_REMEMBERED = 100


@dataclass(frozen=True)
class StoppedWithSavepoint:
    """The savepoint that the job stops with is complete: what it holds is committed, and the job ends."""

    request_id: int | None
    point: RestorePoint  # what an attempt starts from that has to commit after a failure


class CheckpointCoordinator:
    """Every `on_...` method changes the state and returns what is to be done, in order.

    `root` is the URI of the job's checkpoint directory; `initial` the snapshot that the job starts from, if any: it is
    deleted only when the job owns it. Ids go on from its own, and from `highest_id` (of earlier runs in `root`).

    `epoch`: of the leader, with high availability; 0 without. `stopped`: an earlier leader has stopped the job at
    `initial`."""

    def __init__(
        self,
        graph: JobGraph,
        settings: CheckpointSettings,
        root: str,
        initial: RestorePoint | None = None,
        highest_id: CheckpointId | None = None,
        *,
        older: Sequence[RestorePoint] = (),
        others: Iterable[CheckpointMetadata] = (),
        epoch: int = 0,
        stopped: bool = False,
    ) -> None:
        """`older`: owned like the initial one, and behind it, newest first: they are deleted with it.

        `others`: complete checkpoints below `root` that are not this run's to delete, and may share files with the
        initial one, which is: these files stay."""
        self._graph = graph
        self._settings = settings
        self._root = root
        self._epoch = epoch
        self._decider = RequestDecider(settings)
        self._failures = FailureManager(settings.tolerable_failures)
        self._files = SharedFileRegistry()
        if initial is not None and initial.root == root:
            self._files.adopt(initial.metadata)  # discarded only when it is ours to delete
        for other in others:
            self._files.adopt(other)
        # Until it is deleted. A job that makes no checkpoints leaves it alone: nothing would take its place.
        self._claimed: list[RestorePoint] = []
        if initial is not None and initial.owned and settings.enabled:
            newest_in = {point.root: point for point in reversed([initial, *older])}
            self._claimed = list(newest_in.values())
        self.store = CompletedCheckpointStore(settings.num_retained, root)
        self.stats = CheckpointStats(settings.history_size)
        self._next_id = CheckpointId(max(highest_id or 0, initial.checkpoint_id if initial is not None else 0) + 1)
        self._attempt: AttemptNumber | None = None  # the running one, None between two
        self._pending: dict[CheckpointId, PendingCheckpoint] = {}  # in order of ids; all of the running attempt
        # Aborted while their metadata is written: deleted after that, and until then none of their files.
        self._doomed: set[CheckpointId] = set()
        self._undecided: dict[CheckpointId, PendingCheckpoint] = {}  # being recorded when their attempt was over
        self._refused: set[CheckpointId] = set()  # damaged ones, of earlier leaders too: the record may name them
        self._exceeded = False  # too many failures in a row: the attempt is about to be over
        self._drain: CheckpointRequest | None = None  # set from the drain of the sources until its savepoint is due
        self._drained = False  # the sources of this attempt were told to end
        self._failed_savepoints: dict[CheckpointId, str] = {}  # id -> folder, the latest: for late acknowledgements
        self.stopped: StoppedWithSavepoint | None = None  # the job ends with this savepoint, which is complete
        if stopped and initial is not None:
            self.stopped = StoppedWithSavepoint(None, initial)
        self._final_from: CheckpointId | None = None  # a checkpoint from this id on makes the end of data durable
        self._all_slots = tuple(SlotIndex(i) for i in range(graph.num_slots))
        sources = {graph.slot_of(v, s) for v, s in graph.all_tasks() if graph.vertices[v].is_source}
        self._source_slots = tuple(sorted(sources))
        self._out: list[Outcome] = []
        self.enumerators: Callable[[], dict[OperatorId, EnumeratorState]] = dict  # asked at each trigger

    # ------------------------------------------------------------ what can be seen from outside
    @property
    def settings(self) -> CheckpointSettings:
        return self._settings

    @property
    def in_progress(self) -> tuple[CheckpointId, ...]:
        return tuple(self._pending)

    @property
    def awaits_storage(self) -> bool:
        """An answer to WriteMetadata or RecordSnapshot is due."""
        under_way = (p.state is not PendingState.COLLECTING for p in self._pending.values())
        return bool(self._doomed or self._undecided) or any(under_way)

    @property
    def undecided(self) -> bool:
        """Only the job's record knows what the next attempt starts from."""
        return bool(self._undecided)

    def next_deadline(self) -> float | None:
        due = [p.deadline_ms for p in self._pending.values() if p.state is not PendingState.RECORDING]
        trigger = self._decider.next_deadline(len(self._pending))
        return min(due if trigger is None else [*due, trigger], default=None)

    # ------------------------------------------------------------ the life of attempts
    def on_attempt_running(self, attempt: AttemptNumber, now_ms: float) -> list[Outcome]:
        check_internal(self._attempt is None and not self._pending, "an attempt starts beside another one")
        self._attempt = attempt
        self._failures.reset()
        self._exceeded = False
        self._decider.on_running(now_ms)
        return self._flush(now_ms)

    def on_task_end_of_data(self) -> None:
        """One more task is at the end of its data, not all."""
        self._decider.on_task_end_of_data()

    def on_all_end_of_data(self, now_ms: float) -> list[Outcome]:
        """All tasks are at the end of their data: one more checkpoint, as soon as there is room for it; none when
        checkpointing is off."""
        if self._drain is not None:
            savepoint, self._drain = self._drain, None
            self._decider.on_drained(savepoint)
            return self._flush(now_ms)
        if not self._settings.enabled:
            self._stop(CheckpointFailureReason.JOB_ENDING, now_ms)
            self._out.append(FinishAttempt())
            return self._flush(now_ms)
        self._final_from = self._next_id
        self._decider.on_all_end_of_data(now_ms)
        return self._flush(now_ms)

    def on_attempt_over(self, now_ms: float) -> list[Outcome]:
        """The gang was told to leave. May be called for one that never ran."""
        self._stop(CheckpointFailureReason.ATTEMPT_OVER, now_ms)
        self._attempt = None
        self._final_from = None
        return self._flush(now_ms)

    def keeps_after(self, status: JobStatus) -> bool:
        """Whether completed checkpoints outlive a job that ends so, as the retention setting says."""
        retention = self._settings.retention
        return {
            JobStatus.FINISHED: False,
            JobStatus.FAILED: retention is not Retention.NO_EXTERNALIZED_CHECKPOINTS,
            JobStatus.CANCELED: retention is Retention.RETAIN_ON_CANCELLATION,
        }[status]

    def on_job_end(self, status: JobStatus, keep: bool = False) -> list[Outcome]:
        """Delete or keep the completed checkpoints, as the retention setting says; `keep` them in any case. What the
        job's record says of those that it was asked to name is not waited for any longer."""
        delete = not keep and not self.keeps_after(status)
        if delete:
            for checkpoint in self.store.clear():
                self._delete(self._files.discard(checkpoint.checkpoint_id))
            self._delete_claimed()
        for undecided in list(self._undecided.values()):
            n, text = undecided.checkpoint_id, "the job ended before it was known whether the job's record names it"
            self._refuse_request(undecided.request, f"savepoint or checkpoint {n}: {text}")
            undecided.request = dataclasses.replace(undecided.request, request_id=None)  # it is answered
            if delete and not undecided.savepoint:
                del self._undecided[n]
                self._delete(self._files.discard(n))
        # Nobody may be there any more to hear that the write of metadata has ended. What those checkpoints share with
        # others goes with them, not before: a write that ends late must not leave one that is complete to look at.
        left = Deletion()
        for doomed in sorted(self._doomed):
            left.add(self._files.discard(doomed))
        left.add(self._files.drain())
        self._delete(left)
        self._out.append(DeleteOrphans())
        return self._take()

    # ------------------------------------------------------------ requests and time
    def on_request(self, request_id: int, savepoint: bool, now_ms: float, target: str = "") -> list[Outcome]:
        """A user asks for a checkpoint; answered by CheckpointRequestDone."""
        kind = CheckpointKind.SAVEPOINT if savepoint else CheckpointKind.USER
        self._queue_request(CheckpointRequest(kind, request_id, target))
        return self._flush(now_ms)

    def on_wanted(self, now_ms: float) -> list[Outcome]:
        """A task has much that waits for the next checkpoint: the periodic one is due now, if there is any."""
        self._decider.on_wanted(now_ms)
        return self._flush(now_ms)

    def on_stop_request(self, request_id: int, drain: bool, target: str, now_ms: float) -> list[Outcome]:
        """A user wants the job to end with a savepoint; answered by CheckpointRequestDone when it cannot be taken. When
        it is complete it is in `stopped`, and answered at the end of the job."""
        request = CheckpointRequest(CheckpointKind.SAVEPOINT, request_id, target, stop=True)
        if self._is_stopping:
            self._refuse_request(request, "the job is being stopped already")
        elif self._attempt is None or self._final_from is not None:
            self._queue_request(request)
        elif drain:
            self._drain = request
            self._drained = True
            self._decider.on_draining()
            self._out.append(TellSlots(self._source_slots, DrainSources(attempt=self._attempt)))
        else:
            self._queue_request(request)
        return self._flush(now_ms)

    @property
    def _is_stopping(self) -> bool:
        """A savepoint to stop with is complete, under way, waits for its turn, or for the end of drained sources."""
        if self.stopped is not None or self._drain is not None or self._decider.stop_queued:
            return True
        return any(p.request.stop for p in self._pending.values())

    def _queue_request(self, request: CheckpointRequest) -> None:
        verdict = self._decider.request(request)
        match verdict:
            case Queueing.QUEUED:
                pass
            case Queueing.NOT_RUNNING:
                self._refuse_request(request, "the job is not running right now: try again when it is")
            case Queueing.QUEUE_FULL:
                self._refuse_request(request, "too many checkpoints were requested already: wait for them")
            case _:
                assert_never(verdict)

    def on_tick(self, now_ms: float) -> list[Outcome]:
        for pending in list(self._pending.values()):
            if now_ms >= pending.deadline_ms and pending.state is not PendingState.RECORDING:
                self._abort(pending, CheckpointFailureReason.EXPIRED, pending.describe_missing(), now_ms)
        return self._flush(now_ms)

    # ------------------------------------------------------------ answers
    def on_ack(self, ack: AckCheckpoint, now_ms: float) -> list[Outcome]:
        """Of the running attempt."""
        pending = self._pending.get(ack.checkpoint_id)
        if pending is None:
            return self.on_fenced_ack(ack)
        verdict = pending.acknowledge(ack.snapshot)
        match verdict:
            case Acknowledgement.SUCCESS:
                self.stats.on_acknowledged(ack.checkpoint_id, ack.snapshot, now_ms)
                if pending.fully_acknowledged:
                    self._write_metadata(pending, now_ms)
            case Acknowledgement.DUPLICATE:
                pass
            case Acknowledgement.UNKNOWN:
                text = f"an unknown task acknowledged checkpoint {ack.checkpoint_id}: please file a bug"
                self._log(logging.ERROR, text)
            case _:
                assert_never(verdict)
        return self._flush(now_ms)

    def on_fenced_ack(self, ack: AckCheckpoint) -> list[Outcome]:
        """Of an attempt or a checkpoint that is over: delete what was written for it, unless the checkpoint is complete
        (then this is only a repetition)."""
        late = self._failed_savepoints.get(ack.checkpoint_id)
        if late is not None:
            self._out.append(DeleteSavepoint(late))
        elif ack.checkpoint_id not in self._files.retained:
            self._delete(self._files.abandon(ack.checkpoint_id, [ack.snapshot]))
        return self._take()

    def on_decline(self, decline: DeclineCheckpoint, now_ms: float) -> list[Outcome]:
        pending = self._pending.get(decline.checkpoint_id)
        if pending is not None:
            reason = CheckpointFailureReason.of_decline(decline.reason)
            task = f"{self._graph.vertices[decline.vertex].name} ({decline.subtask})"
            self._abort(pending, reason, f"{task}: {decline.detail or decline.reason.value}", now_ms)
        return self._flush(now_ms)

    def on_metadata_written(
        self, attempt: AttemptNumber, checkpoint_id: CheckpointId, error: str | None, now_ms: float
    ) -> list[Outcome]:
        """`attempt` is the one that WriteMetadata named: an answer of another one completes nothing."""
        pending = self._pending.get(checkpoint_id)
        if checkpoint_id in self._doomed:
            self._doomed.discard(checkpoint_id)
            at_the_end = Deletion([metadata_file(checkpoint_id)], [checkpoint_directory(checkpoint_id)])
            self._delete(self._files.discard(checkpoint_id) or at_the_end)  # where it was discarded already
        elif pending is not None and pending.state is PendingState.WRITING and pending.attempt == attempt:
            if error is not None:
                self._abort(pending, CheckpointFailureReason.METADATA_FAILED, error, now_ms)
            elif self._epoch:
                self._record(pending)
            else:
                self._complete(pending, now_ms)
        return self._flush(now_ms)

    def on_recorded(self, checkpoint_id: CheckpointId, recorded: bool, now_ms: float) -> list[Outcome]:
        """The answer to RecordSnapshot. `recorded`: False when the record names a newer checkpoint."""
        undecided = self._undecided.pop(checkpoint_id, None)
        pending = self._pending.get(checkpoint_id)
        if undecided is not None:
            self._decide(undecided, recorded, now_ms)
        elif pending is not None and recorded:
            self._complete(pending, now_ms)
        elif pending is not None:
            pending.state = PendingState.WRITING  # the record has nothing to do with it any more
            self._abort(pending, CheckpointFailureReason.SUBSUMED, "by one that was recorded before", now_ms)
        return self._flush(now_ms)

    # ------------------------------------------------------------ trigger, complete, abort
    def _trigger(self, request: CheckpointRequest, attempt: AttemptNumber, now_ms: float) -> None:
        checkpoint_id = self._next_id
        self._next_id = CheckpointId(checkpoint_id + 1)
        # What was sent to a source before the trigger is in its snapshot, what is sent later is not: so is this.
        enumerators = self.enumerators()
        pending = PendingCheckpoint(
            checkpoint_id, request, attempt, self._graph, now_ms, self._settings.timeout_ms, enumerators
        )
        self._pending[checkpoint_id] = pending
        if not request.target:
            self._files.begin(checkpoint_id)
        tasks = sum(vertex.parallelism for vertex in self._graph.vertices)
        self.stats.on_triggered(CheckpointRecord(checkpoint_id, request.kind, attempt, now_ms, tasks))
        alignment, timeout = self._settings.alignment, self._settings.alignment_timeout_ms
        if pending.savepoint and alignment is not Alignment.AT_LEAST_ONCE:
            alignment, timeout = Alignment.ALIGNED, 0  # without in-flight records, so that it can be rescaled
        barrier = CheckpointBarrier(
            checkpoint_id=checkpoint_id,
            timestamp=int(now_ms),
            alignment=alignment,
            timeout_ms=timeout,
            savepoint=pending.savepoint,
            target=request.target,
            stop=request.stop,
        )
        self._out.append(TellSlots(self._source_slots, TriggerCheckpoint(attempt=attempt, barrier=barrier)))

    def _write_metadata(self, pending: PendingCheckpoint, now_ms: float) -> None:
        """All have acknowledged. From here on the end of other checkpoints cannot release its files."""
        metadata = pending.metadata(self._epoch)
        if pending.request.target:
            pending.begin_writing()
            self._out.append(WriteMetadata(pending.attempt, metadata, pending.request.target))
            return
        verdict, deletion = self._files.register(metadata)
        self._delete(deletion)
        if verdict is FileProtection.FILES_ARE_GONE:
            self._abort(pending, CheckpointFailureReason.BASE_GONE, f"checkpoint {pending.checkpoint_id}", now_ms)
            return
        pending.begin_writing()
        self._out.append(WriteMetadata(pending.attempt, metadata))

    def _record(self, pending: PendingCheckpoint) -> None:
        pending.begin_recording()
        n, request = pending.checkpoint_id, pending.request
        path = request.target or below(self._root, checkpoint_directory(n))
        retained = self._settings.num_retained
        refused = tuple(sorted(self._refused))
        self._out.append(RecordSnapshot(pending.attempt, n, path, pending.savepoint, request.stop, retained, refused))

    def on_refused(self, checkpoint_id: CheckpointId) -> None:
        """It is proved to be damaged, and an older one is restored."""
        self._refused.add(checkpoint_id)

    def _decide(self, undecided: PendingCheckpoint, recorded: bool, now_ms: float) -> None:
        """The attempt is over: nobody is told, but the next one starts from what is recorded."""
        n, request = undecided.checkpoint_id, undecided.request
        error = None if recorded else CheckpointFailureReason.SUBSUMED.text
        if request.request_id is not None and not (request.stop and recorded):  # a stop is answered by the job's end
            self._out.append(CheckpointRequestDone(request.request_id, n, error, request.target))
        if not recorded:
            self.stats.on_failed(n, CheckpointFailureReason.SUBSUMED, "by one that was recorded before", now_ms)
            self._delete(self._files.discard(n))
            return
        self.stats.on_completed(n, now_ms)
        if request.stop:
            self.stopped = StoppedWithSavepoint(request.request_id, RestorePoint(undecided.metadata(), request.target))
        elif not undecided.savepoint:
            self._keep(undecided, now_ms)

    def _keep(self, pending: PendingCheckpoint, now_ms: float) -> None:
        for subsumed in self.store.add(CompletedCheckpoint(pending.metadata(self._epoch), now_ms)):
            self._delete(self._files.discard(subsumed.checkpoint_id))
        if len(self.store.checkpoints) >= self._settings.num_retained:
            self._delete_claimed()

    def _complete(self, pending: PendingCheckpoint, now_ms: float) -> None:
        checkpoint_id = pending.checkpoint_id
        del self._pending[checkpoint_id]
        self._failures.on_success()
        self.stats.on_completed(checkpoint_id, now_ms)
        self._decider.on_checkpoint_ended(now_ms)
        request = pending.request
        if request.stop:
            self._complete_stop(pending, now_ms)
            return
        if request.request_id is not None:
            self._out.append(CheckpointRequestDone(request.request_id, checkpoint_id, target=request.target))
        if pending.savepoint:
            return  # the user's: it subsumes nothing, and nothing is committed because of it
        for older in [p for n, p in self._pending.items() if n < checkpoint_id and not p.savepoint]:
            self._abort(older, CheckpointFailureReason.SUBSUMED, f"by checkpoint {checkpoint_id}", now_ms)
        self._keep(pending, now_ms)
        complete = NotifyCheckpointComplete(attempt=pending.attempt, checkpoint_id=checkpoint_id)
        self._out.append(TellSlots(self._all_slots, complete))
        if self._final_from is not None and checkpoint_id >= self._final_from:
            self._stop(CheckpointFailureReason.JOB_ENDING, now_ms)
            self._out.append(FinishAttempt())

    def _complete_stop(self, pending: PendingCheckpoint, now_ms: float) -> None:
        """The one savepoint that things are committed because of: nothing comes after it."""
        complete = NotifyCheckpointComplete(attempt=pending.attempt, checkpoint_id=pending.checkpoint_id)
        self._out.append(TellSlots(self._all_slots, complete))
        self._stop(CheckpointFailureReason.JOB_ENDING, now_ms)
        point = RestorePoint(pending.metadata(), pending.request.target)
        self.stopped = StoppedWithSavepoint(pending.request.request_id, point)
        self._out.append(FinishAttempt())

    def _abort(self, pending: PendingCheckpoint, reason: CheckpointFailureReason, detail: str, now_ms: float) -> None:
        checkpoint_id = pending.checkpoint_id
        del self._pending[checkpoint_id]
        if pending.state is PendingState.RECORDING:
            self._undecided[checkpoint_id] = pending
            self._decider.on_checkpoint_ended(now_ms)
            return
        if pending.request.target:
            self._forget_savepoint(pending)
        elif pending.state is PendingState.WRITING and reason is not CheckpointFailureReason.METADATA_FAILED:
            self._doomed.add(checkpoint_id)
        elif pending.state is PendingState.WRITING:
            self._delete(self._files.discard(checkpoint_id))
        else:
            self._delete(self._files.abandon(checkpoint_id, pending.snapshots.values()))
        self.stats.on_failed(checkpoint_id, reason, detail, now_ms)
        self._decider.on_checkpoint_ended(now_ms)
        what = "savepoint" if pending.savepoint else "checkpoint"
        text = f"{what} {checkpoint_id} failed: {reason.text} ({detail})"
        self._log(logging.WARNING if reason.counts else logging.INFO, text)
        if pending.request.request_id is not None:
            self._out.append(CheckpointRequestDone(pending.request.request_id, checkpoint_id, text))
        if reason is not CheckpointFailureReason.ATTEMPT_OVER:
            aborted = NotifyCheckpointAborted(attempt=pending.attempt, checkpoint_id=checkpoint_id)
            self._out.append(TellSlots(self._all_slots, aborted))
        if pending.kind is CheckpointKind.FINAL:
            self._decider.on_final_failed(now_ms)
        if pending.request.stop and reason is not CheckpointFailureReason.ATTEMPT_OVER:
            self._go_on_after_failed_stop(text)
        if pending.savepoint:
            return  # the user's business: the job does not fail because of it
        if self._failures.on_failure(reason) is Tolerance.EXCEEDED:
            self._exceeded = True
            self._out.append(FailAttempt(FailureInfo(summary=self._intolerable(text))))

    def _forget_savepoint(self, pending: PendingCheckpoint) -> None:
        self._failed_savepoints[pending.checkpoint_id] = pending.request.target
        while len(self._failed_savepoints) > _MAX_REMEMBERED:
            del self._failed_savepoints[next(iter(self._failed_savepoints))]
        self._out.append(DeleteSavepoint(pending.request.target))

    def _go_on_after_failed_stop(self, text: str) -> None:
        """The sources go on when they hear that the savepoint was aborted, unless they have come to their end."""
        self._decider.on_stop_failed()
        if self._drained:
            self._exceeded = True  # no more checkpoints of this attempt
            failure = FailureInfo(summary=f"the job could not be stopped: {text}")
            # To resume without a checkpoint is to begin anew: that is for the restart strategy to decide.
            self._out.append(FailAttempt(failure, resume=self._settings.enabled))

    def _stop(self, reason: CheckpointFailureReason, now_ms: float) -> None:
        """No more checkpoints in this attempt."""
        if self._drain is not None:
            self._refuse_request(self._drain, reason.text)
        self._drain = None
        self._drained = False
        for request in self._decider.on_stopped():
            self._refuse_request(request, reason.text)
        for pending in list(self._pending.values()):
            self._abort(pending, reason, f"attempt {pending.attempt}", now_ms)

    # ------------------------------------------------------------ small parts
    def _intolerable(self, latest: str) -> str:
        tolerable = self._failures.tolerable
        return (
            f"{latest}; the job tolerates {tolerable} failed checkpoints in a row "
            "(execution.checkpointing.tolerable-failed-checkpoints)"
        )

    def _refuse_request(self, request: CheckpointRequest, error: str) -> None:
        if request.request_id is not None:
            self._out.append(CheckpointRequestDone(request.request_id, None, error))

    def _delete(self, deletion: Deletion) -> None:
        if deletion:
            self._out.append(DeleteState(tuple(deletion.files), tuple(deletion.directories)))

    def _delete_claimed(self) -> None:
        claimed, self._claimed = self._claimed, []
        for point in claimed:
            self.store.initial_deleted = True
            if point.root == self._root:
                self._delete(self._files.discard(point.checkpoint_id))
            else:
                older = point.metadata.epoch > 0 and point.metadata.job_id == self._graph.job_id
                self._out.append(DeleteClaimed(point.root, point.checkpoint_id, older))

    def _log(self, level: int, text: str) -> None:
        self._out.append(Log(level, text))

    def _flush(self, now_ms: float) -> list[Outcome]:
        """Trigger what is due, then hand out all outcomes."""
        while self._attempt is not None and not self._exceeded:
            request = self._decider.take(now_ms, len(self._pending))
            if request is None:
                break
            self._trigger(request, self._attempt, now_ms)
        return self._take()

    def _take(self) -> list[Outcome]:
        out, self._out = self._out, []
        return out

    def check_invariants(self) -> None:
        """For tests and simulations: holds between any two calls."""
        check_internal(not self._out, "outcomes were left behind")
        check_internal(self._attempt is not None or not self._pending, "a pending checkpoint without an attempt")
        check_internal(list(self._pending) == sorted(self._pending), "pending checkpoints out of order")
        check_internal(all(n < self._next_id for n in self._pending), "a pending checkpoint from the future")
        check_internal(not self._doomed & self._pending.keys(), "a checkpoint is doomed and pending")
        check_internal(not self._undecided.keys() & self._pending.keys(), "a checkpoint is undecided and pending")
        check_internal(self._epoch > 0 or not self._undecided, "undecided without a record")
        for pending in self._pending.values():
            pending.check_invariants()
            check_internal(pending.attempt == self._attempt, "a pending checkpoint of another attempt")
        self._files.check_invariants()
        self._decider.check_invariants()
        self.store.check_invariants()
