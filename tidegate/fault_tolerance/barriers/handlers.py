"""When a task with inputs takes its snapshot: the barrier handlers. Pure; read `docs/concepts/barriers.md` first.

The host tells a handler two things about a barrier: that it *arrived* (it came from the network, perhaps behind batches
that are still queued) and that it was *reached* (everything before it on its channel has been processed). The answer
is a list of actions, to be carried out in order.

Exactly-once is a machine of three states, a class each::

    Idle ──first barrier──▶ Aligning ──all reached──▶ Idle          (Snapshot, aligned)
      │                        │ timeout, or an unaligned barrier
      └──unaligned barrier──▶ Recording ──all arrived──▶ Idle       (Snapshot, unaligned; then InputsComplete)

At-least-once (`BarrierTracker`) never blocks a channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from tidegate.common.ids import CheckpointId
from tidegate.network.elements import Alignment, CheckpointBarrier

# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class Block:
    """Take nothing more from this channel."""

    channel: int


@dataclass(frozen=True)
class UnblockAll:
    """Take from every channel again."""


@dataclass(frozen=True)
class Snapshot:
    """Forward the barrier and take the snapshot now. Unaligned: also persist what is queued before the barrier on every
    channel, and record what arrives on the `pending` channels until their barriers come."""

    barrier: CheckpointBarrier
    unaligned: bool
    first_arrival_ms: float
    pending: frozenset[int] = frozenset()


@dataclass(frozen=True)
class DropBarrier:
    """Remove this checkpoint's barrier from the channel's queue: it has been dealt with, or is stale."""

    channel: int
    checkpoint_id: CheckpointId


@dataclass(frozen=True)
class InputsComplete:
    """All barriers of an unaligned checkpoint have come: its channel state is complete."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True)
class Abandon:
    """The checkpoint cannot complete here (a newer one has come): decline it, forget what was collected for it."""

    checkpoint_id: CheckpointId


Action = Block | UnblockAll | Snapshot | DropBarrier | InputsComplete | Abandon


class BarrierHandler(Protocol):
    def arrived(self, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]: ...

    def reached(self, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]: ...

    def aborted(self, checkpoint_id: CheckpointId) -> list[Action]:
        """The coordinator gave the checkpoint up; may come before any of its barriers, or long after."""

    def tick(self, now_ms: float) -> list[Action]: ...

    def next_deadline(self) -> float | None: ...

    @property
    def aligning(self) -> bool:
        """True between the first barrier of a checkpoint and its snapshot."""


# ---------------------------------------------------------------- at least once


