"""The end of a chain: writers, and the commit of what they prepared.

Two phases: at barrier n the writer's committables become part of checkpoint n; when n is complete they are committed on
a helper thread, with retries. Until that has succeeded they stay in every later checkpoint, so a crash commits them
again. Nothing is committed before its checkpoint is complete, and nothing is dropped: when the retries are used up the
job fails, and recovers with the committables in its state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.common.errors import TidegateError
from tidegate.common.ids import CheckpointId
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.connectors import SinkContext
from tidegate.contracts.functions import SinkFunction
from tidegate.contracts.state import ListStateDescriptor
from tidegate.graph.operator_specs import SinkSpec
from tidegate.taskmanager.commit_retries import FailedTry, commit_with_retries
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import FunctionOperator, Operator, bind
from tidegate.taskmanager.operators.batch_mode import HandsOverCommittables, RemembersBatches
from tidegate.taskmanager.operators.pieces import Pieces

_AT_THE_END = CheckpointId(2**62)  # "checkpoint" of what is committed when the job has finished


class CommitFailedError(TidegateError):
    """Committables could not be committed within the allowed number of tries."""


class SinkOperator(Operator, HandsOverCommittables, RemembersBatches):
    COMMITTABLES = "tidegate.sink.committables"
    WRITER_STATE = "tidegate.sink.writer"
    OF_ALL = "tidegate.sink.committables.all"  # union: what all subtasks see of them, for sinks that want that

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        spec = context.node.spec
        if not isinstance(spec, SinkSpec):
            raise TypeError("SinkOperator needs a SinkSpec")
        self._sink = spec.sink
        self._writer: Any = None
        self._committer: Any = None
        self._memo: Any = None  # of the writer in the micro-batch before
        # Committables in order, each with the checkpoint it waits for.
        self._waiting: list[tuple[CheckpointId, Any]] = []
        self._committing: int = 0  # how many of `_waiting`, from the front, are on the helper thread
        self._commit_up_to = CheckpointId(0)  # the highest checkpoint known to be complete
        self._retried = context.metrics.counter("retriedCommittables")  # the names are Flink's
        context.metrics.gauge("pendingCommittables", lambda: len(self._waiting))
        self.given: int = 0
        self._pieces = Pieces()

    def resume(self, memo: Any) -> None:
        self._memo = memo

    def memo(self) -> Any:
        return self._writer.memo()

    def open(self) -> None:
        c = self.context
        self._state = c.operator_state.get_list_state(ListStateDescriptor(self.COMMITTABLES))
        self._writer_state = c.operator_state.get_list_state(ListStateDescriptor(self.WRITER_STATE))
        restored = list(self._state.get())
        self._of_all = None
        if self._sink.sees_all_committables:
            self._of_all = c.operator_state.get_union_list_state(ListStateDescriptor(self.OF_ALL))
        where = SinkContext(
            c.job_id,
            self.name,
            c.subtask,
            c.parallelism,
            c.attempt,
            c.clock,
            restored_state=list(self._writer_state.get()),
            restored_checkpoint_id=c.restored_checkpoint,
            operator_id=c.sink_owner or self.node.operator_id,
            restored_committables=restored,
            committables_of_all=[] if self._of_all is None else list(self._of_all.get()),
            of_one_attempt=c.sink_owner is not None,
        )
        post = c.post
        if post is not None:
            where.wake = lambda: post(_look_again)
        where.memo = self._memo
        try:
            self._committer = self._sink.create_committer()
            self._writer = self._sink.create_writer(where)
        except Exception as error:
            self.fail("opening the sink", error)
        self._waiting = [(CheckpointId(0), committable) for committable in restored]
        self._commit_ready()

    @property
    def available(self) -> bool:
        available: bool = self._writer.available
        return available

    def process(self, batch: RecordBatch) -> None:
        """A piece at a time, until the time is up."""
        now_ms, pieces = self.context.clock.now_ms, self._pieces
        count, start = len(batch.values), 0
        while True:
            end = start + pieces.size if self.limit.watched else count
            piece = batch if start == 0 and count <= end else batch.slice(start, end)
            began = now_ms()
            try:
                self._writer.write_batch(piece.values, piece.timestamps)
            except Exception as error:
                self.fail("write_batch()", error)  # which record of the batch it was only the writer knows
            pieces.note(len(piece), now_ms() - began)
            self.given += len(piece)
            if end >= count:
                return
            if self.limit.expired:
                self.left = batch.slice(end, count)
                return
            start = end

    def finish(self) -> None:
        self._flush(end_of_input=True)

    def prepare_barrier(self, checkpoint_id: CheckpointId) -> None:
        self._flush(end_of_input=False)

    def _flush(self, end_of_input: bool) -> None:
        try:
            self._writer.flush(end_of_input)
        except Exception as error:
            self.fail("flush()", error)

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        self._prepare(checkpoint_id)
        waiting = [committable for _, committable in self._waiting]
        self._state.update(waiting)
        if self._of_all is not None:
            self._of_all.update([self._sink.shown_to_all(committable) for committable in waiting])
        try:
            self._writer_state.update(self._writer.snapshot_state(checkpoint_id))
        except Exception as error:
            self.fail("snapshot_state()", error)

    def _prepare(self, checkpoint_id: CheckpointId) -> None:
        try:
            prepared = self._writer.prepare_commit()
        except Exception as error:
            self.fail("prepare_commit()", error)
        if prepared and self._committer is None:
            self.fail("prepare_commit()", TidegateError("the sink returned committables but has no committer"))
        self._waiting.extend((checkpoint_id, committable) for committable in prepared)

    def notify_complete(self, checkpoint_id: CheckpointId) -> None:
        self._commit_up_to = max(self._commit_up_to, checkpoint_id)
        self._commit_ready()

    def commit_all(self) -> None:
        self._prepare(_AT_THE_END)
        self._commit_up_to = _AT_THE_END
        self._commit_ready()

    def take_committables(self) -> list[Any]:
        self._prepare(_AT_THE_END)
        try:
            self._writer.snapshot_state(_AT_THE_END)  # what was prepared is needed after this writer is closed
        except Exception as error:
            self.fail("snapshot_state()", error)
        taken, self._waiting = [committable for _, committable in self._waiting], []
        return taken

    def hand_over_committables(self) -> list[Any]:
        taken, self._waiting = [committable for _, committable in self._waiting], []
        self._state.clear()
        if self._of_all is not None:
            self._of_all.clear()
        return taken

    @property
    def committed(self) -> bool:
        return not self._waiting

    def _commit_ready(self) -> None:
        """Hand what may be committed to the helper thread, one lot at a time."""
        if self._committing:
            return
        ready = [c for n, c in self._waiting if n <= self._commit_up_to]
        # Ids only grow along the list, so the ready ones are a prefix.
        if not ready:
            return
        self._committing = len(ready)
        settings, committer = self.context.settings, self._committer
        self.context.run_async(
            lambda: _commit(committer, ready, settings.commit_retries, settings.commit_backoff_ms, self._on_failed_try),
            self._commit_done,
        )

    def _on_failed_try(self, failed: FailedTry) -> None:
        """On the helper thread: there is one at a time, and the counter is changed nowhere else."""
        self._retried.inc(failed.left)
        self.context.warn(f"operator '{self.name}' (subtask {self.context.subtask}): {failed.describe()}")

    def _commit_done(self, result: Any, error: BaseException | None) -> None:
        if error is not None:
            self.fail("commit()", error)
        del self._waiting[: self._committing]
        self._committing = 0
        self._commit_ready()

    def close(self) -> None:
        for part in (self._writer, self._committer):
            if part is not None:
                try:
                    part.close()
                except Exception as error:
                    self.fail("close()", error)
        self._writer = self._committer = None


def _look_again() -> None:
    """The mail alone makes the task take its next step, which asks whether the writer is available."""


def _commit(
    committer: Any,
    committables: list[Any],
    retries: int,
    backoff_ms: float,
    on_failed_try: Callable[[FailedTry], None],
) -> None:
    left, last_error = commit_with_retries(committer, committables, retries, backoff_ms, on_failed_try)
    if left:
        raise CommitFailedError(
            f"{len(left)} committables could not be committed in {retries + 1} tries; they stay in the checkpoint and "
            f"are committed after the restart. Last error: {last_error!r}"
        ) from last_error


class _InvokeContext(SinkFunction.Context):
    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.stamp: int | None = None

    def current_processing_time(self) -> int:
        return int(self._operator.context.clock.now_ms())

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def timestamp(self) -> int | None:
        return self.stamp


class SinkFunctionOperator(FunctionOperator):
    """The old style of sink: a function called once per record."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.given: int = 0

    def process(self, batch: RecordBatch) -> None:
        taken, rest = self.limit.take(batch.values)
        try:
            if isinstance(self.function, SinkFunction):
                invoke, context = self.function.invoke, _InvokeContext(self)
                stamps = batch.timestamps
                for i, v in enumerate(rest):
                    context.stamp = None if stamps is None else stamps[i]
                    invoke(v, context)
            else:
                function = bind(self.function, "__call__")
                for v in rest:
                    function(v)
        except Exception as error:
            self.fail_at("invoke()", error, taken, rest)
        self.given += len(taken)
        self.taken(batch, taken)
