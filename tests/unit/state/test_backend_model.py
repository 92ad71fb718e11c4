"""Random operations, snapshots, confirmations, aborts, savepoints and restores against a plain dict, on both backends
and at changing parallelism."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.state.backends import KINDS, Backends, settle
from tests.unit.state.memory_sink import MemorySink
from tidegate.common.type_schema import UNDECLARED
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.state.key_groups import key_group_range
from tidegate.state.rocksdb.backend import RocksDBKeyedStateBackend
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.files import LocalFiles
from tidegate.storage.reader import FileStateSource

GROUPS = 128
KEYS = st.integers(0, 5)
VALUES = st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=2))


class BackendModel(RuleBasedStateMachine):
    """`parts` are the backends of the subtasks of one operator: together they hold what `model` holds."""

    KIND = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="tidegate-model-")
        self.backends = Backends(self.KIND, self.folder.name)
        self.sink = MemorySink()
        self.next_id = 1
        self.model = {"v": {}, "l": {}, "m": {}}
        self.open = {}  # id -> (writers, model at the snapshot)
        self.written = {}  # id -> (snapshots, model), not confirmed yet
        self.complete = {}  # id -> (snapshots, model)
        self.start(self.make(1))

    def teardown(self) -> None:
        self.backends.dispose()
        self.folder.cleanup()

    def make(self, parallelism: int, kind=None):
        ranges = [key_group_range(GROUPS, parallelism, subtask) for subtask in range(parallelism)]
        return [self.backends.make(groups, max_increments=3, kind=kind) for groups in ranges]

    def start(self, parts) -> None:
        self.parts = parts
        self.states = [
            (
                part.get_state(ValueStateDescriptor("v")),
                part.get_state(ListStateDescriptor("l"), namespaced=True),
                part.get_state(MapStateDescriptor("m")),
            )
            for part in parts
        ]

    def at(self, key: int) -> None:
        (number,) = [i for i, part in enumerate(self.parts) if part._owns(key)]
        self.parts[number].current_key, self.parts[number].current_namespace = key, "ns"
        self.value, self.list, self.map = self.states[number]

    @rule()
    def settle(self) -> None:
        for part in self.parts:
            if isinstance(part, RocksDBKeyedStateBackend):  # on the heap only a snapshot may do it
                settle(part)
        self.check_keys()

    def check_keys(self) -> None:
        """Each is in one part and nowhere else."""
        for name, entries in self.model.items():
            assert sorted(key for part in self.parts for key in part.keys(name)) == sorted(entries)

    @rule()
    def end_of_batch(self) -> None:
        for part in self.parts:
            part.end_of_batch()

    @rule(keys=st.lists(KEYS, min_size=4, max_size=8))
    def prefetch(self, keys) -> None:
        for part in self.parts:
            own = [key for key in keys if part._owns(key)]
            if isinstance(part, RocksDBKeyedStateBackend):
                part._tables["v"].base.misses = len(own)  # as if a batch had read them one by one
            part.prefetch(lambda key: key, own)

    @rule(key=KEYS, value=st.one_of(st.none(), VALUES))
    def update_value(self, key, value) -> None:
        self.at(key)
        self.value.update(value)
        self.model["v"][key] = copy.deepcopy(value)
        if value is None:
            del self.model["v"][key]

    @rule(key=KEYS, value=st.integers(0, 9))
    def change_value_in_place_and_update(self, key, value) -> None:
        self.at(key)
        current = self.value.value()
        if isinstance(current, list):
            current.append(value)
            self.value.update(current)
            self.model["v"][key] = list(current)

    @rule(key=KEYS, value=VALUES)
    def add_to_list(self, key, value) -> None:
        self.at(key)
        self.list.add(value)
        self.model["l"].setdefault(key, []).append(copy.deepcopy(value))

    @rule(key=KEYS)
    def clear_list(self, key) -> None:
        self.at(key)
        self.list.clear()
        self.model["l"].pop(key, None)

    @rule(key=KEYS, map_key=st.integers(0, 2), value=st.integers(0, 9))
    def put_into_map(self, key, map_key, value) -> None:
        self.at(key)
        self.map.put(map_key, value)
        self.model["m"].setdefault(key, {})[map_key] = value

    @rule(key=KEYS, map_key=st.integers(0, 2))
    def remove_from_map(self, key, map_key) -> None:
        self.at(key)
        self.map.remove(map_key)
        content = self.model["m"].get(key, {})
        content.pop(map_key, None)
        if not content:
            self.model["m"].pop(key, None)

    @rule(full=st.sampled_from([False, False, False, True]))
    def snapshot(self, full) -> None:
        writers = [part.snapshot(self.next_id, full) for part in self.parts]
        self.open[self.next_id] = writers, copy.deepcopy(self.model)
        self.next_id += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def write(self, data) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        writers, model = self.open.pop(number)
        snapshots = [writer.write(self.sink) for writer in writers]
        self.written[number] = snapshots, model
        assert self.read_back(snapshots) == model

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def confirm(self, data) -> None:
        number = data.draw(st.sampled_from(sorted(self.written)))
        for part in self.parts:
            part.notify_checkpoint_complete(number)
        self.complete[number] = self.written.pop(number)

    @precondition(lambda self: self.written or self.open)
    @rule(data=st.data())
    def abort(self, data) -> None:
        number = data.draw(st.sampled_from(sorted([*self.written, *self.open])))
        for part in self.parts:
            part.notify_checkpoint_aborted(number)
        self.written.pop(number, None)
        self.open.pop(number, None)

    @precondition(lambda self: self.complete)
    @rule(data=st.data(), continue_chain=st.booleans(), parallelism=st.integers(1, 3))
    def fail_and_restore(self, data, continue_chain, parallelism) -> None:
        snapshots, model = self.complete[data.draw(st.sampled_from(sorted(self.complete)))]
        self.dispose()
        self.model = copy.deepcopy(model)
        self.restore(self.make(parallelism, self.parts_kind), snapshots, self.sink, continue_chain)

    @rule(parallelism=st.integers(1, 3), continue_chain=st.booleans())
    def take_a_checkpoint_and_resume_at_another_parallelism(self, parallelism, continue_chain) -> None:
        number = self.next_id
        self.next_id += 1
        snapshots = [part.snapshot(number).write(self.sink) for part in self.parts]
        self.complete[number] = snapshots, copy.deepcopy(self.model)
        self.dispose()
        self.restore(self.make(parallelism, self.parts_kind), snapshots, self.sink, continue_chain)

    @rule(parallelism=st.integers(1, 3), other=st.sampled_from([False, False, False, True]))
    def stop_with_a_savepoint_and_resume_on_either_backend(self, parallelism, other) -> None:
        files = LocalFiles(str(Path(self.folder.name) / f"savepoint-{self.next_id}"))
        snapshots = []
        for subtask, part in enumerate(self.parts):
            writer = SavepointWriter(files, subtask, GROUPS, self.next_id)
            snapshots.append(writer.keyed("op", "op", UNDECLARED, part.snapshot(self.next_id, full=True)))
        self.next_id += 1
        self.dispose()
        self.complete.clear()  # of another backend, perhaps
        kind = next(kind for kind in KINDS if (kind != self.KIND) is other)
        self.restore(self.make(parallelism, kind), snapshots, FileStateSource(files), False)

    def dispose(self) -> None:
        self.backends.dispose()
        self.open.clear()
        self.written.clear()

    def restore(self, parts, snapshots, source, continue_chain) -> None:
        for part in parts:
            start, end = part.key_group_range
            overlapping = [s for s in snapshots if s.key_group_start < end and start < s.key_group_end]
            part.restore(overlapping, source, continue_chain=continue_chain)
        self.start(parts)
        self.check_keys()

    @invariant()
    def the_backend_equals_the_model(self) -> None:
        for part in self.parts:
            part.check_invariants()
        assert self.all_contents(self.parts) == self.model

    def read_back(self, snapshots):
        backend = self.backends.restored(snapshots, self.sink, kind=self.parts_kind)
        try:
            return self.contents(backend)
        finally:
            backend.dispose()

    @property
    def parts_kind(self) -> str:
        return "rocksdb" if isinstance(self.parts[0], RocksDBKeyedStateBackend) else "heap"

    def all_contents(self, parts):
        found = {"v": {}, "l": {}, "m": {}}
        for part in parts:
            for name, entries in self.contents(part).items():
                assert not found[name].keys() & entries.keys()
                found[name].update(entries)
        return found

    @staticmethod
    def contents(backend):
        states = {
            "v": (backend.get_state(ValueStateDescriptor("v")), lambda s: s.value()),
            "l": (backend.get_state(ListStateDescriptor("l"), namespaced=True), lambda s: list(s.get())),
            "m": (backend.get_state(MapStateDescriptor("m")), lambda s: dict(s.items())),
        }
        found = {name: {} for name in states}
        for name, (state, read) in states.items():
            for key in filter(
                backend._owns, range(6)
            ):  # without `keys`, which would make RocksDB write out its cache at every step
                backend.current_key, backend.current_namespace = key, "ns"
                if (value := read(state)) not in (None, [], {}) or (name == "v" and value is not None):
                    found[name][key] = value
        return found


class HeapModel(BackendModel):
    KIND = "heap"


class RocksDBModel(BackendModel):
    KIND = "rocksdb"


TestHeapModel = HeapModel.TestCase
TestHeapModel.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestRocksDBModel = RocksDBModel.TestCase
TestRocksDBModel.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
