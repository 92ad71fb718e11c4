"""`map_batches`: records are gathered until there are enough of them, or the first has waited long enough.

Nothing is kept in state: what is gathered is handed over before every barrier, so a snapshot finds the operator empty.
A watermark that comes while records wait is passed on behind them. One is enough to remember: fewer than `size` records
wait when it comes, so the next call takes all of them.
"""

from __future__ import annotations

from typing import Any

from tidegate.common.errors import check_internal
from tidegate.common.ids import CheckpointId
from tidegate.contracts.batches import RecordBatch
from tidegate.graph.operator_specs import MapBatchesSpec
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import FunctionOperator, bind


class MapBatchesOperator(FunctionOperator):
    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        spec = context.node.spec
        if not isinstance(spec, MapBatchesSpec):
            raise TypeError("MapBatchesOperator needs a MapBatchesSpec")
        self._size, self._max_wait_ms = spec.size, spec.max_wait_ms
        self._map = bind(self.function, "map_batches")
        self._waiting: RecordBatch | None = None  # fewer than `size` records
        self._deadline = 0.0  # for them
        self._watermark: int | None = None  # came behind the first of them

    # ------------------------------------------------------------ records and time
    def process(self, batch: RecordBatch) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.joins(batch):
            self._flush()
            waiting = None
        if waiting is None:
            self._deadline = self.context.clock.now_ms() + self._max_wait_ms
        else:
            batch = waiting.join([batch])
        start, size = 0, self._size
        while len(batch) - start >= size:
            self._call(batch.slice(start, start + size))
            start += size
            if self.limit.expired and start < len(batch):
                self.left, self._waiting = batch.slice(start, len(batch)), None
                return
        if start:
            self._deadline = self.context.clock.now_ms() + self._max_wait_ms
            batch = batch.slice(start, len(batch))
        self._waiting = batch if len(batch) else None

    def process_watermark(self, timestamp: int) -> None:
        if self._waiting is None:
            super().process_watermark(timestamp)
        else:
            self._watermark = timestamp

    def process_status(self, idle: bool) -> None:
        if idle:
            self._flush()
        super().process_status(idle)

    @property
    def asynchronous(self) -> bool:
        return True

    def advance(self, now_ms: float, can_emit: bool) -> bool:
        if self._waiting is None or not can_emit or now_ms < self._deadline:
            return False
        self._flush()
        return True

    def next_deadline(self, can_emit: bool) -> float | None:
        return None if self._waiting is None or not can_emit else self._deadline

    # ------------------------------------------------------------ end, checkpoints
    def prepare_barrier(self, checkpoint_id: CheckpointId) -> None:
        self._flush()

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        check_internal(self._waiting is None, f"'{self.name}' holds records over checkpoint {checkpoint_id}")
        super().update_state(checkpoint_id, timestamp)

    def finish(self) -> None:
        self._flush()
        super().finish()

    # ------------------------------------------------------------ the function
    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._call(waiting)

    def _call(self, batch: RecordBatch) -> None:
        try:
            results = list(self.own.many(self._map)(batch.values[:]))
            if len(results) != len(batch):
                raise ValueError(
                    f"it returned {len(results)} results for {len(batch)} records; it has to return one for each"
                )
        except Exception as error:
            self.fail("map_batches()", error, *_only(batch.values))
        self.own.look(results)
        self.output(RecordBatch(results, batch.timestamps))
        if self._watermark is not None:
            watermark, self._watermark = self._watermark, None
            super().process_watermark(watermark)


def _only(values: list[Any]) -> list[Any]:
    """The culprit, when there is no other candidate."""
    return values if len(values) == 1 else []
