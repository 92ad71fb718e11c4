"""Who owns a name in a store, one at a time: a pure core, without I/O, threads or clocks of its own.

The store holds one small record. It is changed only by a conditional write: "put this, if what is there still has the
version that I have read". The owner renews the record again and again; whoever wants to take it over watches it.

1. An owner trusts a record for `lease_ms` from the moment at which it *began* to write it, by its own steady clock.
2. A taker waits until it has itself seen the record unchanged for `lease_ms` and a margin for clocks that run at
   different rates, by its own steady clock, and only then tries to replace it. Since it saw the record after the owner
   began to write it, the owner has stopped trusting it by then. No two clocks are ever compared.
3. The owner's renewal and the taker's claim are both conditional on the version before: one of them is refused.
4. Every taker writes an epoch that is higher by one: the fencing number, under which it may write elsewhere.

What an owner does under the lease it does when `held` has just said yes. A process can still be frozen between the
question and the deed: what must not happen even then has to carry the epoch, and be refused by it.

A write whose answer was lost may have been carried out, or be carried out later. Every write has a number (`beat`) that
is never used twice, so a look at the record tells which of them it was, and from when the lease counts.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

_REMEMBERED = 64  # tries whose answers never came


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the store, as JSON."""

    owner: str  # of one lease of one process: nobody else ever has the same
    epoch: int  # one more with every taker
    beat: int  # one more with every write of the owner
    lease_ms: float
    released: bool = False
    host: str = ""  # for people
    pid: int = 0  # for people, and for those on the same machine
    machine: str = ""  # two processes with the same one see each other's ids


@dataclass(frozen=True)
class Stored:
    record: LeaseRecord | None  # None: not a record of ours; it is waited out like any other
    version: str  # never the same for two contents


@dataclass(frozen=True)
class LeaseTimes:
    lease_ms: float = 15_000.0
    renew_ms: float = 4_000.0  # after the beginning of the last write; well below a third of the lease
    look_ms: float = 1_000.0  # between two looks at a record of somebody else, and after a failure
    drift: float = 0.05  # by how much two clocks may differ in their rate

    @property
    def request_s(self) -> float:
        """How long one request to the store may take: after one that hangs there is still time to ask again."""
        return self.lease_ms / 4000.0

    def __post_init__(self) -> None:
        assert 0 < self.renew_ms <= self.lease_ms / 2
        assert self.look_ms > 0


# ---------------------------------------------------------------- instructions and their answers


@dataclass(frozen=True)
class Read:
    """Read the record; answer with `Found` or `Unanswered`."""


@dataclass(frozen=True)
class Put:
    """Write the record if the version in the store is `expected` (None: if there is nothing); answer with `Written`,
    `Refused` or `Unanswered`."""

    record: LeaseRecord
    expected: str | None


Instruction = Read | Put


@dataclass(frozen=True)
class Found:
    stored: Stored | None


@dataclass(frozen=True)
class Written:
    version: str


@dataclass(frozen=True)
class Refused:
    """There is another version, or none."""


@dataclass(frozen=True)
class Unanswered:
    """Nobody knows whether it was carried out, or will be."""

    why: str = ""  # for people


Answer = Found | Written | Refused | Unanswered


# ---------------------------------------------------------------- states


class End(enum.Enum):
    LOST = "another owner has the lease, or its record was deleted"
    RELEASED = "it was given back"


@dataclass(frozen=True)
class Watching:
    """Somebody else's record, or none yet."""

    seen: Stored | None = None
    since_ms: float = 0.0  # when `seen` was first seen
    look_at_ms: float = 0.0


@dataclass(frozen=True)
class Owning:
    epoch: int
    version: str
    trusted_until_ms: float
    renew_at_ms: float
    in_doubt: bool = False  # the last write was refused or not answered: look before the next


@dataclass(frozen=True)
class Over:
    end: End


State = Watching | Owning | Over