class BarrierTracker:
    """Counts barriers, never blocks. Records that overtake on another channel are in the snapshot, and replayed."""

    MAX_TRACKED = 50  # checkpoints at once; older ones are forgotten (they cannot complete any more)

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._seen: dict[CheckpointId, set[int]] = {}  # ascending ids
        self._first_ms: dict[CheckpointId, float] = {}
        self._last = CheckpointId(0)  # highest id that was snapshotted, or is too old to be
        self._aborted: set[CheckpointId] = set()  # ids > _last; their barriers may still come, and mean nothing then

    @property
    def aligning(self) -> bool:
        return bool(self._seen)

    def arrived(self, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        return []

    def reached(self, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        n = barrier.checkpoint_id
        if n <= self._last or n in self._aborted:
            return []
        seen = self._seen.setdefault(n, set())
        seen.add(channel)
        first = self._first_ms.setdefault(n, now_ms)
        if len(seen) < self._channels:
            while len(self._seen) > self.MAX_TRACKED:
                self._forget_up_to(min(self._seen))
            return []
        overtaken = [Abandon(older) for older in self._seen if older < n]
        self._forget_up_to(n)
        return [*overtaken, Snapshot(barrier, unaligned=False, first_arrival_ms=first)]

    def aborted(self, checkpoint_id: CheckpointId) -> list[Action]:
        self._seen.pop(checkpoint_id, None)
        self._first_ms.pop(checkpoint_id, None)
        if checkpoint_id > self._last:
            self._aborted.add(checkpoint_id)
            while len(self._aborted) > self.MAX_TRACKED:
                self._forget_up_to(min(self._aborted))
        return []

    def tick(self, now_ms: float) -> list[Action]:
        return []

    def next_deadline(self) -> float | None:
        return None

    def _forget_up_to(self, n: CheckpointId) -> None:
        self._last = max(self._last, n)
        for old in [i for i in self._seen if i <= n]:
            del self._seen[old]
            del self._first_ms[old]
        self._aborted = {i for i in self._aborted if i > n}


# ---------------------------------------------------------------- exactly once


class ExactlyOnceHandler:
    """Runs the state machine in the module's docstring. Only `_become` changes `state`."""

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.state: Idle | Aligning | Recording = Idle()
        self.last = CheckpointId(0)  # highest id that is over here: snapshotted, abandoned or aborted
        self.aborted_early: set[CheckpointId] = set()  # aborted ids > last whose barriers have not come
        self.queued: dict[CheckpointId, set[int]] = {}  # ids > last -> channels whose barrier arrived, not yet reached

    @property
    def aligning(self) -> bool:
        return isinstance(self.state, Aligning)

    def arrived(self, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        if self._stale(barrier):
            return [DropBarrier(channel, barrier.checkpoint_id)]
        self.queued.setdefault(barrier.checkpoint_id, set()).add(channel)
        return self.state.arrived(self, channel, barrier, now_ms)

    def reached(self, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        if self._stale(barrier):
            return []
        self.queued.get(barrier.checkpoint_id, set()).discard(channel)
        return self.state.reached(self, channel, barrier, now_ms)

    def aborted(self, checkpoint_id: CheckpointId) -> list[Action]:
        if checkpoint_id <= self.last:
            return []
        if self.state.checkpoint_id == checkpoint_id:
            actions = self.state.give_up()
            self._become(Idle(), over=checkpoint_id)
            return actions
        self.aborted_early.add(checkpoint_id)
        return []

    def tick(self, now_ms: float) -> list[Action]:
        if isinstance(self.state, Aligning) and self.state.deadline is not None and now_ms >= self.state.deadline:
            return self.state.turn_unaligned(self, self.state.barrier)
        return []

    def next_deadline(self) -> float | None:
        return self.state.deadline if isinstance(self.state, Aligning) else None

    # ------------------------------------------------------------ for the states
    def start(self, channel: int, barrier: CheckpointBarrier, now_ms: float, reached: bool) -> list[Action]:
        """The first barrier of a checkpoint."""
        state = Aligning(barrier, now_ms)
        self._become(state)
        return (
            state.reached(self, channel, barrier, now_ms) if reached else state.arrived(self, channel, barrier, now_ms)
        )

    def record(self, checkpoint_id: CheckpointId, pending: set[int]) -> None:
        self._become(Recording(checkpoint_id, pending))

    def finished(self, checkpoint_id: CheckpointId) -> None:
        self._become(Idle(), over=checkpoint_id)

    def abandon(self, newer: CheckpointBarrier, channel: int, now_ms: float, reached: bool) -> list[Action]:
        """A newer checkpoint's barrier has come: the current one cannot complete any more."""
        old = self.state.checkpoint_id
        actions = [*self.state.give_up(), Abandon(old)]
        self._become(Idle(), over=old)
        return actions + self.start(channel, newer, now_ms, reached)

    def _stale(self, barrier: CheckpointBarrier) -> bool:
        n = barrier.checkpoint_id
        return n <= self.last or n < self.state.checkpoint_id or n in self.aborted_early

    def _become(self, state: Idle | Aligning | Recording, over: CheckpointId | None = None) -> None:
        self.state = state
        if over is not None:
            self.last = max(self.last, over)
            self.aborted_early = {n for n in self.aborted_early if n > self.last}
            self.queued = {n: channels for n, channels in self.queued.items() if n > self.last}


class Idle:
    """No checkpoint is under way."""

    checkpoint_id = CheckpointId(0)

    def arrived(self, h: ExactlyOnceHandler, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        if barrier.alignment is Alignment.ALIGNED:
            return []  # its turn comes when it is reached
        return h.start(channel, barrier, now_ms, reached=False)

    def reached(self, h: ExactlyOnceHandler, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        return h.start(channel, barrier, now_ms, reached=True)

    def give_up(self) -> list[Action]:
        return []


class Aligning:
    """Channels whose barrier was reached are blocked until the others' have come too."""

    def __init__(self, barrier: CheckpointBarrier, now_ms: float) -> None:
        self.barrier = barrier
        self.checkpoint_id = barrier.checkpoint_id
        self.first_ms = now_ms
        self.blocked: set[int] = set()  # barrier reached
        self.deadline: float | None = None  # when to turn unaligned
        if barrier.alignment is Alignment.ALIGNED_WITH_TIMEOUT:
            self.deadline = now_ms + barrier.timeout_ms

    def arrived(self, h: ExactlyOnceHandler, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        if barrier.checkpoint_id != self.checkpoint_id:
            if barrier.alignment is Alignment.UNALIGNED:
                return h.abandon(barrier, channel, now_ms, reached=False)
            return []  # a newer aligned one: its turn comes when it is reached
        if barrier.alignment is Alignment.UNALIGNED:
            return self.turn_unaligned(h, barrier)
        return []

    def reached(self, h: ExactlyOnceHandler, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        if barrier.checkpoint_id != self.checkpoint_id:
            return h.abandon(barrier, channel, now_ms, reached=True)
        self.blocked.add(channel)
        if len(self.blocked) < h.channels:
            return [Block(channel)]
        h.finished(self.checkpoint_id)
        return [UnblockAll(), Snapshot(self.barrier, False, self.first_ms)]

    def turn_unaligned(self, h: ExactlyOnceHandler, barrier: CheckpointBarrier) -> list[Action]:
        """What stands before the barriers becomes part of the snapshot instead of being waited for."""
        unaligned = msgspec.structs.replace(barrier, alignment=Alignment.UNALIGNED, timeout_ms=0)
        here = h.queued.pop(self.checkpoint_id, set())
        pending = frozenset(range(h.channels)) - here - self.blocked
        actions: list[Action] = [UnblockAll()] if self.blocked else []
        actions.append(Snapshot(unaligned, True, self.first_ms, pending))
        actions += [DropBarrier(c, self.checkpoint_id) for c in sorted(here)]
        if pending:
            h.record(self.checkpoint_id, set(pending))
        else:
            actions.append(InputsComplete(self.checkpoint_id))
            h.finished(self.checkpoint_id)
        return actions

    def give_up(self) -> list[Action]:
        return [UnblockAll()]


class Recording:
    """The snapshot is taken; what arrives on the pending channels before their barriers belongs to it."""

    def __init__(self, checkpoint_id: CheckpointId, pending: set[int]) -> None:
        self.checkpoint_id = checkpoint_id
        self.pending = pending

    def arrived(self, h: ExactlyOnceHandler, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        if barrier.checkpoint_id != self.checkpoint_id:
            return h.abandon(barrier, channel, now_ms, reached=False)
        self.pending.discard(channel)
        actions: list[Action] = [DropBarrier(channel, self.checkpoint_id)]
        if not self.pending:
            actions.append(InputsComplete(self.checkpoint_id))
            h.finished(self.checkpoint_id)
        return actions

    def reached(self, h: ExactlyOnceHandler, channel: int, barrier: CheckpointBarrier, now_ms: float) -> list[Action]:
        return h.abandon(barrier, channel, now_ms, reached=True)

    def give_up(self) -> list[Action]:
        return []
