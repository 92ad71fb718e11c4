"""What a model of fault tolerance does inside a task: the interface between the two.

A task takes batches from its channels (or polls its source), drives its operators and puts results into channels. It
does not know how a failure is survived. That is the business of a *model*, which is given the task as a `TaskPort` and
is told, through a `TaskSide`, what happens in it. There is one `TaskSide` per task and attempt, called on the mailbox
thread only.

The interface was cut so that three models fit, and it has nothing that none of them needs:

================== =============================== ============================== ==============================
what happens       barriers (Flink)                acknowledgement (Storm)        transaction log (Dataflow)
================== =============================== ============================== ==============================
`restore`          in-flight records go first      nothing: sources read again    the log says what was seen
                                                                                  and what was not yet sent
`batch_enters`     not asked                       the ids are being worked on    False if the log has it: it
                                                                                  was seen before
`results_made`     not asked                       results get ids below those    withheld in the channels and
                                                   of their causes, which are     logged with the changes of
                                                   acknowledged; a source keeps   state; released when the
                                                   what it sent, to send again    log is durable
`element_arrived`, barriers: block, record,        not used                       not used
`element_reached`  take the snapshot
`on_message`       trigger (at sources), complete  a tree of records is done,     the log may be cut
                   and aborted (sinks commit)      or is to be sent again
`outputs_sent`     a waiting barrier has left      not used                       not used
`tick`,            alignment timeouts              not acknowledged in time       a bundle is closed by time
`next_deadline`
`paused`           behind the savepoint that       too many records without       too many bundles that are
                   the job stops with              an acknowledgement             not durable
`may_end`          always                          all is acknowledged            all that was logged is sent
================== =============================== ============================== ==============================

- **At a source** a model needs no call of its own. What a source emits passes `results_made` like all results, its
  position is operator state that `TaskPort.freeze` freezes, and a trigger is a message.
- **At a sink** neither. A sink prepares in `TaskPort.prepare_snapshot`, its committables are operator state, and it
  commits in `TaskPort.notify_complete`; at the end of the job the slot has all sinks commit.
- **Results are held back** by sending through another kind of channel (`TaskModel.output_channel`), which keeps what it
  is given until the model releases it. Whatever a task makes passes there: results of records, of timers, of
  asynchronous calls, and watermarks. A model that holds back sets `paused` when it holds too much: the memory of a task
  stays bounded.
- **The hot path** pays one look at `follows_records` per batch. A model that does not follow records (barriers, none)
  costs nothing more; the others cost two calls per batch, never one per record.
- **Messages and elements of the model** are the ones that task and slot hand on without looking at them. A new model
  adds its own to `ModelMessage` and `ModelElement`.

What a model does in the JobManager (who coordinates, what a restart begins with) is not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from tidegate.common.ids import ChannelAddress, CheckpointId
from tidegate.contracts.batches import Batch
from tidegate.fault_tolerance.frozen_operator import FrozenOperator
from tidegate.graph.task_place import TaskPlace
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.elements import CheckpointBarrier
from tidegate.network.serialization import Element, SerializedElement
from tidegate.protocol.messages import (
    Message,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from tidegate.state.backend import StateSource
from tidegate.storage.handles import TaskRestore


class PreparedSnapshot(NamedTuple):
    waiting: dict[str, list[SerializedElement]]
    """What waits between operators, by the key of the link (`JobVertex.links`)."""
    error: BaseException | None
    """The failure of an operator: there can be no snapshot."""


ModelElement = CheckpointBarrier
"""The control elements that belong to a model."""

ModelMessage = TriggerCheckpoint | NotifyCheckpointComplete | NotifyCheckpointAborted
"""The messages of the JobManager that belong to a model."""


class TaskPort(Protocol):
    """What a model sees of the task that it protects, and may do to it."""

    @property
    def place(self) -> TaskPlace: ...

    @property
    def inputs(self) -> list[InputChannel]:
        """The input gate. A model may block channels, and take its own elements out of their queues."""

    @property
    def out_channels(self) -> list[OutputChannel]:
        """All output channels, of all edges. A model may put elements into them, and take elements out."""

    @property
    def records_in(self) -> int:
        """Records processed so far."""

    @property
    def at_end(self) -> bool:
        """All input was processed, and the operators have finished. False for a task that was drained: a job that goes
        on from its snapshot has more to process."""

    def put_restored_first(self) -> None:
        """Restored batches on some inputs go before everything on the others: their order among each other counts."""

    def own_records(self, edge_key: str, batch: Batch) -> Batch:
        """The records of a keyed edge whose keys belong to this subtask."""

    def edge_key(self, address: ChannelAddress) -> str:
        """The name of a channel's edge that is stable across restarts."""

    # ------------------------------------------------------------ snapshots of the operators
    def prepare_snapshot(self, checkpoint_id: CheckpointId, may_hold: bool) -> PreparedSnapshot:
        """Have the operators emit what must not stay behind a snapshot. `may_hold`: records that wait between them may
        become part of it; otherwise they are worked off, however long that takes. Raises what is no failure of an
        operator."""

    def restore_waiting(self, key: str, elements: list[Element]) -> None:
        """What waited between two operators, before anything else goes there."""

    def freeze(self, checkpoint_id: CheckpointId, timestamp: int, full: bool) -> list[FrozenOperator]:
        """The state of all operators, and time, as they are now; each is written on a helper thread."""

    def notify_complete(self, checkpoint_id: CheckpointId) -> None:
        """What was frozen for this checkpoint is durable: sinks commit."""

    def notify_aborted(self, checkpoint_id: CheckpointId) -> None:
        """What was frozen for this checkpoint was given up: the next increment must hold it too."""

    # ------------------------------------------------------------ the world outside
    def now_ms(self) -> float: ...

    def send(self, message: Message) -> None:
        """To the JobManager."""

    def run_async(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` on a helper thread; then call `done(result, error)` on the mailbox thread."""

    def explain(self, error: BaseException) -> str:
        """A failure in one line, as the user should read it."""


class TaskSide:
    """One model in one task. The base does nothing at all; a model overrides what concerns it.

    The order of calls: `restore` at most once, before anything else. Then, from the start of the task to its close, all
    others in any order. Any of them may raise: the attempt is then over."""

    follows_records: ClassVar[bool] = False
    """Whether `batch_enters` and `results_made` are called at all."""

    def works_off(self, what: ModelMessage | ModelElement) -> bool:
        """Whether it must not hear of this while records wait between the operators of the task. False: it may after a
        while, and a snapshot that it takes then holds them."""
        return True

    paused = False
    """While True, the task takes no input, fires no timers and emits nothing; messages and elements still come."""

    def restore(self, checkpoint_id: CheckpointId, restore: TaskRestore, source: StateSource) -> None:
        """The operators' state is restored; this is the time for what else the snapshot holds. Raises SnapshotError
        when that cannot be read."""

    def batch_enters(self, channel: InputChannel, batch: Batch) -> bool:
        """Records are about to be processed: a batch, or a part of one. False: they were seen before and are
        dropped."""
        return True

    def results_made(self) -> None:
        """The task has done a piece of work, after which its output channels may hold something new. Nothing was sent
        meanwhile. May also be called when there is nothing new. The batches under construction in the channels are
        flushed later, when they are full or old; a model that wants to see them now flushes."""

    def outputs_sent(self) -> None:
        """Elements may have left the output channels."""

    def element_arrived(self, channel: InputChannel, element: ModelElement, now_ms: float) -> None:
        """An element of the model came from the network; it stands at the end of the channel's queue."""

    def element_reached(self, channel: InputChannel, element: ModelElement, now_ms: float) -> None:
        """Everything before the element on its channel was processed, and it was taken from the queue."""

    def on_message(self, message: ModelMessage, now_ms: float) -> None:
        """The JobManager has sent a message of the model to the slot of this task."""

    def tick(self, now_ms: float) -> None:
        """Called in every round of the slot, and not later than `next_deadline`."""

    def next_deadline(self) -> float | None:
        """When `tick` has something to do even if nothing arrives."""
        return None

    @property
    def may_end(self) -> bool:
        """Asked when all data was processed and the operators have finished, and again until it is True: the end of
        data is then passed on."""
        return True


@dataclass(frozen=True)
class TaskModel:
    """A model, as the builder of a slot is given it."""

    make: Callable[[TaskPort], TaskSide]
    output_channel: type[OutputChannel] = OutputChannel
    """What tasks send through; a model that holds results back has `network.withholding.WithholdingChannel` here."""