@dataclass
class Lease:
    """Events: `on_tick`, `on_answer`, `release`, `rival_is_dead`; each may return one instruction, and there is never
    more than one without an answer. `on_tick` is due at `next_deadline`. A lease that is over stays over: make a new
    one to try again."""

    owner: str
    times: LeaseTimes
    about: Mapping[str, str | int] = field(default_factory=dict)  # host, pid, machine
    state: State = field(default_factory=Watching)
    rival_changed: bool = False  # the record of another owner was seen to change: it is alive
    _beat: int = 0  # of the last write
    _begun: dict[int, float] = field(default_factory=dict)  # beat -> when its write began; those that may still count
    _asked: Instruction | None = None
    _refused: tuple[str | None] | None = None  # the version at which a write was refused, and none was made since

    # ------------------------------------------------------------ what is known
    def held(self, now_ms: float) -> bool:
        """Whether this owner may act as such at this moment."""
        return isinstance(self.state, Owning) and now_ms < self.state.trusted_until_ms

    def valid_ms(self, now_ms: float) -> float:
        """How long `held` will say yes if nothing more is heard of the store."""
        return max(0.0, self.state.trusted_until_ms - now_ms) if isinstance(self.state, Owning) else 0.0

    @property
    def epoch(self) -> int:
        """The fencing number; 0 when the lease was never held or is over."""
        return self.state.epoch if isinstance(self.state, Owning) else 0

    @property
    def rival(self) -> LeaseRecord | None:
        return self.state.seen.record if isinstance(self.state, Watching) and self.state.seen is not None else None

    def next_deadline(self) -> float | None:
        if self._asked is not None:
            return None
        match self.state:
            case Watching(look_at_ms=at) | Owning(renew_at_ms=at):
                return at
            case Over():
                return None

    # ------------------------------------------------------------ events
    def on_tick(self, now_ms: float) -> Instruction | None:
        deadline = self.next_deadline()
        if deadline is None or now_ms < deadline:
            return None
        if isinstance(self.state, Owning) and not self.state.in_doubt:
            return self._put(self.state.epoch, self.state.version, now_ms)
        return self._ask(Read())

    def rival_is_dead(self) -> None:
        """The process that wrote the record which is being watched is known to be gone: it is not waited out."""
        if isinstance(self.state, Watching) and self.state.seen is not None:
            self.state = Watching(self.state.seen, float("-inf"), float("-inf"))

    def release(self, now_ms: float) -> Instruction | None:
        """From now on `held` says no. The answer to what is returned may be ignored. The store must not be asked
        anything else meanwhile: wait for the answer to what is under way first."""
        state, self.state, self._asked = self.state, Over(End.RELEASED), None
        if not isinstance(state, Owning):
            return None
        return Put(self._record(state.epoch, released=True), state.version)

    def on_answer(self, answer: Answer, now_ms: float) -> Instruction | None:
        asked, self._asked = self._asked, None
        match self.state:
            case Over():
                return None
            case Watching():
                return self._on_answer_watching(self.state, asked, answer, now_ms)
            case Owning():
                return self._on_answer_owning(self.state, asked, answer, now_ms)

    # ------------------------------------------------------------ watching
    def _on_answer_watching(
        self, state: Watching, asked: Instruction | None, answer: Answer, now_ms: float
    ) -> Instruction | None:
        match answer:
            case Found(stored):
                return self._on_found(state, stored, now_ms)
            case Written(version):
                assert isinstance(asked, Put)
                self._own(asked.record, version)
                return None
            case Refused():
                if self._refused_again(asked):
                    self.state = Watching(state.seen, state.since_ms, now_ms + self.times.look_ms)
                    return None
                return self._ask(Read())
            case Unanswered():
                self.state = Watching(state.seen, state.since_ms, now_ms + self.times.look_ms)
                return None

    def _on_found(self, state: Watching, stored: Stored | None, now_ms: float) -> Instruction | None:
        if stored is None:
            self.state = Watching(look_at_ms=now_ms + self.times.look_ms)
            return self._put(1, None, now_ms)
        record = stored.record
        if record is not None and record.owner == self.owner:  # a claim whose answer was lost
            self._own(record, stored.version)
            return None
        since = now_ms
        if state.seen is not None:
            if state.seen.version == stored.version:
                since = state.since_ms
            elif record is not None and state.seen.record is not None and state.seen.record.owner == record.owner:
                self.rival_changed = True
        free_at = since + self._wait_ms(record)
        if now_ms >= free_at or (record is not None and record.released):
            self.state = Watching(stored, since, now_ms + self.times.look_ms)
            return self._put((record.epoch if record is not None else 0) + 1, stored.version, now_ms)
        self.state = Watching(stored, since, min(free_at, now_ms + self.times.look_ms))
        return None

    def _wait_ms(self, record: LeaseRecord | None) -> float:
        """How long a record has to be seen unchanged: as its owner trusts it, not as we would."""
        promised = record.lease_ms if record is not None else 0.0
        return max(promised, self.times.lease_ms) * (1 + self.times.drift)

    # ------------------------------------------------------------ owning
    def _on_answer_owning(
        self, state: Owning, asked: Instruction | None, answer: Answer, now_ms: float
    ) -> Instruction | None:
        match answer:
            case Written(version):
                assert isinstance(asked, Put)
                self._own(asked.record, version)
                return None
            case Refused():
                # Perhaps by an earlier write of our own, whose answer was lost.
                if self._refused_again(asked):
                    self.state = _in_doubt(state, now_ms + self.times.look_ms)
                    return None
                self.state = _in_doubt(state, now_ms)
                return self._ask(Read())
            case Unanswered():
                self.state = _in_doubt(state, now_ms + self.times.look_ms)
                return None
            case Found(stored):
                record = stored.record if stored is not None else None
                if stored is None or record is None or record.owner != self.owner or record.epoch != state.epoch:
                    self.state = Over(End.LOST)
                    return None
                self._own(record, stored.version)
                # It is trusted from the time of the write that was found: renewed at once if that was long ago.
                return self.on_tick(now_ms)

    # ------------------------------------------------------------ steps
    def _refused_again(self, asked: Instruction | None) -> bool:
        """Whether the store refuses what it should accept: the second write at one version, which a look has shown to
        be the right one. It is asked again after a pause, and not as fast as it answers."""
        assert isinstance(asked, Put)
        before, self._refused = self._refused, (asked.expected,)
        return before == self._refused

    def _own(self, record: LeaseRecord, version: str) -> None:
        if version != (self._refused and self._refused[0]):
            self._refused = None
        begun = self._begun.get(record.beat, float("-inf"))  # forgotten: then it is not trusted, and renewed at once
        self.state = Owning(record.epoch, version, begun + self.times.lease_ms, begun + self.times.renew_ms)
        self._begun = {beat: at for beat, at in self._begun.items() if beat >= record.beat}

    def _put(self, epoch: int, expected: str | None, now_ms: float) -> Instruction:
        record = self._record(epoch)
        self._begun[record.beat] = now_ms
        if len(self._begun) > _REMEMBERED:
            del self._begun[min(self._begun)]
        return self._ask(Put(record, expected))

    def _record(self, epoch: int, released: bool = False) -> LeaseRecord:
        self._beat += 1
        return LeaseRecord(
            owner=self.owner,
            epoch=epoch,
            beat=self._beat,
            lease_ms=self.times.lease_ms,
            released=released,
            **self.about,  # type: ignore[arg-type]
        )

    def _ask(self, instruction: Instruction) -> Instruction:
        assert self._asked is None
        self._asked = instruction
        return instruction

    def check_invariants(self) -> None:
        if isinstance(self.state, Owning):
            assert self.state.epoch > 0
            assert self.state.version
        assert len(self._begun) <= _REMEMBERED


def _in_doubt(state: Owning, look_at_ms: float) -> Owning:
    return Owning(state.epoch, state.version, state.trusted_until_ms, look_at_ms, in_doubt=True)
