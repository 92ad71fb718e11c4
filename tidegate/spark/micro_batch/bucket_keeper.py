"""The buckets of keys of one subtask at the end of a batch: those that have changed are written, and what is known of
all of them without reading them is brought up to date."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.spark.micro_batch.task_state import (
    NO_TIMER,
    Figures,
    KeyedStates,
    OwnState,
    TaskMemory,
    add_difference,
    dump_bucket,
    figures_of,
    is_large,
)
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.state.heap.buckets import Buckets
from tidegate.storage.writers import StateSink
from tidegate.taskmanager.timers import OperatorTimers


class BucketKeeper:
    """For one batch; `keep` is called once. `own`: what the batch began with. `loaded`: what was in the buckets that it
    has read. `cut_anew`: its keys are cut into other buckets than those of the batch before.

    The fields are those of `OwnState` of the same name, as of this batch."""

    def __init__(
        self, buckets: Buckets, memory: TaskMemory, own: OwnState | None, loaded: dict[int, Figures], cut_anew: bool
    ) -> None:
        self._buckets = buckets
        self._memory = memory
        self._loaded = loaded
        self._cut_anew = cut_anew
        self._everything = own is None or cut_anew
        self.timers: dict[int, tuple[int, int]] = {} if own is None else dict(own.timers)
        self.sizes: dict[int, int] = {} if own is None else dict(own.buckets)
        self.lone: set[int] = set() if own is None else set(own.lone)
        figures: Figures | None = {} if own is None or cut_anew else own.figures
        self.figures = None if figures is None else dict(figures)

    def keep(
        self, keyed: list[tuple[OperatorId, HeapKeyedStateBackend]], checkpoint_id: CheckpointId, sink: StateSink
    ) -> int:
        """Returns the bytes that were written. A bucket that has changed for one of several keyed operators is
        written with what all of them have in it; all have loaded it."""
        touched: set[int] = set()
        for _, backend in keyed:
            touched |= self._buckets.changed(backend, self._everything)
        changed: dict[int, KeyedStates] = {bucket: {} for bucket in touched}
        for operator_id, backend in keyed:
            for bucket, snapshot in self._buckets.take(backend, checkpoint_id, sink, touched).items():
                if snapshot is not None:
                    changed[bucket][operator_id] = snapshot
        if self._cut_anew:  # what had no other keys than those that have left is not among the changed ones
            changed = {bucket: {} for bucket in self.sizes} | changed
        for bucket in changed:
            self.timers.pop(bucket, None)
        for _, backend in keyed:
            self._note_timers(backend, changed.keys())
        written = 0
        large: set[int] = set()
        for bucket, states in changed.items():
            self._count(bucket, states)
            if states:
                blob = dump_bucket(states)
                written += len(blob)
                self.sizes[bucket] = len(blob)
                self._memory.keep_bucket(bucket, blob)
                if is_large(blob):
                    large.add(bucket)
            elif self.sizes.pop(bucket, None) is not None:
                self._memory.drop_bucket(bucket)
        self.lone = (self.lone - changed.keys()) | self._buckets.with_one_key([backend for _, backend in keyed], large)
        return written

    def _count(self, bucket: int, states: KeyedStates) -> None:
        if self.figures is not None:
            before = {} if self._everything else self._loaded.get(bucket, {})
            add_difference(self.figures, before, figures_of(states))

    def _note_timers(self, backend: HeapKeyedStateBackend, changed: Iterable[int]) -> None:
        of_key, timers = self._buckets.of_key, self.timers
        for table in backend.tables():
            if table.info.kind != "timers":
                continue
            for key, (_, timestamp) in table.base:
                bucket = of_key[key]
                if bucket in changed:
                    event, processing = timers.get(bucket, (NO_TIMER, NO_TIMER))
                    if table.info.name == OperatorTimers.EVENT:
                        timers[bucket] = min(event, timestamp), processing
                    else:
                        timers[bucket] = event, min(processing, timestamp)
