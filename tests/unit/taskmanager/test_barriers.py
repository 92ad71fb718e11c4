"""When the snapshot is taken: each handler, each way, as claims."""

import random

from tidegate.fault_tolerance.barriers.handlers import (
    Abandon,
    BarrierTracker,
    Block,
    DropBarrier,
    ExactlyOnceHandler,
    InputsComplete,
    Snapshot,
    UnblockAll,
)
from tidegate.network.elements import Alignment, CheckpointBarrier


def aligned(n):
    return CheckpointBarrier(n, 0, Alignment.ALIGNED)


def unaligned(n):
    return CheckpointBarrier(n, 0, Alignment.UNALIGNED)


def with_timeout(n, timeout=100):
    return CheckpointBarrier(n, 0, Alignment.ALIGNED_WITH_TIMEOUT, timeout)


def kinds(actions):
    return [type(a).__name__ for a in actions]


class TestAligned:
    def test_blocks_each_channel_until_the_last_barrier_and_then_snapshots(self):
        h = ExactlyOnceHandler(3)
        assert h.reached(1, aligned(1), 10.0) == [Block(1)]
        assert h.aligning
        assert h.reached(0, aligned(1), 11.0) == [Block(0)]
        assert h.reached(2, aligned(1), 12.0) == [UnblockAll(), Snapshot(aligned(1), False, 10.0)]
        assert not h.aligning

    def test_one_channel_needs_no_alignment(self):
        assert kinds(ExactlyOnceHandler(1).reached(0, aligned(1), 0.0)) == ["UnblockAll", "Snapshot"]

    def test_an_arrival_behind_records_does_nothing_yet(self):
        assert ExactlyOnceHandler(2).arrived(0, aligned(1), 0.0) == []

    def test_an_abort_releases_the_channels_and_late_barriers_are_ignored(self):
        h = ExactlyOnceHandler(2)
        h.reached(0, aligned(1), 0.0)
        assert h.aborted(1) == [UnblockAll()]
        assert h.reached(1, aligned(1), 1.0) == []
        assert h.reached(0, aligned(2), 2.0) == [Block(0)]

    def test_an_abort_before_any_barrier_makes_the_barriers_stale(self):
        h = ExactlyOnceHandler(2)
        assert h.aborted(1) == []
        assert h.reached(0, aligned(1), 0.0) == []
        assert h.arrived(1, aligned(1), 0.0) == [DropBarrier(1, 1)]

    def test_a_newer_barrier_gives_up_the_one_that_cannot_complete(self):
        h = ExactlyOnceHandler(2)
        h.reached(0, aligned(1), 0.0)
        assert h.reached(1, aligned(2), 1.0) == [UnblockAll(), Abandon(1), Block(1)]
        assert kinds(h.reached(0, aligned(2), 2.0)) == ["UnblockAll", "Snapshot"]


class TestUnaligned:
    def test_snapshots_at_the_first_arrival_and_records_until_the_last(self):
        h = ExactlyOnceHandler(3)
        actions = h.arrived(1, unaligned(1), 5.0)
        assert actions == [Snapshot(unaligned(1), True, 5.0, frozenset({0, 2})), DropBarrier(1, 1)]
        assert h.arrived(0, unaligned(1), 6.0) == [DropBarrier(0, 1)]
        assert h.arrived(2, unaligned(1), 7.0) == [DropBarrier(2, 1), InputsComplete(1)]

    def test_one_channel_is_complete_at_once(self):
        assert kinds(ExactlyOnceHandler(1).arrived(0, unaligned(1), 0.0)) == [
            "Snapshot",
            "DropBarrier",
            "InputsComplete",
        ]

    def test_an_abort_ends_the_recording(self):
        h = ExactlyOnceHandler(2)
        h.arrived(0, unaligned(1), 0.0)
        assert h.aborted(1) == []
        assert h.arrived(1, unaligned(1), 1.0) == [DropBarrier(1, 1)]

    def test_a_newer_one_replaces_it(self):
        h = ExactlyOnceHandler(2)
        h.arrived(0, unaligned(1), 0.0)
        assert kinds(h.arrived(0, unaligned(2), 1.0)) == ["Abandon", "Snapshot", "DropBarrier"]


class TestAlignedWithTimeout:
    def test_stays_aligned_when_the_barriers_come_in_time(self):
        h = ExactlyOnceHandler(2)
        assert h.arrived(0, with_timeout(1), 0.0) == []
        assert h.reached(0, with_timeout(1), 1.0) == [Block(0)]
        assert h.next_deadline() == 100.0
        h.arrived(1, with_timeout(1), 2.0)
        assert h.reached(1, with_timeout(1), 3.0) == [UnblockAll(), Snapshot(with_timeout(1), False, 0.0)]
        assert h.next_deadline() is None

    def test_turns_unaligned_when_the_time_is_over(self):
        h = ExactlyOnceHandler(3)
        h.arrived(0, with_timeout(1), 0.0)
        h.reached(0, with_timeout(1), 1.0)  # 0 is blocked
        h.arrived(1, with_timeout(1), 2.0)  # 1 waits behind records
        assert h.tick(99.0) == []
        assert h.tick(100.0) == [
            UnblockAll(),
            Snapshot(unaligned(1), True, 0.0, frozenset({2})),
            DropBarrier(1, 1),
        ]
        assert h.arrived(2, with_timeout(1), 101.0) == [DropBarrier(2, 1), InputsComplete(1)]

    def test_turns_unaligned_when_an_upstream_did(self):
        h = ExactlyOnceHandler(2)
        h.arrived(0, with_timeout(1), 0.0)
        actions = h.arrived(1, unaligned(1), 5.0)
        snapshot = Snapshot(unaligned(1), True, 0.0, frozenset())
        assert actions == [snapshot, DropBarrier(0, 1), DropBarrier(1, 1), InputsComplete(1)]


