"""What an operator is to the runtime. It takes batches, watermarks and timers, emits batches, keeps its state behind
the state API and snapshots when told. It never knows what a channel, a barrier or a Spark task is. What only a batch
job asks for is in `batch_mode`.

Calls, all on the mailbox thread, in this order::

    open  (process | process_second | prepare_barrier update_state | notify_*)*
    finish  (prepare_barrier update_state | notify_*)*  commit_all  close
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any, NoReturn

from tidegate.common.ids import CheckpointId
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.functions import CheckpointedFunction, CheckpointListener, Function
from tidegate.contracts.state import FunctionSnapshotContext
from tidegate.network.elements import MIN_WATERMARK
from tidegate.state.reading import CountedTable
from tidegate.taskmanager.failure import OperatorFailure
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.results import emit_results
from tidegate.taskmanager.own_results import OwnResults
from tidegate.taskmanager.runtime_context import InitializationContext, OperatorRuntimeContext

Emit = Callable[[RecordBatch], None]


def discard(batch: RecordBatch) -> None:
    """The output of an operator that nobody reads."""


def ignore(news: int) -> None:
    """Where watermarks go when nobody reads the operator."""


class Operator:
    """Base of all operators. `output`, `side_outputs` and `copied_outputs` are set by the chain before `open`."""

    def __init__(self, context: OperatorContext) -> None:
        self.context = context
        self.node = context.node
        self.name = context.node.name
        self.output: Emit = discard
        self.side_outputs: dict[str, Emit] = {}
        self.copied_outputs: frozenset[str | None] = frozenset()  # tags (None: `output`) whose readers may all change
        # the records in place, while another output has readers too; empty under object reuse
        self.output_watermark: Callable[[int], None] = ignore  # to everything that reads this operator
        self.output_status: Callable[[bool], None] = ignore  # idle or active, likewise
        self.current_watermark = MIN_WATERMARK
        self.given: int | None = None  # records that went to the outside so far; None: it is no sink
        self.limit = context.limit
        self.left: RecordBatch | None = None  # of the last batch, when the time was up; whoever gave it takes it back

    # ------------------------------------------------------------ records
    def process(self, batch: RecordBatch) -> None:
        """Records of the first input. When the time is up (`limit`) the last of them may be left for another call, in
        `left`; at least one is processed."""
        raise NotImplementedError

    def taken(self, batch: RecordBatch, values: list[Any]) -> RecordBatch:
        """After a loop over `values, rest = limit.take(batch.values)`: the part of the batch that it got through. The
        others are `left`."""
        count = len(values)
        if count == len(batch.values):
            return batch
        self.left = batch.slice(count, len(batch.values))
        return batch.slice(0, count)

    def process_second(self, batch: RecordBatch) -> None:
        """Records of the second input."""
        raise NotImplementedError

    @property
    def available(self) -> bool:
        """False: the task must not process more input now (it is not blocked: it will be asked again)."""
        return True

    # ------------------------------------------------------------ time
    def process_watermark(self, timestamp: int) -> None:
        """Event time has reached `timestamp`. Timers are fired by the task, which calls `fire_event_timers` first."""
        self.current_watermark = timestamp
        self.output_watermark(timestamp)

    @property
    def watermark_given(self) -> int:
        """The last one. Event time has not reached it as long as records of before are under way in here."""
        return self.current_watermark

    def process_status(self, idle: bool) -> None:
        self.output_status(idle)

    def fire_event_timers(self, limit: int) -> bool:
        """Fire what `current_watermark` makes due, at most `limit` timers. True: nothing due is left."""
        return True

    def fire_processing_timers(self, now_ms: float, limit: int) -> bool:
        return True

    def next_processing_timer(self) -> int | None:
        return None

    @property
    def periodic(self) -> bool:
        """Wants `on_periodic` every watermark interval."""
        return False

    def on_periodic(self, now_ms: float) -> None: ...

    def announce_time(self) -> None:
        """For periodic operators, before the first record: tell who reads this operator where its time stands."""

    # ------------------------------------------------------------ state, seen from outside
    def readable_table(self, name: str) -> CountedTable | None:
        """The entries of a keyed state of which the backend has only some between two snapshots, since the operator
        keeps them itself."""
        return None

    # ------------------------------------------------------------ work that is done elsewhere
    @property
    def asynchronous(self) -> bool:
        """Has work done elsewhere: wants `advance` in every step of the task."""
        return False

    def advance(self, now_ms: float, can_emit: bool) -> bool:
        """See what has become of it, and emit results when `can_emit`. False: nothing to do."""
        return False

    def next_deadline(self, can_emit: bool) -> float | None:
        """When `advance` has something to do even if nothing comes back."""
        return None

    @property
    def settled(self) -> bool:
        """Nothing is being done elsewhere. Asked after `finish`: the operators behind this one finish when it is."""
        return True

    # ------------------------------------------------------------ life cycle
    def open(self) -> None: ...

    def finish(self) -> None:
        """All input has been processed: emit what is left. Called again after a recovery from a snapshot that was taken
        before the whole chain was finished: emit from state, and leave it so that a second call emits nothing."""

    def commit_all(self) -> None:
        """The job has ended well: make visible what waits for it."""

    @property
    def committed(self) -> bool:
        """Nothing waits to be committed."""
        return True

    def close(self) -> None: ...

    # ------------------------------------------------------------ checkpoints
    def prepare_barrier(self, checkpoint_id: CheckpointId) -> None:
        """Emit, before the barrier, what must not stay behind it."""

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        """Bring `context.operator_state` up to date; called in the synchronous part of a snapshot."""

    def notify_complete(self, checkpoint_id: CheckpointId) -> None: ...

    def notify_aborted(self, checkpoint_id: CheckpointId) -> None: ...

    # ------------------------------------------------------------ errors
    def fail(self, doing: str, error: BaseException, *record: Any) -> NoReturn:
        if isinstance(error, OperatorFailure):
            raise error
        if _results_cannot_be_iterated(error):
            kind = str(error).split("'")[1]
            error = TypeError(f"it returned a value of type {kind}; it has to yield records, or return a list of them")
        raise OperatorFailure(self.name, self.context.subtask, doing, error, *record) from error

    def fail_at(self, doing: str, error: BaseException, values: list[Any], rest: Iterator[Any]) -> NoReturn:
        """Like `fail`, for a loop over `rest = iter(values)` that stopped at the culprit."""
        index = last_taken(values, rest)
        self.fail(doing, error, *([values[index]] if 0 <= index < len(values) else []))


def last_taken(values: list[Any], rest: Iterator[Any]) -> int:
    """Where a loop over `rest = iter(values)` stands: the index of its culprit. Costs the loop nothing."""
    return len(values) - length_hint(rest) - 1


def _results_cannot_be_iterated(error: BaseException) -> bool:
    """Raised by the operator's own code, which extends a list by what the function returned, not by the function."""
    if type(error) is not TypeError or not str(error).endswith("object is not iterable"):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and isinstance(trace.tb_frame.f_locals.get("self"), Operator)


