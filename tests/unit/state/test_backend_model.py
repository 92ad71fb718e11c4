"""Random operations, snapshots, confirmations, aborts and restores against a plain dict, on both backends."""

from __future__ import annotations

import copy
import tempfile

from backends import Backends, settle
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from memory_sink import MemorySink

from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

KEYS = st.integers(0, 5)
VALUES = st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=2))


class BackendModel(RuleBasedStateMachine):
    KIND = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="tidegate-model-")
        self.backends = Backends(self.KIND, self.folder.name)
        self.sink = MemorySink()
        self.next_id = 1
        self.model = {"v": {}, "l": {}, "m": {}}
        self.open = {}  # id -> (writer, model at the snapshot)
        self.written = {}  # id -> (snapshot, model), not confirmed yet
        self.complete = {}  # id -> (snapshot, model)
        self.start(self.backends.make(max_increments=3))

    def teardown(self) -> None:
        self.backends.dispose()
        self.folder.cleanup()

    def start(self, backend) -> None:
        self.backend = backend
        self.value = backend.get_state(ValueStateDescriptor("v"))
        self.list = backend.get_state(ListStateDescriptor("l"), namespaced=True)
        self.map = backend.get_state(MapStateDescriptor("m"))

    def at(self, key: int) -> None:
        self.backend.current_key, self.backend.current_namespace = key, "ns"

    @rule()
    def settle(self) -> None:
        if self.KIND == "rocksdb":  # on the heap only a snapshot may do it
            settle(self.backend)
        assert {name: set(self.backend.keys(name)) for name in self.model} == {
            name: set(entries) for name, entries in self.model.items()
        }

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
        self.open[self.next_id] = self.backend.snapshot(self.next_id, full), copy.deepcopy(self.model)
        self.next_id += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def write(self, data) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        writer, model = self.open.pop(number)
        snapshot = writer.write(self.sink)
        self.written[number] = snapshot, model
        assert self.read_back(snapshot) == model

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def confirm(self, data) -> None:
        number = data.draw(st.sampled_from(sorted(self.written)))
        self.backend.notify_checkpoint_complete(number)
        self.complete[number] = self.written.pop(number)

    @precondition(lambda self: self.written or self.open)
    @rule(data=st.data())
    def abort(self, data) -> None:
        number = data.draw(st.sampled_from(sorted([*self.written, *self.open])))
        self.backend.notify_checkpoint_aborted(number)
        self.written.pop(number, None)
        self.open.pop(number, None)

    @precondition(lambda self: self.complete)
    @rule(data=st.data(), continue_chain=st.booleans())
    def fail_and_restore(self, data, continue_chain) -> None:
        snapshot, model = self.complete[data.draw(st.sampled_from(sorted(self.complete)))]
        self.backend.dispose()
        backend = self.backends.make(max_increments=3)
        backend.restore([snapshot], self.sink, continue_chain=continue_chain)
        self.start(backend)
        self.model = copy.deepcopy(model)
        self.open.clear()
        self.written.clear()

    @invariant()
    def the_backend_equals_the_model(self) -> None:
        self.backend.check_invariants()
        assert self.contents(self.backend) == self.model

    def read_back(self, snapshot):
        backend = self.backends.restored([snapshot], self.sink)
        try:
            return self.contents(backend)
        finally:
            backend.dispose()

    @staticmethod
    def contents(backend):
        states = {
            "v": (backend.get_state(ValueStateDescriptor("v")), lambda s: s.value()),
            "l": (backend.get_state(ListStateDescriptor("l"), namespaced=True), lambda s: list(s.get())),
            "m": (backend.get_state(MapStateDescriptor("m")), lambda s: dict(s.items())),
        }
        found = {name: {} for name in states}
        for name, (state, read) in states.items():
            for key in range(6):  # without `keys`, which would make RocksDB write out its cache at every step
                backend.current_key, backend.current_namespace = key, "ns"
                if (value := read(state)) not in (None, [], {}) or (name == "v" and value is not None):
                    found[name][key] = value
        return found


class HeapModel(BackendModel):
    KIND = "heap"


class RocksDBModel(BackendModel):
    KIND = "rocksdb"


TestHeapModel = HeapModel.TestCase
TestHeapModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRocksDBModel = RocksDBModel.TestCase
TestRocksDBModel.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
