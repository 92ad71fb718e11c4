"""Control messages between the JobManager and the slots; `codec` makes them bytes.

Every message carries the attempt number of the gang it belongs to; the receiver drops one of another attempt. The
order of a healthy attempt::

    slot  -> Register           JM -> Deploy      (once all slots are registered)
    slot  -> SlotReady          JM -> Start       (once all slots are ready: state restored, functions opened)
    slot  -> TaskEndOfData ...  JM -> Finish      (once all tasks are at end of data and all is durable)
    slot  -> SlotFinished       JM -> Leave       (once all slots are finished: everything committed and closed)

`TriggerCheckpoint`, `AckCheckpoint` and the rest come between Start and Finish. `Leave` may come at any time.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec.structs import force_setattr

from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SlotIndex, SubtaskIndex, VertexId
from tidegate.common.metric_values import MetricReport
from tidegate.common.texts import bounded, encodable
from tidegate.network.elements import CheckpointBarrier
from tidegate.storage.handles import TaskSnapshot

PROTOCOL_VERSION = 5  # counts up whenever a message changes so that the version before cannot read it
MAX_SUMMARY = 4_000  # characters; also of other texts of a line or two
MAX_TRACEBACK = 32_000


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    attempt: AttemptNumber


class FailureInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One failure as the user should read it. However long the texts are that it is made of, what it keeps is bounded,
    and UTF-8 can say it: it travels, it is kept for the life of the job, and it is shown in several places."""

    summary: str  # one line: operator, subtask, what it was doing, the exception
    traceback: str = ""  # the user's own frames and exception, no engine or Java noise
    operator: str = ""  # operator name, "" when no operator is to blame
    subtask: int = -1
    permanent: bool = False  # True: a restart cannot help (e.g. the plan cannot be loaded): fail the job at once
    consequence: bool = False  # True: follows from a failure elsewhere (a peer went away); gives way to a better cause
    cause: str = ""  # equal for the same failure of user code on the same record; "": it may not come again
    corrupt_checkpoint: int = 0  # proved to be damaged while it was restored: the one before it is tried next

    def __post_init__(self) -> None:
        force_setattr(self, "summary", bounded(encodable(self.summary), MAX_SUMMARY))
        force_setattr(self, "traceback", bounded(encodable(self.traceback), MAX_TRACEBACK))
        force_setattr(self, "operator", bounded(encodable(self.operator), MAX_SUMMARY))


# ---------------------------------------------------------------- state that somebody looks at


class StateLookup(msgspec.Struct, frozen=True, kw_only=True):
    """A look at the keyed state of one operator in one subtask: of the task of `vertex` that the slot has."""

    vertex: VertexId
    operator_id: OperatorId
    state: str
    query: bytes  # the JobManager's pickle of (keys or None, window or None, limit)


class StateProblem(enum.Enum):
    """Why a look at state has found nothing to answer."""

    UNKNOWN_STATE = "unknown state"  # the operator has no such keyed state; `names` are those that it has
    WRONG_KEY = "wrong key"  # there is no such key, and the keys are of other types: `names`
    HIDDEN = "hidden"  # its descriptor says that nobody looks
    TOO_LARGE = "too large"  # the answer, or what has to be read for it
    PUT_OFF = "put off"  # lookups before it in the message have taken long enough: to be asked again
    FAILED = "failed"  # something raised, such as the user's get_result()


class StateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one lookup."""

    answer: bytes = b""  # the slot's pickle of a list of `state.reading.Found`
    attempt: AttemptNumber = AttemptNumber(0)
    watermark: int | None = None  # of the task, in that moment; None: it has none yet
    checkpoint: int | None = None  # that it belongs to, and is never rolled back; None: it is live
    problem: StateProblem | None = None
    detail: str = ""
    names: tuple[str, ...] = ()


class StateReport(msgspec.Struct, frozen=True, kw_only=True):
    """One keyed state in one subtask, as of a moment ago."""

    vertex: VertexId
    subtask: SubtaskIndex
    operator_id: OperatorId
    state: str
    kind: str  # as `storage.handles.KeyedStateInfo`, likewise the next
    per_window: bool
    type: str  # as declared; "": not declared
    key_types: tuple[str, ...]  # what some keys are
    entries: int
    exact: bool  # the number of entries is; the bytes never are
    bytes: int
    hidden: bool = False  # by its descriptor


# ---------------------------------------------------------------- slot -> JobManager


class Register(Message, frozen=True):
    """First message of a slot. A second one for the same slot and attempt (Spark retried the stage) is told to
    leave."""

    slot: SlotIndex
    data_address: str  # tcp://host:port of the slot's data socket
    host: str
    pid: int
    incarnation: str  # random per process start; tells a Spark retry from the original
    protocol: int = PROTOCOL_VERSION  # of the sender
    sent_ms: float = 0.0  # with high availability: now, by the worker's clock of leases


class SlotReady(Message, frozen=True):
    slot: SlotIndex


class SourceSplits(Message, frozen=True):
    """Before SlotReady, by a restored subtask of a source whose splits are discovered: what its state says that it has,
    or has had. Snapshots of older versions say it nowhere else."""

    operator_id: OperatorId
    subtask: SubtaskIndex
    names: list[str]


class SlotHeartbeat(Message, frozen=True):
    """Sent by a helper thread, so slow user code is not taken for a dead worker."""

    slot: SlotIndex
    metrics: tuple[MetricReport, ...] = ()
    accumulators: bytes = b""  # `common.accumulators.dump`, as of a moment ago; b"" when they are too large for this
    sent_ms: float = 0.0  # by the worker's own clock of leases, which nobody else reads
    states: tuple[StateReport, ...] = ()


class TaskEndOfData(Message, frozen=True):
    """The task has processed all its input and flushed. It still answers to checkpoints."""

    vertex: VertexId
    subtask: SubtaskIndex


class SlotFinished(Message, frozen=True):
    """Everything committed and closed after `Finish`."""

    slot: SlotIndex
    accumulators: bytes = b""  # `common.accumulators.dump`
    metrics: tuple[MetricReport, ...] = ()


class WatermarkReport(Message, frozen=True):
    """How far the sources of this slot are that wait for each other. Sent every update interval of the group."""

    slot: SlotIndex
    watermarks: dict[str, int]  # group -> the lowest watermark of its sources here


class SlotWarning(Message, frozen=True):
    """Something goes wrong in a slot that may still end well: for the driver's log, nothing follows from it."""

    slot: SlotIndex
    text: str

    def __post_init__(self) -> None:
        force_setattr(self, "text", bounded(encodable(self.text), MAX_SUMMARY))


class TaskFailed(Message, frozen=True):
    slot: SlotIndex
    failure: FailureInfo


class FaultToleranceMessage(Message, frozen=True):
    """Base of what a slot tells the job's model of fault tolerance: the JobMaster hands it on unread."""


class AckCheckpoint(FaultToleranceMessage, frozen=True):
    """The task's part of the checkpoint is durable."""

    checkpoint_id: CheckpointId
    snapshot: TaskSnapshot


class DeclineReason(enum.Enum):
    """Why a task cannot give its part of a checkpoint."""

    SNAPSHOT_FAILED = "snapshot failed"  # a function or the state backend raised while the state was frozen
    WRITE_FAILED = "write failed"  # the storage did not take what was frozen
    STATE_TOO_LARGE = "state too large"  # the storage keeps state in memory and refuses this much of it
    SUPERSEDED = "superseded"  # a barrier of a newer checkpoint came before all barriers of this one were here


class DeclineCheckpoint(FaultToleranceMessage, frozen=True):
    """The task will not acknowledge this checkpoint: it cannot become complete."""

    checkpoint_id: CheckpointId
    vertex: VertexId
    subtask: SubtaskIndex
    reason: DeclineReason
    detail: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "detail", bounded(encodable(self.detail), MAX_SUMMARY))


class WantCheckpoint(FaultToleranceMessage, frozen=True):
    """Much waits in this slot for the next checkpoint to be completed: it should not wait for the interval. A wish, to
    which nothing is answered."""


