"""Which files go when, and a random search for a retained checkpoint whose files were deleted."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.simulation.fake_storage import FakeStorage
from tests.unit.storage.snapshots import checkpoint, operator, task
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.storage.cleanup import Deletion, FileProtection, SharedFileRegistry
from tidegate.storage.handles import FileRange


def shared(n):
    return FileRange(f"shared/{n}", 0, 1, "")


def exclusive(n):
    return FileRange(f"chk-{n}/x", 0, 1, "")


def complete(registry, n, chain, lists=()):
    registry.begin(n)
    return registry.register(checkpoint(n, chain, lists))


def test_a_discarded_checkpoint_takes_what_only_it_used():
    registry = SharedFileRegistry()
    complete(registry, 1, [(1, [shared(1)])], [exclusive(1)])
    complete(registry, 2, [(1, [shared(1)]), (2, [shared(2)])])
    deletion = registry.discard(1)
    assert deletion == Deletion(["chk-1/_metadata", "chk-1/x"], ["chk-1"])
    complete(registry, 3, [(3, [shared(3)])])
    assert registry.discard(2).files == ["chk-2/_metadata"]  # its increments wait for the next checkpoint
    assert complete(registry, 4, [(3, [shared(3)]), (4, [shared(4)])])[1].files == ["shared/1", "shared/2"]


def test_files_stay_for_a_checkpoint_that_is_under_way():
    registry = SharedFileRegistry()
    complete(registry, 1, [(1, [shared(1)])])
    registry.begin(2)  # will be full
    registry.begin(3)  # builds on 1
    registry.register(checkpoint(2, [(2, [shared(2)])]))
    assert registry.discard(1).files == ["chk-1/_metadata"]
    outcome, deletion = registry.register(checkpoint(3, [(1, [shared(1)]), (3, [shared(3)])]))
    assert outcome is FileProtection.PROTECTED
    assert not deletion
    registry.check_invariants()


def test_a_checkpoint_on_deleted_files_is_not_completed():
    registry = SharedFileRegistry()
    registry.begin(2)
    outcome, _ = registry.register(checkpoint(2, [(1, [shared(1)]), (2, [shared(2)])]))
    assert outcome is FileProtection.FILES_ARE_GONE
    assert registry.retained == []


def test_an_aborted_checkpoint_does_not_bring_deleted_files_back():
    registry = SharedFileRegistry()
    complete(registry, 1, [(1, [shared(1)])])
    complete(registry, 2, [(2, [shared(2)])])
    registry.discard(1)
    registry.begin(3)
    assert registry.abandon(3, []).files == ["shared/1"]
    registry.begin(4)
    registry.abandon(4, [task([(1, [shared(1)]), (4, [shared(4)])])])
    outcome, _ = complete(registry, 5, [(1, [shared(1)]), (5, [shared(5)])])
    assert outcome is FileProtection.FILES_ARE_GONE


def test_an_aborted_checkpoint_takes_its_files_with_it():
    registry = SharedFileRegistry()
    complete(registry, 1, [(1, [shared(1)])])
    registry.begin(2)
    deletion = registry.abandon(2, [task([(1, [shared(1)]), (2, [shared(2)])], [exclusive(2)])])
    assert deletion == Deletion(["chk-2/x"], ["chk-2"])
    assert complete(registry, 3, [(1, [shared(1)]), (3, [shared(3)])])[1].files == ["shared/2"]


def test_at_the_end_nothing_is_held_back():
    registry = SharedFileRegistry()
    complete(registry, 1, [(1, [shared(1)])])
    registry.discard(1)
    assert registry.drain().files == ["shared/1"]
    assert not registry.drain()


def test_an_adopted_checkpoint_protects_its_files():
    registry = SharedFileRegistry()
    registry.adopt(checkpoint(1, [(1, [shared(1)])]))
    outcome, _ = complete(registry, 2, [(1, [shared(1)]), (2, [shared(2)])])
    assert outcome is FileProtection.PROTECTED
    registry.discard(1)
    registry.begin(3)
    assert registry.abandon(3, []).files == []


class Retention(RuleBasedStateMachine):
    """One backend, a coordinator that keeps one checkpoint, notifications that come late: what is retained can be
    restored, and in the end no file is left that nobody needs."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = FakeStorage()
        self.registry = SharedFileRegistry()
        self.backend = HeapKeyedStateBackend("op", (0, 128), 128, max_increments=2)
        self.state = self.backend.get_state(ValueStateDescriptor("v"))
        self.model = {}
        self.next_id = 1
        self.pending = {}  # id -> (chain snapshot, model)
        self.mail = []  # notifications that the task has not had yet
        self.kept = {}  # id -> model

    @rule(key=st.integers(0, 9), value=st.one_of(st.none(), st.integers(0, 9)))
    def update(self, key, value):
        self.backend.current_key = key
        self.state.update(value)
        self.model[key] = value
        if value is None:
            del self.model[key]

    @precondition(lambda self: len(self.pending) < 3)
    @rule()
    def trigger(self):
        n = self.next_id
        self.next_id += 1
        self.registry.begin(n)
        writer = self.storage.worker_storage().task_writer(n, 0, 0, 0)
        keyed = self.backend.snapshot(n).write(writer.shared)
        writer.close()
        self.pending[n] = keyed, dict(self.model)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def finish(self, data):
        n = data.draw(st.sampled_from(sorted(self.pending)))
        keyed, model = self.pending.pop(n)
        metadata = checkpoint(n)
        operator_snapshot = metadata.operators[0].subtasks
        operator_snapshot[0] = operator()
        operator_snapshot[0] = type(operator_snapshot[0])(operator_id="a" * 32, name="counter", keyed=keyed)
        outcome, deletion = self.registry.register(metadata)
        if outcome is FileProtection.FILES_ARE_GONE:
            self.give_up(n, keyed)
            return
        self.storage.write_metadata(metadata)
        self.storage.delete(deletion)
        self.kept[n] = model
        self.mail.append((self.backend.notify_checkpoint_complete, n))
        for older in [m for m in self.pending if m < n]:  # subsumed
            self.give_up(older, self.pending.pop(older)[0])
        for older in [m for m in self.kept if m < n]:
            del self.kept[older]
            self.storage.delete(self.registry.discard(older))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def abort(self, data):
        n = data.draw(st.sampled_from(sorted(self.pending)))
        self.give_up(n, self.pending.pop(n)[0])

    def give_up(self, n, keyed):
        snapshot = task()
        snapshot.operators[0] = type(snapshot.operators[0])(operator_id="a" * 32, name="counter", keyed=keyed)
        self.storage.delete(self.registry.abandon(n, [snapshot]))
        self.mail.append((self.backend.notify_checkpoint_aborted, n))

    @precondition(lambda self: self.mail)
    @rule()
    def deliver(self):
        notify, n = self.mail.pop(0)
        notify(n)

    @invariant()
    def every_kept_checkpoint_restores(self):
        self.registry.check_invariants()
        assert self.storage.completed_checkpoints() == sorted(self.kept)
        for n, model in self.kept.items():
            again = HeapKeyedStateBackend("op", (0, 128), 128)
            again.restore([self.storage.read_metadata(n).operators[0].subtasks[0].keyed], self.storage.source())
            state, found = again.get_state(ValueStateDescriptor("v")), {}
            for key in again.keys("v"):
                again.current_key = key
                found[key] = state.value()
            assert found == model

    def teardown(self):
        for n in sorted(self.pending):
            self.give_up(n, self.pending.pop(n)[0])
        for n in sorted(self.kept):
            self.storage.delete(self.registry.discard(n))
        self.storage.delete(self.registry.drain())
        assert self.storage.fake_files.content == {}


TestRetention = Retention.TestCase
TestRetention.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
