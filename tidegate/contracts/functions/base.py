"""The base of all functions, and what a function may add to it: state of its own, news of checkpoints."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.contracts.functions.contexts import RuntimeContext

if TYPE_CHECKING:
    from tidegate.contracts.state import FunctionInitializationContext, FunctionSnapshotContext


class Function(abc.ABC):  # noqa: B024 (PyFlink's base has no abstract method either)
    """Base of all functions of the user."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once per subtask before the first record: the place for state, connections and caches."""

    def finish(self) -> Iterable[Any] | None:
        """Called when all input has been processed, before the last checkpoint, for functions that hold something
        back: yield what is left, or return an iterable or None. What is emitted here has no timestamp and comes after
        the end of event time; no key is current.

        Not called when the job fails, is cancelled, or is stopped with a savepoint and not drained. Called again after
        a recovery from a checkpoint that was taken before it: keep what is held back in state (`CheckpointedFunction`),
        and leave it empty. Not called for an AsyncFunction, whose calls are awaited at the end anyway."""
        return None

    def close(self) -> None:
        """Called once after the last record or a failure."""


class CheckpointedFunction(abc.ABC):
    """Add to any function that keeps state of its own outside keyed state (operator state)."""

    @abc.abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Called when a checkpoint is taken: bring the operator state up to date. Must not block."""

    @abc.abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Called before `open`, on a fresh start and after a recovery: register state, read what was restored."""


class CheckpointListener:
    """Add to any function that wants to know what became of a checkpoint."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete everywhere. Not promised for each one: a later one includes all before it."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never be complete. Not promised for each one."""
