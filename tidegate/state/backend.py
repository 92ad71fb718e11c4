"""The contract of a keyed state backend: the state of one operator subtask, for the key groups it owns.

Used from the mailbox thread only. The operator sets `current_key` before it calls user code; the state objects that
`get_state` hands out then read and write that key's entry. An access costs about what a dict costs.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from tidegate.common.ids import CheckpointId
from tidegate.storage.handles import KeyedSnapshot
from tidegate.storage.reader import StateSource as StateSource
from tidegate.storage.writers import StateSink as StateSink


class KeyedSnapshotWriter(Protocol):
    """The frozen view of one checkpoint: made in the synchronous part, written in the asynchronous one."""

    def write(self, sink: StateSink) -> KeyedSnapshot:
        """Runs on a helper thread, once. The backend keeps working meanwhile."""


class KeyedStateBackend(abc.ABC):
    current_key: Any
    current_namespace: Any

    @abc.abstractmethod
    def get_state(self, descriptor: Any, namespaced: bool = False) -> Any:
        """The state object (ValueState, ListState, ...) for a descriptor of `datastream.state`. The same name twice
        gives the same object; the same name with another kind of descriptor is an error that names both."""

    @abc.abstractmethod
    def keys(self, state_name: str) -> Iterator[Any]:
        """All keys that have an entry in the state. Not during a modification."""

    def prefetch(self, select: Callable[[Any], Any], values: list[Any]) -> None:
        """A hint: `select` gives the keys of the records that are processed next. Never raises."""

    def end_of_batch(self) -> None:
        """Called when the operator has processed a batch, or fired timers: the time to tidy up."""

    @abc.abstractmethod
    def drop_all(self) -> None:
        """Remove the entries of all states for all keys. The state objects that were handed out stay valid."""

    @abc.abstractmethod
    def snapshot(self, checkpoint_id: CheckpointId, full: bool = False) -> KeyedSnapshotWriter:
        """The synchronous part. What user code does after this call is not in the snapshot."""

    @abc.abstractmethod
    def restore(self, snapshots: Iterable[KeyedSnapshot], source: StateSource, *, continue_chain: bool = False) -> None:
        """Load before the first `get_state`; keys outside the own key groups are left out.

        `continue_chain`: the snapshot is a checkpoint (not a savepoint) of this same job directory, so the next
        increment may build on it. Without it the first snapshot is full."""

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None: ...

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None: ...

    @abc.abstractmethod
    def dispose(self) -> None: ...
