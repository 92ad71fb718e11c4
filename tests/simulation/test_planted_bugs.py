"""The simulator is only as good as the bugs it finds: each of these is planted, and has to be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.simulation import sim_slot
from tests.simulation.random_job import JobBuilder
from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import IN_ROCKSDB, Mode, Variation
from tests.simulation.sim_slot import RandomTimeLimit
from tests.simulation.storage_faults import StorageFaults
from tidegate.common.errors import InternalError
from tidegate.fault_tolerance.barriers import handlers as barriers
from tidegate.fault_tolerance.barriers.subtask_checkpoint import SubtaskCheckpoint
from tidegate.fault_tolerance.barriers.task import BarrierTaskSide
from tidegate.jobmanager import state_assignment
from tidegate.jobmanager.leaving_states import RestartDelay
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.state.heap.increments import IncrementLedger
from tidegate.state.key_groups import key_group, stable_hash
from tidegate.state.rocksdb.backend import RocksDBKeyedStateBackend
from tidegate.storage.cleanup import SharedFileRegistry
from tidegate.storage.job_directory import SHARED
from tidegate.storage.writers import FileTaskStateWriter
from tidegate.taskmanager import own_keys
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.chain_link import ChainLink
from tidegate.taskmanager.operators.sink import SinkOperator
from tidegate.taskmanager.operators.source import SourceOperator
from tidegate.taskmanager.slot import SlotRuntime

MAX_SEEDS = 300
Patch = pytest.MonkeyPatch


def no_alignment(patch: Patch) -> None:
    """A channel whose barrier has come is read on."""
    reached = barriers.Aligning.reached

    def ignoring_blocks(self: Any, *arguments: Any) -> list[Any]:
        return [a for a in reached(self, *arguments) if not isinstance(a, barriers.Block)]

    patch.setattr(barriers.Aligning, "reached", ignoring_blocks)


def acknowledge_before_the_write(patch: Patch) -> None:
    """Files become durable some time after the acknowledgement."""
    written = BarrierTaskSide._written
    unwritten: list[FileTaskStateWriter] = []

    def acknowledge_first(self: BarrierTaskSide, n: Any, snapshot: Any, error: BaseException | None) -> None:
        written(self, n, snapshot, error)
        sinks = [sink for writer in unwritten for sink in (writer._exclusive, writer._shared)]
        unwritten.clear()

        def commit() -> None:
            for sink in sinks:
                sink.commit()

        self._port.run_async(commit, lambda result, failed: None)

    patch.setattr(FileTaskStateWriter, "close", lambda self: unwritten.append(self))
    patch.setattr(BarrierTaskSide, "_written", acknowledge_first)


def commit_before_complete(patch: Patch) -> None:
    update_state = SinkOperator.update_state

    def and_commit(self: SinkOperator, checkpoint_id: Any, timestamp: int) -> None:
        update_state(self, checkpoint_id, timestamp)
        self.notify_complete(checkpoint_id)

    patch.setattr(SinkOperator, "update_state", and_commit)


def no_fencing(patch: Patch) -> None:
    """A slot takes frames of any attempt."""
    on_frame = SlotRuntime.on_frame
    patch.setattr(SlotRuntime, "on_frame", lambda self, frame: on_frame(self, frame._replace(attempt=self._attempt)))


def in_flight_inputs_not_restored(patch: Patch) -> None:
    patch.setattr(InputChannel, "restore", lambda self, elements: None)


def in_flight_outputs_not_restored(patch: Patch) -> None:
    patch.setattr(OutputChannel, "restore", lambda self, elements: None)


def overtaken_outputs_not_recorded(patch: Patch) -> None:
    patch.setattr(SubtaskCheckpoint, "record_outputs", lambda self, address, overtaken: None)


def recording_goes_on_after_the_barrier(patch: Patch) -> None:
    record = InputChannel.record
    patch.setattr(InputChannel, "record", lambda self, into, checkpoint_id: record(self, into, 1 << 60))


def recording_goes_on_until_the_task_hears_of_the_barrier(patch: Patch) -> None:
    """The time of a slice was up, and the chain has to catch up first."""
    recording_goes_on_after_the_barrier(patch)
    arrived = BarrierTaskSide.element_arrived

    def stop(self: BarrierTaskSide, channel: InputChannel, element: Any, now_ms: float) -> None:
        channel.recording = None
        arrived(self, channel, element, now_ms)

    patch.setattr(BarrierTaskSide, "element_arrived", stop)

    class Short(RandomTimeLimit):
        def often(self) -> None:
            self._rate = self._between = 0.5
            self.patience = 10**9  # it would not hear late otherwise

    patch.setattr(sim_slot, "RandomTimeLimit", Short)  # too rare otherwise


def offset_of_the_batch_before(patch: Patch) -> None:
    poll, update_state = SourceOperator.poll, SourceOperator.update_state

    def remember(self: Any, max_records: int, now_ms: float) -> int:
        self.planted = {s.split.split_id: s.reader.offset() for s in self._splits if s.reader is not None}
        return poll(self, max_records, now_ms)

    def stale(self: Any, checkpoint_id: Any, timestamp: int) -> None:
        update_state(self, checkpoint_id, timestamp)
        known = getattr(self, "planted", {})
        self._state.update([(e[0], known.get(e[0].split_id, e[1]), *e[2:]) for e in self._state.get()])

    patch.setattr(SourceOperator, "poll", remember)
    patch.setattr(SourceOperator, "update_state", stale)


def offset_of_the_batch_after(patch: Patch) -> None:
    """A record that was not emitted yet lies before the offset."""
    update_state = SourceOperator.update_state

    def one_batch_on(self: Any, checkpoint_id: Any, timestamp: int) -> None:
        update_state(self, checkpoint_id, timestamp)
        self._state.update([e if e[2] else (e[0], e[1] + 1, *e[2:]) for e in self._state.get()])

    patch.setattr(SourceOperator, "update_state", one_batch_on)


def committables_of_aborted_checkpoints_dropped(patch: Patch) -> None:
    def forget(self: Any, checkpoint_id: Any) -> None:
        self._waiting = [(n, c) for n, c in self._waiting if n != checkpoint_id]

    patch.setattr(SinkOperator, "notify_aborted", forget)


def changes_of_aborted_checkpoints_forgotten(patch: Patch) -> None:
    patch.setattr(IncrementLedger, "abort", lambda self, checkpoint_id: self._unconfirmed.pop(checkpoint_id, None))
    patch.setattr(JobBuilder, "long_share", 1.0)  # with chains of increments: too rare otherwise
    patch.setattr(StorageFaults, "trouble_share", 1.0)  # declined snapshots, and restarts
    patch.setattr(StorageFaults, "rates", (0.05,))


def credits_leak(patch: Patch) -> None:
    """One credit in four is never given back."""
    take_owed, calls = InputChannel.take_owed, [0]

    def keep_some(self: InputChannel) -> int:
        calls[0] += 1
        owed = take_owed(self)
        return owed if calls[0] % 4 else max(owed - 1, 1)

    patch.setattr(InputChannel, "take_owed", keep_some)


def barriers_overtake_in_aligned_mode(patch: Patch) -> None:
    patch.setattr(OutputChannel, "add_control", lambda self, element: (self.flush(), self.queue.appendleft(element)))


def first_key_group_filtered_out(patch: Patch) -> None:
    """On the heap, of snapshots that hold other key groups too."""

    def owns(self: HeapKeyedStateBackend, key: Any) -> bool:
        start, end = self.key_group_range
        return start < stable_hash(key) % self.max_parallelism < end

    patch.setattr(HeapKeyedStateBackend, "_owns", owns)


def in_flight_records_moved_to_the_wrong_subtask(patch: Patch) -> None:
    patch.setattr(own_keys, "key_group", lambda key, groups: groups - 1 - key_group(key, groups))


def list_state_not_redistributed(patch: Patch) -> None:
    def own_only(states: Any, subtask: int, parallelism: int) -> Any:
        return [(state.handle, 0, state.count) for state in states[subtask : subtask + 1]]

    patch.setattr(state_assignment, "_share", own_only)


def union_state_not_redistributed(patch: Patch) -> None:
    """Everybody gets what one subtask had."""
    assign = state_assignment._assign_operator

    def one_of_union(vertex: Any, node: Any, old: Any) -> Any:
        return [
            msgspec.structs.replace(restore, lists=[s for s in restore.lists if s.mode != "union"] + restore.lists[:1])
            for restore in assign(vertex, node, old)
        ]

    patch.setattr(state_assignment, "_assign_operator", one_of_union)


def shared_files_not_counted(patch: Patch) -> None:
    """A file that a later checkpoint has taken over is deleted with the checkpoint that wrote it."""
    referenced = SharedFileRegistry._referenced
    exclusive = lambda self: {path for path in referenced(self) if not path.startswith(f"{SHARED}/")}  # noqa: E731
    patch.setattr(SharedFileRegistry, "_referenced", exclusive)


def cache_not_in_the_snapshot(patch: Patch) -> None:
    """What RocksDB's write-back cache holds is left out."""
    snapshot = RocksDBKeyedStateBackend.snapshot

    def without_cache(self: Any, checkpoint_id: Any, full: bool = False) -> Any:
        held = [(table.delta, dict(table.delta)) for table in self._tables.values()]
        for delta, _ in held:
            delta.clear()
        try:
            return snapshot(self, checkpoint_id, full)
        finally:
            for delta, changes in held:
                delta.update(changes)

    patch.setattr(RocksDBKeyedStateBackend, "snapshot", without_cache)