class FunctionOperator(Operator):
    """An operator around a user's function: its `open`, `close` and checkpoint hooks."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.function = context.node.spec.user_function
        self.own = OwnResults(not context.settings.object_reuse)
        self._opened = False

    def open(self) -> None:
        self.runtime_context = OperatorRuntimeContext(self.context)
        if isinstance(self.function, CheckpointedFunction):
            try:
                self.function.initialize_state(InitializationContext(self.context, self.runtime_context))
            except Exception as error:
                self.fail("initialize_state()", error)
        function_open = getattr(self.function, "open", None)
        self._opened = True
        if function_open is not None:
            try:
                function_open(self.runtime_context)
            except Exception as error:
                self.fail("open()", error)

    def finish(self) -> None:
        if not isinstance(self.function, Function) or type(self.function).finish is Function.finish:
            return
        try:
            results = list(self.own.many(self.function.finish)() or ())
        except Exception as error:
            self.fail("finish()", error)
        emit_results(self, results, None)

    def close(self) -> None:
        function_close = getattr(self.function, "close", None)
        if self._opened and function_close is not None:
            self._opened = False
            try:
                function_close()
            except Exception as error:
                self.fail("close()", error)

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        if isinstance(self.function, CheckpointedFunction):
            try:
                self.function.snapshot_state(_SnapshotContext(checkpoint_id, timestamp))
            except Exception as error:
                self.fail("snapshot_state()", error)

    def notify_complete(self, checkpoint_id: CheckpointId) -> None:
        if isinstance(self.function, CheckpointListener):
            try:
                self.function.notify_checkpoint_complete(checkpoint_id)
            except Exception as error:
                self.fail("notify_checkpoint_complete()", error)

    def notify_aborted(self, checkpoint_id: CheckpointId) -> None:
        if isinstance(self.function, CheckpointListener):
            try:
                self.function.notify_checkpoint_aborted(checkpoint_id)
            except Exception as error:
                self.fail("notify_checkpoint_aborted()", error)


class _SnapshotContext(FunctionSnapshotContext):
    def __init__(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        self._id, self._timestamp = checkpoint_id, timestamp

    def get_checkpoint_id(self) -> int:
        return self._id

    def get_checkpoint_timestamp(self) -> int:
        return self._timestamp


def attributed(error: BaseException) -> BaseException:
    """What operators let pass because it is no `Exception` (sys.exit, KeyboardInterrupt in user code), as the failure
    of the innermost operator that it came through. Anything else is returned as it is."""
    if isinstance(error, Exception):
        return error
    operator: Operator | None = None
    doing = ""
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, Operator):
            operator, doing = owner, ""
        elif trace.tb_frame.f_globals.get("__name__") == OwnResults.__module__:
            pass  # stands around the user's function
        elif operator is not None and not doing and trace.tb_frame.f_code.co_name.isidentifier():
            doing = f"{trace.tb_frame.f_code.co_name}()"  # the user's function, not a comprehension of ours
        trace = trace.tb_next
    if operator is None:
        return error
    cause = error
    if isinstance(error, SystemExit):
        cause = SystemExit(f"user code called sys.exit({error.code!r})").with_traceback(error.__traceback__)
    return OperatorFailure(operator.name, operator.context.subtask, doing or "user code", cause)


def bind(function: Any, method: str) -> Callable[..., Any]:
    """The callable behind a function object or a plain callable."""
    bound = getattr(function, method, None)
    if bound is not None and callable(bound):
        return bound  # type: ignore[no-any-return]
    return function  # type: ignore[no-any-return]
