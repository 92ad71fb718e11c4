"""What a connector implements: replayable split sources, and sinks with a writer and an optional committer.

A **source** is a list of *splits* (a file, a partition, a range), each read from an *offset* by a reader. Offsets are
taken at a checkpoint between two batches and given back after a recovery: a reader that is opened at an offset must
produce exactly the records it would have produced after it the first time. That is all exactly-once asks of a source.
A source whose splits turn up while the job runs (partitions, files) says so by `discovery_interval_ms` and has an
*enumerator*, which looks for them on the driver.

A **sink** writes through a `SinkWriter`. One that must be exactly-once outside of Tidegate has two phases:
`prepare_commit` at the barrier returns *committables*, which become part of the checkpoint; when it is complete they
are given to the `Committer`, again after a recovery until that succeeded, so `commit` has to be idempotent.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidegate.common.errors import TidegateError
from tidegate.contracts.batches import RecordBatch

T = TypeVar("T")
CommT = TypeVar("CommT")


class Boundedness(enum.Enum):
    BOUNDED = "bounded"
    CONTINUOUS_UNBOUNDED = "unbounded"


class DeliveryGuarantee(enum.Enum):
    """What a sink promises when the job restarts."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2


# ---------------------------------------------------------------- sources


@dataclass(frozen=True)
class SourceSplit:
    """A part of a source that one reader reads in order. Subclass it with the fields that you need; must be picklable.

    `split_id` is unique within the source and stays the same across restarts."""

    split_id: str

    @property
    def names(self) -> tuple[str, ...]:
        """What is in the split, for the enumerator, which is told what is known: its id, or the names of several things
        that are read as one split."""
        return (self.split_id,)


def _all_of(values: list[Any]) -> tuple[list[Any], Iterator[Any]]:
    return values, iter(values)


class SourceContext:
    """What a reader may know of its place in the job."""

    def __init__(self, operator_name: str, subtask: int, parallelism: int, clock: Any) -> None:
        self.operator_name = operator_name
        self.subtask = subtask
        self.parallelism = parallelism
        self.clock = clock  # has now_ms() -> float; use it instead of time.time() so that simulations replay
        self.runtime_context: Any = None  # functions.RuntimeContext: metrics, accumulators, job parameters
        # From any thread: there is something to poll, before `wake_at_ms`. None: nobody would hear it (BATCH).
        self.wake: Callable[[], None] | None = None
        self.memos: dict[str, Any] = {}  # split id -> what the reader before had to say to its successor: see `memo`
        # For a reader that calls a function of the user for each record: gives a list to loop over and the iterator to
        # do it with, which ends early when the time of this poll is up. The list then has what was taken.
        self.take: Callable[[list[Any]], tuple[list[Any], Iterator[Any]]] = _all_of


class SplitReader(abc.ABC, Generic[T]):
    """Reads one split. Called from the mailbox thread only, so it must not block: return an empty batch instead."""

    @abc.abstractmethod
    def poll(self, max_records: int) -> RecordBatch | list[T] | None:
        """The next records in order (at most `max_records`, [] when there are none right now), or None at the end of a
        bounded split; after None it is not called again. What was returned is the runtime's from then on: the reader
        must not change it, nor return the same list again."""

    @abc.abstractmethod
    def offset(self) -> Any:
        """Picklable position after the last record that `poll` returned. May be called at any time between polls."""

    def wake_at_ms(self) -> float | None:
        """Asked after an empty poll: the clock time at which polling again is worthwhile (None: a short default). A
        reader that calls `SourceContext.wake` when something is there can let this be late."""
        return None

    @property
    def idle(self) -> bool:
        """True while there is nothing to read until something new turns up (a file, say): the split is then left out
        of the source's watermark, as one with `with_idleness` is."""
        return False

    @property
    def settling(self) -> bool:
        """True while there is no telling whether something is there to read, since a connection is still being made. A
        micro-batch, whose readers begin anew, waits for that; without it a slow connection would never be read from."""
        return False

    def memo(self) -> Any:
        """Picklable: what the reader of the same split in the next micro-batch finds in `SourceContext.memos`. It is no
        part of snapshots, and gone after a restart."""
        return None

    def progress(self) -> float | None:
        """How much of a bounded split was read, from 0 to 1; None: there is no telling. For people to see, about once
        a second: an estimate is enough, and it must not take long."""
        return None

    def pending_records(self) -> int | None:
        """How many records are known to wait in the split behind what `poll` returned; None: there is no telling. As
        `progress`: what is at hand, nothing that has to be asked for."""
        return None

    def notify_checkpoint_complete(self, checkpoint_id: int, offset: Any) -> None:
        """The checkpoint that holds `offset` is complete: what lies before it will not be asked for again."""

    def close(self) -> None:
        """Release what the reader holds. Called once, also after a failure."""


