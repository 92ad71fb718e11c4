"""What a subtask leaves behind for the next batch, and where: one small blob of its own, and one for each bucket of
keys that has any state. All of it is in Spark's state store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.storage.handles import KeyedSnapshot, OperatorRestore, OperatorSnapshot, handle_size


class TaskMemory(Protocol):
    """The state of one subtask in Spark's state store, as of the batch before. Every call costs a round trip."""

    def own(self) -> bytes | None: ...

    def keep_own(self, blob: bytes) -> None: ...

    def bucket(self, number: int) -> bytes | None: ...

    def all_buckets(self) -> Iterator[tuple[int, bytes]]: ...

    def keep_bucket(self, number: int, blob: bytes) -> None: ...

    def drop_bucket(self, number: int) -> None: ...


class OwnState(msgspec.Struct, frozen=True, kw_only=True):
    """All but the keyed state."""

    checkpoint_id: CheckpointId  # of the batch that wrote it
    operators: list[OperatorSnapshot]  # their list states
    ended_inputs: list[int] = []  # input channels that have come to their end
    ended: bool = False  # the subtask has processed all its input
    drained: bool = False  # only because it was told to
    timers: dict[int, tuple[int, int]] = {}  # bucket -> its next event timer and processing timer; NO_TIMER: none
    buckets: dict[int, int] = {}  # those that have a blob -> its bytes
    lone: list[int] = []  # large buckets with a single key: they cannot be cut
    skew_cut: int = 0  # the `skew` that was there when the keys were cut last; 0: none, or it is over
    figures: dict[str, tuple[int, int]] | None = None  # see Figures; None: not known, a version before wrote this
    buckets_per_group: int = 0  # how the keys are cut; 0: as the plan says
    turns: list[int] = []  # of the outputs that take their channels in turn, by edge
    memo: bytes = b""  # pickled: place of an operator -> what it says to its successor (`RemembersBatches`)
    attempt: int = -1  # of the query that wrote it: the memo is of no use to another
    watermark: int = MIN_WATERMARK  # where its time was
    reached: int = MAX_WATERMARK  # how far it can go when inputs become idle

    def wanted_per_group(self, planned: int) -> int:
        """Into how many buckets the next batch cuts a key group: twice as many when they have grown too large, all or
        one of them."""
        now = self.buckets_per_group or planned
        sizes = self._cuttable()
        grown = sum(sizes) > MOST_BUCKET_BYTES * len(sizes)
        return 2 * now if now < _MOST_PER_GROUP and (grown or self._cut_for_skew()) else now

    @property
    def skew(self) -> int:
        """The bytes of the largest bucket that can be cut, when it stands out; 0: none does."""
        largest = max(self._cuttable(), default=0)
        return largest if largest > _SKEWED * MOST_BUCKET_BYTES else 0

    def skew_met(self, cut: bool) -> int:
        """`skew_cut` of the batch that begins with this. `cut`: it has cut the keys anew."""
        return self.skew if cut or not self.skew else self.skew_cut

    def _cuttable(self) -> list[int]:
        lone = set(self.lone)
        return [size for bucket, size in self.buckets.items() if bucket not in lone]

    def _cut_for_skew(self) -> bool:
        """Not when the cut before has not made it smaller: then it is one of the keys that is so large, and all other
        buckets would be cut to pieces for the sake of what lies beside it."""
        skew, before = self.skew, self.skew_cut
        return skew > 0 and not before * 3 // 4 < skew < before * 2


NO_TIMER = 2**63 - 1
MOST_BUCKET_BYTES = 1 << 18
"""On the average. A batch that touches one key reads and writes its whole bucket, and a row of Spark is in memory."""

_SKEWED = 8  # times as large is a bucket that is cut though the others are small
_MOST_PER_GROUP = 1 << 12

KeyedStates = dict[OperatorId, KeyedSnapshot]
Figures = dict[str, tuple[int, int]]
"""`figure_name` of a state -> its entries and bytes in all buckets of a subtask."""

_encode = msgspec.msgpack.encode
_decode_own = msgspec.msgpack.Decoder(OwnState).decode
_decode_bucket = msgspec.msgpack.Decoder(dict[str, KeyedSnapshot]).decode


def dump_own(state: OwnState) -> bytes:
    return _encode(state)


def load_own(blob: bytes) -> OwnState:
    return _decode_own(blob)


def dump_bucket(states: KeyedStates) -> bytes:
    return _encode(states)


def is_large(bucket: bytes) -> bool:
    return len(bucket) > MOST_BUCKET_BYTES


def load_bucket(blob: bytes) -> KeyedStates:
    return _decode_bucket(blob)  # type: ignore[return-value]


def figure_name(operator_id: OperatorId, state: str) -> str:
    return f"{operator_id}/{state}"


def figures_of(states: KeyedStates) -> Figures:
    """Of one bucket."""
    found: Figures = {}
    for operator_id, snapshot in states.items():
        for chunk in (chunk for increment in snapshot.increments for chunk in increment.chunks):
            name = figure_name(operator_id, chunk.state)
            entries, size = found.get(name, (0, 0))
            found[name] = entries + chunk.entries, size + handle_size(chunk.handle)
    return found


def add_difference(figures: Figures, before: Figures, after: Figures) -> None:
    """A bucket that had `before` has `after` now."""
    for name in before.keys() | after.keys():
        parts = zip(figures.get(name, (0, 0)), before.get(name, (0, 0)), after.get(name, (0, 0)), strict=True)
        entries, size = (total - old + new for total, old, new in parts)
        figures[name] = entries, size


def restores_of(own: OwnState, buckets: Iterable[KeyedStates]) -> dict[OperatorId, OperatorRestore]:
    """What each operator gets back: its lists, and the keyed state of the buckets that were loaded."""
    keyed: dict[OperatorId, list[KeyedSnapshot]] = {}
    for states in buckets:
        for operator_id, snapshot in states.items():
            keyed.setdefault(operator_id, []).append(snapshot)
    return {
        operator.operator_id: OperatorRestore(
            operator_id=operator.operator_id,
            keyed=keyed.get(operator.operator_id, []),
            lists=[state for state in operator.lists if state.mode != "split"],
            split_items={s.name: [(s.handle, 0, s.count)] for s in operator.lists if s.mode == "split"},
        )
        for operator in own.operators
    }