def records_inside_chains_not_in_the_snapshot(patch: Patch) -> None:
    prepare = OperatorChain.prepare_and_hold

    def forgetting(self: OperatorChain, checkpoint_id: Any) -> Any:
        prepare(self, checkpoint_id)
        return {}

    patch.setattr(OperatorChain, "prepare_and_hold", forgetting)


def records_inside_chains_not_restored(patch: Patch) -> None:
    patch.setattr(OperatorChain, "restore_waiting", lambda self, key, elements: None)


def restored_records_inside_chains_come_last(patch: Patch) -> None:
    """Behind what the chain is given first."""
    restore, emit = ChainLink.restore, ChainLink.emit
    kept: dict[int, Any] = {}

    def later(self: ChainLink, elements: Any) -> None:
        kept[id(self)] = self, elements

    def first(self: ChainLink, batch: Any) -> None:
        emit(self, batch)
        link, elements = kept.pop(id(self), (None, []))
        if link is self:
            restore(self, elements)

    patch.setattr(ChainLink, "restore", later)
    patch.setattr(ChainLink, "emit", first)


def the_operator_that_records_wait_for_has_processed_them(patch: Patch) -> None:
    """They are in the snapshot, and worked off before its barrier is sent on all the same."""
    prepare = OperatorChain.prepare_and_hold

    def both(self: OperatorChain, checkpoint_id: Any) -> Any:
        waiting = prepare(self, checkpoint_id)
        self._drain()
        return waiting

    patch.setattr(OperatorChain, "prepare_and_hold", both)


