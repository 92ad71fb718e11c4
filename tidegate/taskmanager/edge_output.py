"""The end of a chain that leaves the task: picks the channel for each record of a batch.

Each partitioning is a small class with one method, `emit`. Those that do not ask the records where they belong use the
operations of a batch, whatever it holds; key selectors and partitioners of the user are asked about rows.

They are in the hot path of every exchange; the figures in `benchmarks/` (W1 at parallelism 2) watch `HashOutput`.
"""

from __future__ import annotations

import random
from typing import Any, Generic, NoReturn, TypeVar, assert_never

from tidegate.common.errors import ConfigurationError
from tidegate.contracts.batches import Batch, RecordBatch
from tidegate.graph.job_graph import JobEdge, PartitionKind
from tidegate.network.channels import Channel
from tidegate.network.elements import Watermark, WatermarkStatus
from tidegate.state.key_groups import KeyRouter, is_unhashable, selector_without_lists, unhashable_key
from tidegate.taskmanager.clock import Clock
from tidegate.taskmanager.copying import copied_batch
from tidegate.taskmanager.failure import OperatorFailure
from tidegate.taskmanager.operators.base import bind

C = TypeVar("C", bound=Channel)


class EdgeOutput(Generic[C]):
    """Base: everything to the one channel (FORWARD, GLOBAL, or any edge with a single target)."""

    local: int | None = None  # the channel to a task of this slot, which gets the very objects
    copies = True  # for that channel, where others write the same records later
    turn = 0  # of outputs that take the channels in turn: where they stand. Set before the first record, if at all

    def __init__(self, edge: JobEdge, channels: list[C], clock: Clock, operator_name: str, subtask: int) -> None:
        self.edge = edge
        self.channels = channels
        self._clock = clock
        self._operator_name = operator_name
        self._subtask = subtask

    @property
    def hands_on(self) -> bool:
        """User code behind this output gets the very objects that are emitted; otherwise they are only written."""
        return self.local is not None

    def emit(self, batch: Batch) -> None:
        self.channels[0].add(batch, self._clock.now_ms())

    def emit_watermark(self, timestamp: int) -> None:
        for channel in self.channels:
            channel.add_control(Watermark(timestamp))

    def emit_status(self, idle: bool) -> None:
        for channel in self.channels:
            channel.add_control(WatermarkStatus(idle))

    def _distribute(self, targets: list[int], batch: Batch) -> None:
        """Split a batch by a target index per record, keeping the order within each target."""
        now = self._clock.now_ms()
        for channel, part in zip(self.channels, batch.split(targets, len(self.channels)), strict=True):
            if len(part):
                channel.add(part, now)

    def _fail(self, doing: str, error: BaseException, record: Any) -> NoReturn:
        raise OperatorFailure(self._operator_name, self._subtask, doing, error, record) from error


class BroadcastOutput(EdgeOutput[C]):
    def emit(self, batch: Batch) -> None:
        now = self._clock.now_ms()
        local = batch if self.local is None or not self.copies else copied_batch(batch)
        for i, channel in enumerate(self.channels):
            channel.add(local if i == self.local else batch, now)


class RoundRobinOutput(EdgeOutput[C]):
    """Record i to channel i modulo n (REBALANCE, RESCALE), without looking at the records."""

    def emit(self, batch: Batch) -> None:
        n, count = len(self.channels), len(batch)
        now = self._clock.now_ms()
        for i in range(min(n, count)):
            self.channels[(self.turn + i) % n].add(batch.stride(i, n), now)
        self.turn = (self.turn + count) % n


class ShuffleOutput(EdgeOutput[C]):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._random: random.Random | None = None

    def emit(self, batch: Batch) -> None:
        if self._random is None:  # others than before for a task that goes on
            self._random = random.Random(f"{self.edge.key}/{self._subtask}/{self.turn}")
        self.turn += len(batch)
        self._distribute(self._random.choices(range(len(self.channels)), k=len(batch)), batch)