@dataclass(frozen=True)
class Discovery:
    """What an enumerator has found. `complete`: nothing else will ever turn up, so readers end with what they have."""

    splits: Sequence[SourceSplit] = ()
    complete: bool = False


class SplitEnumerator(abc.ABC):
    """Looks for splits while a job runs: on the driver, on a helper thread, so it may block. One call at a time.

    It keeps nothing that has to outlive it: what is known is in the job's checkpoints, and it is told."""

    @abc.abstractmethod
    def discover(self, known: AbstractSet[str]) -> Discovery:
        """The splits that are there and whose names are not in `known`, in the order in which they are to be read. They
        are dealt out over the readers in turn. After a recovery `known` is that of the checkpoint: what was found later
        has to be found again. An exception fails the attempt, so what will pass is better waited for: return nothing,
        and log it."""

    def close(self) -> None:
        """The job has ended."""


class Source(abc.ABC, Generic[T]):
    """Base of all sources. An instance is pickled to the workers."""

    gives_timestamps = True
    """False: records of this source never have timestamps of their own, so event time needs a timestamp assigner."""

    reads_in_turn = False
    """True: a reader reads a split to its end before it begins the next one."""

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    @abc.abstractmethod
    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        """All splits, made once on the driver when the job is submitted (never again for a job that restarts); those
        that are there already, when the source has an enumerator.

        Split number i goes to subtask i modulo parallelism."""

    @abc.abstractmethod
    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[T]:
        """A reader positioned at `offset` (None: the beginning of the split)."""

    @property
    def discovery_interval_ms(self) -> float | None:
        """How often the enumerator is asked; None: `create_splits` makes all splits that there are."""
        return None

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Called once on the driver, when `discovery_interval_ms` is not None."""
        raise NotImplementedError(f"{type(self).__name__} has a discovery interval and no create_enumerator")

    def restored_splits(self, split: SourceSplit, offset: Any, done: bool) -> list[tuple[SourceSplit, Any, bool]]:
        """What is read for a split of a snapshot: itself, unless an older version of the source cut its input in
        another way. Of a source with an enumerator; entries that are done only make their names known."""
        return [(split, offset, done)]

    def get_produced_type(self) -> Any:
        """The TypeInformation of the records, None when unknown."""
        return None


# ---------------------------------------------------------------- sinks


class SinkContext:
    """What a writer may know of its place in the job. `restored_state` holds what `snapshot_state` returned in the
    checkpoint that the job started from (a list: several entries after rescaling, empty on a fresh start);
    `restored_committables` what waits to be committed from there: the committer gets it, a writer only looks, to tell
    left-overs from what is still needed. `operator_id` stays the same across restarts. A sink with
    `sees_all_committables` finds in `committables_of_all` what waits in all subtasks of that checkpoint, its own
    included: after a rescaling, what was written by one subtask is committed by another. `of_one_attempt` is True in
    BATCH mode, where attempts of a subtask may run side by side: whatever is found outside belongs to somebody else."""

    def __init__(
        self,
        job_id: str,
        operator_name: str,
        subtask: int,
        parallelism: int,
        attempt: int,
        clock: Any,
        restored_state: Sequence[Any] = (),
        restored_checkpoint_id: int | None = None,
        operator_id: str = "",
        restored_committables: Sequence[Any] = (),
        committables_of_all: Sequence[Any] = (),
        of_one_attempt: bool = False,
    ) -> None:
        self.job_id = job_id
        self.operator_name = operator_name
        self.subtask = subtask
        self.parallelism = parallelism
        self.attempt = attempt
        self.clock = clock
        self.restored_state = list(restored_state)
        self.restored_checkpoint_id = restored_checkpoint_id
        self.operator_id = operator_id
        self.restored_committables = list(restored_committables)
        self.committables_of_all = list(committables_of_all)
        self.of_one_attempt = of_one_attempt
        # From any thread: the writer may be `available` again. None: nobody would hear it (BATCH).
        self.wake: Callable[[], None] | None = None
        self.memo: Any = None  # what the writer in the micro-batch before had to say: see `SinkWriter.memo`


class SinkWriter(abc.ABC, Generic[T, CommT]):
    """Writes records. All calls come from the mailbox thread, in this order::

    write_batch* (flush prepare_commit snapshot_state)* ... flush(True) prepare_commit snapshot_state* close
    """

    @abc.abstractmethod
    def write_batch(self, values: list[T], timestamps: list[int] | None) -> None: ...

    def flush(self, end_of_input: bool) -> None:
        """Hand everything to the outside (pre-commit). Called before every checkpoint and at the end of input."""

    def prepare_commit(self) -> list[CommT]:
        """Picklable committables for all that was written since the last call. Part of the checkpoint."""
        return []

    def snapshot_state(self, checkpoint_id: int) -> list[Any]:
        """Picklable writer state, e.g. open files; items are dealt out over the subtasks when the job is rescaled."""
        return []

    @property
    def available(self) -> bool:
        """False while the writer cannot take more; the task then waits without blocking the slot. It looks again when
        something else happens in the slot, after a second if nothing does, and at once after `SinkContext.wake`."""
        return True

    def memo(self) -> Any:
        """Picklable: what the writer of the same subtask in the next micro-batch finds in `SinkContext.memo`; what was
        prepared before is committed by then. It is no part of snapshots, and gone after a restart. Called after
        `snapshot_state`."""
        return None

    def close(self) -> None:
        """Called once, also after a failure. Must not commit anything."""


class CommittableLostError(TidegateError):
    """What a committable stands for is gone from the outside: no later try can commit it."""


class Committer(abc.ABC, Generic[CommT]):
    """Makes committables visible. Runs on a helper thread, so it may block. Must be idempotent: after a crash the same
    committables are committed again."""

    @abc.abstractmethod
    def commit(self, committables: list[CommT]) -> list[CommT]:
        """Commit all; return those to be retried later. An exception counts as a failed try of all. A committable is
        retried with back-off, and the job fails rather than drop one; at once after a `CommittableLostError`."""

    def close(self) -> None: ...


class Sink(abc.ABC, Generic[T, CommT]):
    """Base of all sinks. An instance is pickled to the workers."""

    sees_all_committables = False
    """True: each writer is told at its start what waits to be committed in all subtasks (see `SinkContext`)."""

    def shown_to_all(self, committable: CommT) -> Any:
        """What `committables_of_all` has of a committable: itself, unless that is large and others need less of it."""
        return committable

    @abc.abstractmethod
    def create_writer(self, context: SinkContext) -> SinkWriter[T, CommT]: ...

    def for_declared_type(self) -> Sink[T, CommT]:
        """The sink for a stream whose type the program has declared: itself, unless that makes a difference, as it does
        to text, which then is what Flink prints."""
        return self

    def create_committer(self) -> Committer[CommT] | None:
        """The committer of this sink. None: the sink has one phase, and there is nothing to commit."""
        return None

    def discard_leftovers(self, job_id: str) -> None:
        """Called on the driver when a BATCH job is over: delete what its writers wrote and nobody committed. In BATCH
        mode every attempt of a task has an `operator_id` of its own in its SinkContext, so that a writer takes nothing
        of another attempt for a left-over of its own. Also called when a MICRO_BATCH job was cancelled or has failed
        that nobody can go on from: it has neither a checkpoint location that outlives it nor a savepoint."""

    def discard_uncommitted(self, job_id: str) -> None:
        """Called on the driver when a MICRO_BATCH job was cancelled or has failed, when all that counts is committed
        and no writer is at work: undo what writers have prepared or left open outside, such as transactions that hold
        locks, as the writers of the next attempt would when they open. The job may be gone on with: what
        `snapshot_state` has returned has to stay."""


class StreamTransformer(abc.ABC):
    """What is done to a stream before it gets to a sink."""

    @abc.abstractmethod
    def apply(self, ds: Any) -> Any:
        """The stream that the sink takes instead of `ds`."""


class SupportsPreprocessing(abc.ABC):
    """A sink that has something done to the stream first: `DataStream.sink_to` applies the transformer."""

    @abc.abstractmethod
    def get_transformer(self) -> StreamTransformer | None: ...