def exit_during_the_delay_is_unheard_of(patch: Patch) -> None:
    """The JobMaster does not reckon with a gang that exits when it was given up already."""

    def unheard_of(self: Any, error: str | None, now_ms: float) -> Any:
        raise InternalError("the exit of a gang that was given up")

    patch.setattr(RestartDelay, "on_gang_exit", unheard_of)


BUGS: list[tuple[Callable[[Patch], None], Mode]] = [
    (no_alignment, Mode.ALIGNED),
    (no_alignment, Mode.CONCURRENT),
    (acknowledge_before_the_write, Mode.ALIGNED),
    (commit_before_complete, Mode.ALIGNED),
    (no_fencing, Mode.ALIGNED),
    (no_fencing, Mode.UNALIGNED),
    (in_flight_inputs_not_restored, Mode.UNALIGNED),
    (in_flight_outputs_not_restored, Mode.UNALIGNED),
    (in_flight_outputs_not_restored, Mode.TIMEOUT),
    (overtaken_outputs_not_recorded, Mode.UNALIGNED),
    (recording_goes_on_after_the_barrier, Mode.UNALIGNED),
    (offset_of_the_batch_before, Mode.ALIGNED),
    (offset_of_the_batch_after, Mode.AT_LEAST_ONCE),
    (committables_of_aborted_checkpoints_dropped, Mode.ALIGNED),
    (changes_of_aborted_checkpoints_forgotten, Mode.ALIGNED),
    (credits_leak, Mode.NONE),
    (barriers_overtake_in_aligned_mode, Mode.ALIGNED),
    (exit_during_the_delay_is_unheard_of, Mode.ALIGNED),
]


VARIED_BUGS: list[tuple[Callable[[Patch], None], Mode, Variation]] = [
    (first_key_group_filtered_out, Mode.ALIGNED, Variation.RESCALE),
    (in_flight_records_moved_to_the_wrong_subtask, Mode.UNALIGNED, Variation.RESCALE),
    (list_state_not_redistributed, Mode.ALIGNED, Variation.RESCALE),
    (union_state_not_redistributed, Mode.ALIGNED, Variation.RESCALE),
    (shared_files_not_counted, Mode.ALIGNED, Variation.ROCKSDB),
    (cache_not_in_the_snapshot, Mode.ALIGNED, Variation.ROCKSDB),
    (recording_goes_on_until_the_task_hears_of_the_barrier, Mode.UNALIGNED, Variation.CHAINED),
    (records_inside_chains_not_in_the_snapshot, Mode.ALIGNED, Variation.CHAINED),
    (records_inside_chains_not_restored, Mode.UNALIGNED, Variation.CHAINED),
    (restored_records_inside_chains_come_last, Mode.ALIGNED, Variation.CHAINED),
    (the_operator_that_records_wait_for_has_processed_them, Mode.CONCURRENT, Variation.CHAINED),
]


def seeds_until_found(mode: Mode, variation: Variation = Variation.PLAIN) -> int | None:
    for seed in range(MAX_SEEDS):
        try:
            run_seed(seed, mode, mode is not Mode.NONE, variation)
        except SimulationFailed:
            return seed
    return None


@pytest.mark.parametrize(("plant", "mode"), BUGS, ids=[f"{plant.__name__}-{mode.value}" for plant, mode in BUGS])
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], mode: Mode, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert seeds_until_found(mode) is not None, f"{plant.__name__} went unnoticed in {MAX_SEEDS} schedules"


@pytest.mark.parametrize(
    ("plant", "mode", "variation"),
    VARIED_BUGS,
    ids=[f"{plant.__name__}-{mode.value}" for plant, mode, _ in VARIED_BUGS],
)
def test_a_bug_of_a_variation_is_found(
    plant: Callable[[Patch], None], mode: Mode, variation: Variation, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    monkeypatch.setitem(IN_ROCKSDB, Variation.RESCALE, 0.0)  # soonest found where schedules are quick
    assert seeds_until_found(mode, variation) is not None, f"{plant.__name__} went unnoticed in {MAX_SEEDS} schedules"
