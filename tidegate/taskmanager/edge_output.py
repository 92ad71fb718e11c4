"""The end of a chain that leaves the task: picks the channel for each record of a batch.

Each partitioning is a small class with one method, `emit`. They are in the hot path of every exchange; the figures in
`benchmarks/` (W1 at parallelism 2) watch `HashOutput`.
"""

from __future__ import annotations

import random
from typing import Any, NoReturn

from tidegate.common.errors import ConfigurationError
from tidegate.contracts.batches import RecordBatch
from tidegate.graph.job_graph import JobEdge, PartitionKind
from tidegate.network.channels import OutputChannel
from tidegate.network.elements import Watermark, WatermarkStatus
from tidegate.state.key_groups import KeyRouter, is_unhashable, unhashable_key
from tidegate.taskmanager.clock import Clock
from tidegate.taskmanager.failure import OperatorFailure
from tidegate.taskmanager.operators.base import bind


class EdgeOutput:
    """Base: everything to the one channel (FORWARD, GLOBAL, or any edge with a single target)."""

    def __init__(
        self, edge: JobEdge, channels: list[OutputChannel], clock: Clock, operator_name: str, subtask: int
    ) -> None:
        self.edge = edge
        self.channels = channels
        self._clock = clock
        self._operator_name = operator_name
        self._subtask = subtask

    def emit(self, batch: RecordBatch) -> None:
        self.channels[0].add(batch.values, batch.timestamps, self._clock.now_ms())

    def emit_watermark(self, timestamp: int) -> None:
        for channel in self.channels:
            channel.add_control(Watermark(timestamp))

    def emit_status(self, idle: bool) -> None:
        for channel in self.channels:
            channel.add_control(WatermarkStatus(idle))

    def _distribute(self, targets: list[int], batch: RecordBatch) -> None:
        """Split a batch by a target index per record, keeping the order within each target."""
        n = len(self.channels)
        now = self._clock.now_ms()
        parts: list[list[Any]] = [[] for _ in range(n)]
        appends = [p.append for p in parts]
        for target, v in zip(targets, batch.values, strict=True):
            appends[target](v)
        stamps: list[list[int]] | None = None
        if batch.timestamps is not None:
            stamps = [[] for _ in range(n)]
            for target, t in zip(targets, batch.timestamps, strict=True):
                stamps[target].append(t)
        for i, part in enumerate(parts):
            if part:
                self.channels[i].add(part, None if stamps is None else stamps[i], now)

    def _fail(self, doing: str, error: BaseException, record: Any) -> NoReturn:
        raise OperatorFailure(self._operator_name, self._subtask, doing, error, record) from error


class BroadcastOutput(EdgeOutput):
    def emit(self, batch: RecordBatch) -> None:
        now = self._clock.now_ms()
        for channel in self.channels:
            channel.add(batch.values, batch.timestamps, now)


class RoundRobinOutput(EdgeOutput):
    """Record i to channel i modulo n (REBALANCE, RESCALE), without looking at the records."""

    _next = 0

    def emit(self, batch: RecordBatch) -> None:
        n = len(self.channels)
        now = self._clock.now_ms()
        values, stamps = batch.values, batch.timestamps
        for i in range(n):
            part = values[i::n]
            if part:
                channel = self.channels[(self._next + i) % n]
                channel.add(part, None if stamps is None else stamps[i::n], now)
        self._next = (self._next + len(values)) % n


class ShuffleOutput(EdgeOutput):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._random = random.Random(f"{self.edge.key}/{self._subtask}")

    def emit(self, batch: RecordBatch) -> None:
        self._distribute(self._random.choices(range(len(self.channels)), k=len(batch.values)), batch)


class HashOutput(EdgeOutput):
    """By the key group of the record's key."""

    def __init__(self, *args: Any, max_parallelism: int) -> None:
        super().__init__(*args)
        self._select = bind(self.edge.partition.key_selector, "get_key")
        self._router = KeyRouter(max_parallelism, len(self.channels))

    def emit(self, batch: RecordBatch) -> None:
        select, router = self._select, self._router
        if batch.timestamps is not None:
            try:
                targets: list[int] = [router[select(v)] for v in batch.values]
            except Exception as error:
                self._explain(batch, error)
            self._distribute(targets, batch)
            return
        # One pass without a list of targets is a fifth faster than two.
        parts: list[list[Any]] = [[] for _ in self.channels]
        appends = [p.append for p in parts]
        try:
            for v in batch.values:
                appends[router[select(v)]](v)
        except Exception as error:
            self._explain(batch, error)
        now = self._clock.now_ms()
        for channel, part in zip(self.channels, parts, strict=True):
            if part:
                channel.add(part, None, now)

    def _explain(self, batch: RecordBatch, error: BaseException) -> NoReturn:
        """Find the record whose key is the trouble."""
        for v in batch.values:
            try:
                key = self._select(v)
            except Exception as wrong:
                self._fail("key_by()", wrong, v)
            try:
                self._router[key]
            except Exception as wrong:
                self._fail("key_by()", unhashable_key(key) if is_unhashable(key) else wrong, v)
        self._fail("key_by()", error, batch.values[0])


class CustomOutput(EdgeOutput):
    """The user's partitioner on the user's key."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._select = bind(self.edge.partition.key_selector, "get_key")
        self._partition = bind(self.edge.partition.partitioner, "partition")

    def emit(self, batch: RecordBatch) -> None:
        n = len(self.channels)
        targets = []
        for v in batch.values:
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
    edge: JobEdge, channels: list[OutputChannel], clock: Clock, operator_name: str, subtask: int, max_parallelism: int
) -> EdgeOutput:
    """`max_parallelism` is the downstream vertex's: it decides the key groups."""
    args = (edge, channels, clock, operator_name, subtask)
    kind = edge.partition.kind
    if kind is PartitionKind.CUSTOM:
        return CustomOutput(*args)  # also with one channel: the user's function may check or fail
    if len(channels) == 1 or kind in (PartitionKind.FORWARD, PartitionKind.GLOBAL):
        return EdgeOutput(*args)
    if kind is PartitionKind.HASH:
        return HashOutput(*args, max_parallelism=max_parallelism)
    if kind is PartitionKind.BROADCAST:
        return BroadcastOutput(*args)
    if kind is PartitionKind.SHUFFLE:
        return ShuffleOutput(*args)
    return RoundRobinOutput(*args)
