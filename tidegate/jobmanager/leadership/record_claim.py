"""A leader's hold on the record of its job: a pure core, without I/O, threads or clocks of its own.

Whoever has the lease claims the record: reads it, and writes it back under an epoch that is higher by one, on the
condition that nobody has written it since. From then on it is the only one that can write it, until somebody else
claims it, of which it learns by being refused. So what counts is decided by one conditional write:

- a checkpoint is complete when the record names it, and neither before (its metadata may be there already: it is
  ignored) nor after (its files may be gone only when the record names a newer one);
- a job has ended when the record says so.

A driver that was frozen before such a write, for however long, is refused. One that was frozen after it has done no
harm: what it had decided is what the next leader reads.

The lease (`storage.leases`) is what keeps two drivers from claiming the record from each other in turns, and what tells
a leader to stop that cannot know whether it still is one. It has to be held at every step, which the host says.

A write whose answer was lost may have been carried out, or be carried out later. It is repeated as it is: with the same
number (`beat`), and on the same condition. Of the two at most one is carried out, and a look tells.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from tidegate.common.ids import CheckpointId
from tidegate.common.job_status import JobStatus
from tidegate.jobmanager.leadership.job_record import JobRecord, SnapshotPointer, why_not
from tidegate.protocol.instructions import Recording

# ---------------------------------------------------------------- instructions and their answers


@dataclass(frozen=True)
class ReadRecord:
    """Answer with `RecordFound`, `RecordUnusable` or `RecordUnanswered`."""


@dataclass(frozen=True)
class PutRecord:
    """Write it if the version in the store is `expected` (None: if there is nothing). Answer with `RecordWritten`,
    `RecordRefused` or `RecordUnanswered`."""

    record: JobRecord
    expected: str | None


RecordInstruction = ReadRecord | PutRecord


@dataclass(frozen=True)
class RecordFound:
    record: JobRecord | None
    version: str | None


@dataclass(frozen=True)
class RecordUnusable:
    why: str


@dataclass(frozen=True)
class RecordWritten:
    version: str


@dataclass(frozen=True)
class RecordRefused:
    """There is another version, or none."""


@dataclass(frozen=True)
class RecordUnanswered:
    """Nobody knows whether it was carried out, or will be."""


RecordAnswer = RecordFound | RecordUnusable | RecordWritten | RecordRefused | RecordUnanswered


# ---------------------------------------------------------------- what a leader wants recorded


@dataclass(frozen=True)
class CheckpointCompleted:
    pointer: SnapshotPointer
    num_retained: int = 1  # so many are there as long as it is the newest one
    refused: tuple[CheckpointId, ...] = ()  # that nobody may fall back to: their place is for those that can be read


@dataclass(frozen=True)
class SavepointCompleted:
    pointer: SnapshotPointer
    stop: bool = False  # the job ends with it: what it holds is committed, and nothing comes after it


@dataclass(frozen=True)
class JobOver:
    status: JobStatus  # FINISHED, CANCELED or FAILED
    reason: str = ""


Change = CheckpointCompleted | SavepointCompleted | JobOver

MAX_OLDER = 10
"""Checkpoints that a record names behind the newest one: all of them are read at the start of a leader."""


def applied(record: JobRecord, change: Change) -> JobRecord | None:
    """The record with the change; None when it has been superseded. A checkpoint is never replaced by an older one. A
    stop stays: what its savepoint holds is committed, and any other savepoint that was still being written at that time
    is nothing that the job goes on from."""
    match change:
        case CheckpointCompleted(pointer, num_retained, refused):
            if record.checkpoint is not None and pointer.checkpoint_id <= record.checkpoint.checkpoint_id:
                return None
            named = () if record.checkpoint is None else (record.checkpoint, *record.older)
            before = tuple(older for older in named if older.checkpoint_id not in refused)
            kept = min(num_retained - 1, MAX_OLDER)
            return msgspec.structs.replace(record, checkpoint=pointer, older=before[:kept])
        case SavepointCompleted(pointer, stop):
            if record.stopped and not stop:
                return None
            return msgspec.structs.replace(record, savepoint=pointer, stopped=stop)
        case JobOver(status, reason):
            return msgspec.structs.replace(record, status=status.name, reason=reason)


# ---------------------------------------------------------------- states


@dataclass(frozen=True)
class Claiming:
    """The lease is held; the record is not ours yet."""


@dataclass(frozen=True)
class Leading:
    record: JobRecord  # as it lies in the store, unless somebody else has claimed it
    version: str


@dataclass(frozen=True)
class Barred:
    """The record is not for this program: nothing was written."""

    why: str
    record: JobRecord | None = None  # of a job that has ended


@dataclass(frozen=True)
class Deposed:
    """For good."""


State = Claiming | Leading | Barred | Deposed


@dataclass
class RecordClaim:
    """`start` once, when the lease is held; then `change` as often as one likes. `on_answer` and `on_tick` (due at
    `next_deadline`) may return an instruction; there is never more than one without an answer. What has become of
    changes is in `settled`, in their order, for the host to take."""

    owner: str  # nobody else ever has the same
    candidate: JobRecord  # job id, name and graph of this program; the job id of a record that is there wins
    where: str  # for people
    retry_ms: float = 200.0
    state: State = field(default_factory=Claiming)
    settled: list[tuple[int, Recording]] = field(default_factory=list)  # number of the change -> what became of it
    _wanted: deque[tuple[int, Change]] = field(default_factory=deque)  # the first one may be under way
    _under_way: PutRecord | None = None  # written, or perhaps not: repeated until that is known
    _refused: PutRecord | None = None  # of which that was the last answer
    _asked: bool = False
    _retry_at: float | None = None
    _beat: int = 0

    def start(self) -> RecordInstruction:
        return self._ask(ReadRecord())

    def change(self, number: int, change: Change) -> RecordInstruction | None:
        """Its outcome comes to `settled` under this number."""
        self._wanted.append((number, change))
        if isinstance(self.state, Barred | Deposed):
            self._depose()
            return None
        return self._next()

    def next_deadline(self) -> float | None:
        return self._retry_at

    def on_tick(self, now_ms: float, held: bool) -> RecordInstruction | None:
        """`held`: whether the lease is, now; so with `on_answer`."""
        if self._asked or self._retry_at is None or now_ms < self._retry_at:
            return None
        self._retry_at = None
        if not held:
            self._depose()
            return None
        return self._ask(ReadRecord())

    def on_answer(self, answer: RecordAnswer, now_ms: float, held: bool) -> RecordInstruction | None:
        self._asked = False
        if isinstance(self.state, Barred | Deposed):
            return None
        match answer:
            case RecordWritten(version):
                assert self._under_way is not None
                return self._own(self._under_way.record, version)
            case RecordFound(record, version):
                return self._on_found(record, version, held)
            case RecordUnusable(why) if not isinstance(self.state, Leading):
                self.state = Barred(why)
            case RecordRefused() if held:
                if self._under_way is self._refused:  # though a look has shown that it should not be
                    self._retry_at = now_ms + self.retry_ms
                    return None
                self._refused = self._under_way
                return self._ask(ReadRecord())
            case RecordUnanswered() if held:
                self._retry_at = now_ms + self.retry_ms
            case RecordUnusable() | RecordRefused() | RecordUnanswered():
                self._depose()
        return None

    def give_up(self) -> None:
        """The lease is lost: nothing more is written, and what is not settled will not be."""
        if not isinstance(self.state, Barred):
            self._depose()

    # ------------------------------------------------------------ steps
    def _on_found(self, record: JobRecord | None, version: str | None, held: bool) -> RecordInstruction | None:
        under_way = self._under_way
        if record is not None and under_way is not None and _same(record, under_way.record):
            assert version is not None
            return self._own(record, version)  # a write whose answer was lost
        if held and under_way is not None and version == under_way.expected:
            return self._put(under_way)  # as it was: if the first one comes after all, one of the two is refused
        if not held or isinstance(self.state, Leading):
            self._depose()
            return None
        if record is None:
            return self._put(PutRecord(self._signed(self.candidate, 1), None))
        why = why_not(record, self.candidate, self.where)
        if why is not None:
            self.state = Barred(why)
            return None
        if record.ended:
            self.state = Barred(_has_ended(record, self.where), record)
            return None
        return self._put(PutRecord(self._signed(record, record.epoch + 1), version))

    def _own(self, record: JobRecord, version: str) -> RecordInstruction | None:
        self._under_way = None
        if isinstance(self.state, Leading):
            self.settled.append((self._wanted.popleft()[0], Recording.WRITTEN))
        self.state = Leading(record, version)
        return self._next()

    def _next(self) -> RecordInstruction | None:
        if not isinstance(self.state, Leading) or self._asked or self._under_way is not None:
            return None
        while self._wanted:
            number, change = self._wanted[0]
            record = applied(self.state.record, change)
            if record is not None:
                return self._put(PutRecord(self._signed(record, record.epoch), self.state.version))
            self._wanted.popleft()
            self.settled.append((number, Recording.SUPERSEDED))
        return None

    def _put(self, put: PutRecord) -> RecordInstruction:
        self._under_way = put
        return self._ask(put)

    def _signed(self, record: JobRecord, epoch: int) -> JobRecord:
        self._beat += 1
        return msgspec.structs.replace(record, epoch=epoch, owner=self.owner, beat=self._beat)

    def _ask(self, instruction: RecordInstruction) -> RecordInstruction:
        assert not self._asked
        self._asked = True
        self._retry_at = None
        return instruction

    def _depose(self) -> None:
        if not isinstance(self.state, Barred):
            self.state = Deposed()
        self._retry_at = None
        self.settled += [(number, Recording.DEPOSED) for number, _ in self._wanted]
        self._wanted.clear()

    def check_invariants(self) -> None:
        if isinstance(self.state, Leading):
            assert self.state.record.owner == self.owner
            assert self.state.record.epoch > 0
        else:
            assert not self._wanted or isinstance(self.state, Claiming)


def _has_ended(record: JobRecord, where: str) -> str:
    return (
        f"the job '{record.name}' ({record.job_id}) of {where} has ended as {record.status}, and is not started again: "
        "to run it anew, use another high-availability.cluster-id"
    )


def _same(record: JobRecord, other: JobRecord) -> bool:
    return (record.owner, record.beat) == (other.owner, other.beat)