class TestAtLeastOnce:
    def test_never_blocks_and_snapshots_at_the_last_barrier(self):
        t = BarrierTracker(2)
        assert t.reached(0, aligned(1), 0.0) == []
        assert t.reached(1, aligned(1), 1.0) == [Snapshot(aligned(1), False, 0.0)]

    def test_counts_several_checkpoints_at_once(self):
        t = BarrierTracker(2)
        t.reached(0, aligned(1), 0.0)
        t.reached(0, aligned(2), 1.0)
        assert kinds(t.reached(1, aligned(1), 2.0)) == ["Snapshot"]
        assert kinds(t.reached(1, aligned(2), 3.0)) == ["Snapshot"]

    def test_a_completed_one_makes_older_ones_stale(self):
        t = BarrierTracker(2)
        t.reached(0, aligned(1), 0.0)
        t.reached(0, aligned(2), 0.0)
        t.reached(1, aligned(2), 0.0)
        assert t.reached(1, aligned(1), 1.0) == []
        assert not t.aligning

    def test_barriers_of_an_aborted_one_mean_nothing_also_when_they_come_later(self):
        """The barrier of a savepoint to stop with would hold the task for good: nobody aborts it again."""
        t = BarrierTracker(2)
        t.reached(0, aligned(1), 0.0)
        t.aborted(2)
        assert t.reached(0, aligned(2), 0.0) == []
        assert t.reached(1, aligned(2), 0.0) == []
        assert kinds(t.reached(1, aligned(1), 0.0)) == ["Snapshot"]
        t.reached(0, aligned(3), 0.0)
        assert kinds(t.reached(1, aligned(3), 0.0)) == ["Snapshot"]
        assert t._aborted == set()

    def test_a_newer_one_that_is_complete_gives_up_the_older_one_that_cannot_be(self):
        t = BarrierTracker(2)
        t.reached(0, aligned(1), 0.0)
        t.reached(0, aligned(2), 0.0)
        assert t.reached(1, aligned(2), 1.0) == [Abandon(1), Snapshot(aligned(2), False, 0.0)]

    def test_remembers_a_bounded_number(self):
        t = BarrierTracker(2)
        for n in range(1, 200):
            t.reached(0, aligned(n), 0.0)
        assert len(t._seen) <= BarrierTracker.MAX_TRACKED
        for n in range(200, 400):
            t.aborted(n)
        assert len(t._aborted) <= BarrierTracker.MAX_TRACKED
        assert t.reached(0, aligned(200), 0.0) == t.reached(1, aligned(200), 0.0) == []


def test_any_interleaving_takes_each_snapshot_at_most_once_and_leaves_nothing_blocked():
    """Random barriers, arrivals, reaches and aborts of up to 6 checkpoints on up to 4 channels, in channel order."""
    for seed in range(400):
        rng = random.Random(seed)
        channels = rng.randint(1, 4)
        kind = rng.choice([aligned, with_timeout])
        h = ExactlyOnceHandler(channels)
        todo = [[kind(n) for n in range(1, 7)] for _ in range(channels)]
        queued = [[] for _ in range(channels)]
        blocked, taken, now = set(), [], 0.0

        def apply(actions, queued=queued, blocked=blocked, taken=taken):
            for a in actions:
                if isinstance(a, Block):
                    blocked.add(a.channel)
                elif isinstance(a, UnblockAll):
                    blocked.clear()
                elif isinstance(a, Snapshot):
                    taken.append(a.barrier.checkpoint_id)
                elif isinstance(a, DropBarrier):
                    queued[a.channel] = [b for b in queued[a.channel] if b.checkpoint_id != a.checkpoint_id]

        for _ in range(400):
            now += rng.random() * 30
            c = rng.randrange(channels)
            if rng.random() < 0.05:
                apply(h.aborted(rng.randint(1, 6)))
            elif rng.random() < 0.2:
                apply(h.tick(now))
            elif todo[c] and rng.random() < 0.5:
                b = todo[c].pop(0)
                queued[c].append(b)
                apply(h.arrived(c, b, now))
            elif queued[c] and c not in blocked:
                apply(h.reached(c, queued[c].pop(0), now))
        assert taken == sorted(set(taken)), f"seed {seed}"
        if not any(todo) and not any(queued):
            assert not blocked, f"seed {seed}"
