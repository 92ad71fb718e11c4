"""In-flight elements of an unaligned checkpoint, read back."""

from __future__ import annotations

import pickle
from itertools import compress

from tidegate.common.errors import SnapshotError
from tidegate.contracts.batches import RecordBatch
from tidegate.graph.job_graph import JobEdge
from tidegate.network.elements import EndOfData
from tidegate.network.serialization import Element, deserialize
from tidegate.state.backend import StateSource
from tidegate.state.key_groups import key_group
from tidegate.storage.handles import ChannelState
from tidegate.taskmanager.operators.base import bind


def read_channel(state: ChannelState, source: StateSource) -> list[Element]:
    """Without `EndOfData`: a sender that was at its end comes to it again after the restore, and says so again."""
    data = source.read(state.handle)
    try:
        elements = [deserialize(kind, payload) for kind, payload in pickle.loads(data)]
    except Exception as error:
        raise SnapshotError(
            f"the in-flight records of channel {state.edge_key} ({state.upstream} to {state.downstream}) "
            f"cannot be unpickled: {error!r}"
        ) from error
    return [e for e in elements if not isinstance(e, EndOfData)]


class OwnKeys:
    """Which records of a keyed edge a subtask owns."""

    def __init__(self, edge: JobEdge, max_parallelism: int, groups: tuple[int, int]) -> None:
        self._select = bind(edge.partition.key_selector, "get_key")
        self._max_parallelism = max_parallelism
        self._groups = groups  # [start, end)

    def of(self, batch: RecordBatch) -> RecordBatch:
        start, end = self._groups
        mine = [start <= key_group(self._select(v), self._max_parallelism) < end for v in batch.values]
        values = list(compress(batch.values, mine))
        return RecordBatch(values, None if batch.timestamps is None else list(compress(batch.timestamps, mine)))


def read_moved_records(state: ChannelState, source: StateSource, keys: OwnKeys | None) -> list[Element]:
    """The batches of a channel that is no more, only with the records of `keys`. Watermarks are left out: each sender
    tells its own again."""
    batches = [e for e in read_channel(state, source) if isinstance(e, RecordBatch)]
    if keys is not None:
        batches = [keys.of(batch) for batch in batches]
    return [batch for batch in batches if batch.values]
