"""What a protocol core of the JobManager tells its host to do. Plain data: the host carries an instruction out, in the
order given, and brings the outcome back as an event (the docstring of each says which)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SlotIndex, SubtaskIndex
from tidegate.common.job_status import JobStatus
from tidegate.protocol.messages import FailureInfo, MasterToSlot, StateResult
from tidegate.storage.handles import CheckpointMetadata


@dataclass(frozen=True)
class SubmitGang:
    """Start the gang. Its workers come back as `Register` messages, its end as `on_gang_exit(attempt, error)`."""

    attempt: AttemptNumber
    num_slots: int


@dataclass(frozen=True)
class CancelGang:
    """The workers were asked to leave and have had their time: let Spark kill what is left, if anything is."""

    attempt: AttemptNumber


@dataclass(frozen=True)
class Send:
    """A control message to the worker process that registered itself with `incarnation` (unique per process start, so
    the host finds the connection by it alone). When the worker is gone the message is dropped silently."""

    slot: SlotIndex
    message: MasterToSlot
    incarnation: str


@dataclass(frozen=True)
class WriteMetadata:
    """Write `_metadata` of a checkpoint, atomically, on a helper thread, and answer with `on_metadata_written(attempt,
    checkpoint_id, error)`. The answer is due also after the attempt or the whole job has ended."""

    attempt: AttemptNumber
    metadata: CheckpointMetadata
    target: str = ""  # a savepoint: URI of its folder, instead of the job's checkpoint directory


@dataclass(frozen=True)
class RecordSnapshot:
    """High availability only: the metadata is written. Put the snapshot into the job's record, on a helper thread and
    in order, and answer with `on_recorded(attempt, checkpoint_id, outcome)`. The answer is due also after the attempt
    has ended: until it comes nobody knows what the next one starts from."""

    attempt: AttemptNumber
    checkpoint_id: CheckpointId
    path: str  # URI of its folder
    savepoint: bool
    stop: bool  # the job ends with this savepoint
    num_retained: int  # of completed checkpoints, this one among them; not of savepoints
    refused: tuple[CheckpointId, ...] = ()  # proved to be damaged: the record names them no longer


class Recording(enum.Enum):
    """What became of something that was to be put into the job's record."""

    WRITTEN = "it is in the record"
    SUPERSEDED = "the record names something newer"
    DEPOSED = "the record is another leader's, or nobody can tell: this one must stop"


@dataclass(frozen=True)
class DeleteSavepoint:
    """A savepoint has failed: delete its folder with all that was written so far. Best effort, on a helper thread, in
    order with WriteMetadata."""

    target: str


@dataclass(frozen=True)
class DeleteState:
    """Delete files, then directories with all that is in them (`storage.cleanup.Deletion`); paths are relative to the
    job's checkpoint directory. Best effort, on a helper thread, in order with WriteMetadata; nothing to answer."""

    files: tuple[str, ...]
    directories: tuple[str, ...]


@dataclass(frozen=True)
class DeleteOrphans:
    """No task runs any more: delete what aborted checkpoints and crashed attempts left in the job's checkpoint
    directory, and nothing that a completed checkpoint needs. Best effort, after every earlier DeleteState."""


@dataclass(frozen=True)
class DeleteClaimed:
    """The checkpoint of another job that this one was started from, and has claimed, is no longer needed. Best effort:
    nothing of it may be deleted while that job runs."""

    root: str
    checkpoint_id: CheckpointId
    older: bool = False  # those before it too: the directory is that of the job's leader before this one


@dataclass(frozen=True)
class CheckpointRequestDone:
    """The answer to `on_checkpoint_request` and `on_stop_request`: the checkpoint is complete (and the job finished, in
    the second case), or why it is not (`error`)."""

    request_id: int
    checkpoint_id: CheckpointId | None
    error: str | None = None
    target: str = ""  # of a savepoint: where it lies


@dataclass(frozen=True)
class DeliverResults:
    """The next chunk of `execute_and_collect` results (pickled list of values): each exactly once, in order by subtask.

    When the client has taken it, answer with `on_results_taken(operator_id, subtask, seq)`: the sink has only a bounded
    number of chunks under way that were not answered, so a slow client slows the job down instead of filling the memory
    of the driver."""

    operator_id: OperatorId
    subtask: SubtaskIndex
    seq: int
    payload: bytes


@dataclass(frozen=True)
class DiscoverSplits:
    """Ask the enumerator of this source for splits whose names are not in `known`, on a helper thread, and answer with
    `on_splits_discovered(attempt, operator_id, found)`: FoundSplits, or why it failed."""

    attempt: AttemptNumber
    operator_id: OperatorId
    known: frozenset[str]


@dataclass(frozen=True)
class FoundSplit:
    names: tuple[str, ...]
    payload: bytes  # the pickled SourceSplit


@dataclass(frozen=True)
class FoundSplits:
    """The answer to DiscoverSplits."""

    splits: tuple[FoundSplit, ...]
    complete: bool = False  # nothing else will ever turn up


@dataclass(frozen=True)
class StateReadDone:
    """The answer to `on_read_state`: what the slot has found, or None when no attempt runs that could be asked."""

    request_id: int
    results: tuple[StateResult, ...] | None
    took_ms: float = 0.0  # of the slot


@dataclass(frozen=True)
class StatusChanged:
    """For clients and the page; nothing to answer. `JobEnded` tells of the terminal ones as well."""

    status: JobStatus


@dataclass(frozen=True)
class JobEnded:
    """The last instruction of a job: nothing runs any more. `failures` holds the cause of each failed attempt that is
    remembered, oldest first; `failed_attempts` tells how many there were."""

    status: JobStatus  # FINISHED, FAILED or CANCELED; SUSPENDED: another JobManager goes on with it
    failures: tuple[AttemptFailure, ...]
    failed_attempts: int
    runtime_ms: float
    accumulators: tuple[bytes, ...] = ()  # by slot, when FINISHED
    reason: str = ""  # why there was no further restart, when FAILED
    engine_gone: bool = False  # FAILED only because nothing was there any more to run it on


@dataclass(frozen=True)
class AttemptFailure:
    """Why one attempt failed: the first cause, not what followed from it."""

    attempt: AttemptNumber
    at_ms: float
    failure: FailureInfo
    verdict: str = ""  # what the restart strategy said, for people to read


@dataclass(frozen=True)
class Log:
    level: int  # of the logging module
    text: str
    in_view: bool = False  # the view of the job tells it anyway, in another place than among the warnings


Instruction = (
    SubmitGang
    | CancelGang
    | Send
    | WriteMetadata
    | RecordSnapshot
    | DeleteSavepoint
    | DeleteState
    | DeleteOrphans
    | DeleteClaimed
    | CheckpointRequestDone
    | DeliverResults
    | DiscoverSplits
    | StateReadDone
    | StatusChanged
    | JobEnded
    | Log
)