class HashOutput(EdgeOutput[C]):
    """By the key group of the record's key."""

    def __init__(self, *args: Any, max_parallelism: int) -> None:
        super().__init__(*args)
        self._select = bind(self.edge.partition.key_selector, "get_key")
        self._router = KeyRouter(max_parallelism, len(self.channels))

    def emit(self, batch: Batch) -> None:
        select, router = self._select, self._router
        rows = batch.rows()
        if rows.timestamps is not None:
            try:
                targets: list[int] = [router[select(v)] for v in rows.values]
            except Exception as error:
                if self._takes_lists(rows):
                    self.emit(batch)
                    return
                self._explain(rows, error)
            self._distribute(targets, batch)
            return
        # One pass without a list of targets is a fifth faster than two.
        parts: list[list[Any]] = [[] for _ in self.channels]
        appends = [p.append for p in parts]
        try:
            for v in rows.values:
                appends[router[select(v)]](v)
        except Exception as error:
            if self._takes_lists(rows):
                self.emit(batch)
                return
            self._explain(rows, error)
        now = self._clock.now_ms()
        for channel, part in zip(self.channels, parts, strict=True):
            if part:
                channel.add(RecordBatch(part), now)

    def _takes_lists(self, rows: RecordBatch) -> bool:
        """After a failure: from now on lists are taken for tuples, since the first key of all was one. Then nothing has
        been sent yet, of this batch neither."""
        select = None if self._router else selector_without_lists(self._select, rows.values[0])
        if select is None:
            return False
        self._select = select
        return True

    def _explain(self, rows: RecordBatch, error: BaseException) -> NoReturn:
        """Find the record whose key is the trouble."""
        for v in rows.values:
            try:
                key = self._select(v)
            except Exception as wrong:
                wrong.__context__ = None  # the same failure of the call before: one traceback is enough
                self._fail("key_by()", wrong, v)
            try:
                self._router[key]
            except Exception as wrong:
                self._fail("key_by()", unhashable_key(key) if is_unhashable(key) else wrong, v)
        self._fail("key_by()", error, rows.values[0])


class CustomOutput(EdgeOutput[C]):
    """The user's partitioner on the user's key."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._select = bind(self.edge.partition.key_selector, "get_key")
        self._partition = bind(self.edge.partition.partitioner, "partition")

    def emit(self, batch: Batch) -> None:
        n = len(self.channels)
        targets = []
        for v in batch.rows().values:
            try:
                target = self._partition(self._select(v), n)
            except Exception as error:
                self._fail("partition_custom()", error, v)
            if not isinstance(target, int) or not 0 <= target < n:
                wrong = ConfigurationError(f"the partitioner returned {target!r}; it has to return 0 to {n - 1}")
                self._fail("partition_custom()", wrong, v)
            targets.append(target)
        self._distribute(targets, batch)


def make_edge_output(
    edge: JobEdge, channels: list[C], clock: Clock, operator_name: str, subtask: int, max_parallelism: int
) -> EdgeOutput[C]:
    """`max_parallelism` is the downstream vertex's: it decides the key groups."""
    args = (edge, channels, clock, operator_name, subtask)
    kind = edge.partition.kind
    if len(channels) == 1 and kind is not PartitionKind.CUSTOM:  # the user's function may check or fail
        return EdgeOutput(*args)
    match kind:
        case PartitionKind.FORWARD | PartitionKind.GLOBAL:
            return EdgeOutput(*args)
        case PartitionKind.HASH:
            return HashOutput(*args, max_parallelism=max_parallelism)
        case PartitionKind.BROADCAST:
            return BroadcastOutput(*args)
        case PartitionKind.SHUFFLE:
            return ShuffleOutput(*args)
        case PartitionKind.REBALANCE | PartitionKind.RESCALE:
            return RoundRobinOutput(*args)
        case PartitionKind.CUSTOM:
            return CustomOutput(*args)
        case _:
            assert_never(kind)