class CollectChunk(Message, frozen=True):
    """Results of `execute_and_collect`: pickled list of values. `seq` counts per subtask from 0 and survives restarts,
    so a chunk that is sent again after a recovery is recognised and dropped."""

    operator_id: OperatorId
    subtask: SubtaskIndex
    seq: int
    payload: bytes


class StateRead(Message, frozen=True):
    """The answer to ReadState."""

    slot: SlotIndex
    request_id: int
    results: tuple[StateResult, ...]  # one for each lookup, in their order
    took_ms: float  # of the mailbox thread


# ---------------------------------------------------------------- JobManager -> slot


class Deploy(Message, frozen=True):
    addresses: bytes  # msgpack of the data address of every slot, by slot index: encoded once for all of them
    plan: bytes  # cloudpickled tidegate.taskmanager.deployment.SlotPlan
    restore: bytes = b""  # msgpack of storage.handles.SlotRestore, b"" for a fresh start
    protocol: int = PROTOCOL_VERSION  # of the sender
    heard_ms: float = 0.0  # these two as in `MasterHeartbeat`: nothing is deployed without a bound
    valid_ms: float | None = None


class Start(Message, frozen=True):
    pass


class TriggerCheckpoint(Message, frozen=True):
    """To the slots that hold source subtasks."""

    barrier: CheckpointBarrier


class DrainSources(Message, frozen=True):
    """To the slots that hold source subtasks: come to the end of your data now, wherever you are."""


class NotifyCheckpointComplete(Message, frozen=True):
    checkpoint_id: CheckpointId


class NotifyCheckpointAborted(Message, frozen=True):
    checkpoint_id: CheckpointId


class Finish(Message, frozen=True):
    """All tasks are at end of data, or stopped behind a savepoint, and everything is durable: commit what is pending,
    close, answer SlotFinished. May come instead of Start: then there is only something left to commit."""


class Leave(Message, frozen=True):
    """Leave at once; the gang is over (finished, cancelled or failed)."""

    reason: str


class CollectAck(Message, frozen=True):
    """The client has taken all chunks up to and including `seq`."""

    operator_id: OperatorId
    subtask: SubtaskIndex
    seq: int


class WatermarkLimits(Message, frozen=True):
    """Sources of these groups wait with what has a higher watermark."""

    limits: dict[str, int]  # group -> highest watermark


class AssignSplits(Message, frozen=True):
    """To one subtask of a source: splits that were discovered. What is sent before TriggerCheckpoint is part of that
    checkpoint, what is sent after it is not: messages to a slot keep their order."""

    operator_id: OperatorId
    subtask: SubtaskIndex
    number: int  # counts the messages to this subtask in this attempt, from 1: a repetition is recognised
    splits: list[bytes]  # pickled SourceSplits
    complete: bool  # no more will come


class ReadState(Message, frozen=True):
    """Look at state between two slices of work, and answer StateRead. Whatever is asked, the attempt goes on."""

    request_id: int
    lookups: tuple[StateLookup, ...]


class MasterHeartbeat(Message, frozen=True):
    """With high availability the driver leads for `valid_ms` from the moment at which it sent this at the latest, and
    that was after `heard_ms`: a worker that hears nothing newer leaves by then. So its clock is all it needs."""

    heard_ms: float = 0.0  # `sent_ms` of the latest heartbeat that the driver has had of this worker
    valid_ms: float | None = None  # None: no high availability


SlotToMaster = (
    Register
    | SlotReady
    | SourceSplits
    | SlotHeartbeat
    | TaskEndOfData
    | SlotFinished
    | WatermarkReport
    | SlotWarning
    | TaskFailed
    | AckCheckpoint
    | DeclineCheckpoint
    | WantCheckpoint
    | CollectChunk
    | StateRead
)
MasterToSlot = (
    Deploy
    | Start
    | TriggerCheckpoint
    | DrainSources
    | NotifyCheckpointComplete
    | NotifyCheckpointAborted
    | Finish
    | Leave
    | CollectAck
    | WatermarkLimits
    | AssignSplits
    | ReadState
    | MasterHeartbeat
)
