"""What is particular to RocksDB: folders, memory, files of checkpoints, settings."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.state.backends import KINDS, Backends
from tests.unit.state.memory_sink import MemorySink
from tidegate.common import Configuration
from tidegate.common.errors import ConfigurationError, StateBackendError
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.state.key_groups import key_group, key_group_range
from tidegate.state.rocksdb import folders
from tidegate.state.rocksdb.backend import RocksDBKeyedStateBackend
from tidegate.state.rocksdb.bulk_keys import encode_all, encode_in_order
from tidegate.state.rocksdb.database import Database
from tidegate.state.rocksdb.folders import PREFIX, SlotFolder
from tidegate.state.rocksdb.keys import GROUP, EntryCodec, decode_value, encode_value, is_exact, prefix_end
from tidegate.state.rocksdb.records import (
    decode_records,
    encode_numbers,
    encode_record,
    frame,
    framed_original,
    record_value,
)
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.rocksdb.settings import MB, RocksDBSettings
from tidegate.state.rocksdb.tables import MAX_CHANGES

VALUE = ValueStateDescriptor("v")
ROOT = Path(__file__).parents[3]


def make(directory, incremental=True, **settings):
    resources = SlotResources(RocksDBSettings(local_directories=(str(directory),), **settings))
    return RocksDBKeyedStateBackend("op", (0, 128), 128, resources, incremental)


def run_python(code: str, *arguments: str, **keywords) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, **keywords)


# ---------------------------------------------------------------- folders


def test_the_folder_names_the_process_and_goes_with_the_last_backend(tmp_path):
    resources = SlotResources(RocksDBSettings(local_directories=(str(tmp_path),)))
    first, second = (RocksDBKeyedStateBackend("op", (0, 128), 128, resources) for _ in range(2))
    assert not list(tmp_path.iterdir())  # nothing before it is needed
    for backend in (first, second):
        backend.get_state(VALUE)
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith(f"{PREFIX}{os.getpid()}-")
    first.dispose()
    assert folder.exists()
    second.dispose()
    second.dispose()
    assert not list(tmp_path.iterdir())


def test_left_overs_of_dead_processes_are_removed_and_those_of_living_ones_kept(tmp_path):
    code = """
        import os, signal, sys, time
        from tidegate.state.rocksdb.folders import SlotFolder
        folder = SlotFolder((sys.argv[1],))
        (folder.new_folder("db") / "file").write_text("x")
        print("ready", flush=True)
        time.sleep(60)
    """
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(2)
    ]
    try:
        for child in children:
            assert child.stdout.readline() == "ready\n"
        dead, living = children
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert len(list(tmp_path.iterdir())) == 2
        mine = SlotFolder((str(tmp_path),))
        mine.new_folder("db")
        owners = {int(path.name.removeprefix(PREFIX).split("-")[0]) for path in tmp_path.iterdir()}
        assert owners == {os.getpid(), living.pid}
    finally:
        for child in children:
            child.kill()
            child.wait()
            child.stdout.close()


def test_a_folder_is_no_left_over_before_its_owner_has_the_lock(tmp_path, monkeypatch):
    """Another slot that starts looks for left-overs right between the making of the lock's file and its locking."""
    flock, found = folders.fcntl.flock, []

    def late_flock(file, operation):
        monkeypatch.setattr(folders.fcntl, "flock", flock)
        found.extend(folders.remove_left_overs(tmp_path))
        flock(file, operation)

    monkeypatch.setattr(folders.fcntl, "flock", late_flock)
    mine = SlotFolder((str(tmp_path),))
    mine.new_folder("db").joinpath("file").write_text("x")
    found += folders.remove_left_overs(tmp_path)
    assert not found
    assert list(tmp_path.iterdir()) == [mine.path]
    assert mine.path.name.startswith(PREFIX)


def test_a_folder_that_cannot_be_locked_does_not_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(folders.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(37, "No locks available")))
    with pytest.raises(StateBackendError, match="No locks available"):
        SlotFolder((str(tmp_path),)).new_folder("db")
    assert not list(tmp_path.iterdir())


def test_a_process_that_ends_without_disposing_leaves_nothing(tmp_path):
    code = """
        import sys
        from tidegate.state.rocksdb.folders import SlotFolder
        folder = SlotFolder((sys.argv[1],))
        folder.new_folder("db")
    """
    assert run_python(code, str(tmp_path)).returncode == 0
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    backend = make(tmp_path / "file" / "below")
    with pytest.raises(StateBackendError, match=r"file/below.*localdir"):
        backend.get_state(VALUE)
    backend.dispose()


def test_a_database_that_cannot_be_opened_is_an_error_that_names_the_folder(tmp_path):
    (tmp_path / "db").write_text("a file where the folder should be")
    with pytest.raises(StateBackendError, match=r"'op'.*/db cannot be opened: .*state.backend.rocksdb.localdir"):
        Database("op", tmp_path / "db")


def test_working_state_is_for_the_owner_alone(tmp_path):
    backend = make(tmp_path)
    backend.get_state(VALUE)
    (folder,) = tmp_path.glob(f"{PREFIX}*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    backend.dispose()


def test_a_full_disk_is_an_error_that_names_the_folder(tmp_path):
    code = """
        import os, resource, signal, sys
        from tidegate.common.errors import StateBackendError
        from tidegate.datastream.state import ValueStateDescriptor
        from tidegate.state.rocksdb.backend import RocksDBKeyedStateBackend
        from tidegate.state.rocksdb.resources import SlotResources
        from tidegate.state.rocksdb.settings import RocksDBSettings
        settings = RocksDBSettings(local_directories=(sys.argv[1],), memory_per_slot=8 << 20)
        backend = RocksDBKeyedStateBackend("op", (0, 128), 128, SlotResources(settings))
        state = backend.get_state(ValueStateDescriptor("v"))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            for key in range(100_000):
                backend.current_key = key
                state.update(os.urandom(1000))
            backend.snapshot(1)
        except StateBackendError as error:
            print(error)
        backend.dispose()
    """
    done = run_python(code, str(tmp_path))
    assert "operator 'op': the RocksDB database in " in done.stdout, done.stderr
    assert str(tmp_path) in done.stdout
    assert "localdir" in done.stdout
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- memory


def test_a_hot_key_costs_no_disk_access(tmp_path):
    backend = make(tmp_path)
    state, elements, content = (
        backend.get_state(d) for d in (VALUE, ListStateDescriptor("l"), MapStateDescriptor("m"))
    )
    backend.current_key = "hot"
    state.update(0)
    elements.add(0)
    content.put(0, 0)
    backend.flush()
    before = backend._database.sequence()
    backend._database.raw.close()  # any access would fail
    for _ in range(1000):
        state.update(state.value() + 1)
        content.put(0, content.get(0) + 1)
        elements.add(0)
    assert state.value() == content.get(0) == 1000
    assert before == 3
    backend._tables.clear()
    backend.dispose()


def test_the_cache_is_bounded_by_entries_and_by_bytes(tmp_path):
    backend = make(tmp_path, memory_per_slot=64 * MB)
    state = backend.get_state(VALUE)
    table = backend._tables["v"]
    for key in range(MAX_CHANGES + 1000):
        backend.current_key = key
        state.update(key)
        assert len(table.delta) <= MAX_CHANGES
    backend.flush()
    most = 0
    for key in range(2000):
        backend.current_key = key
        state.update(b"x" * 100_000)
        most = max(most, len(table.delta))
        held = [*table.recent.values(), *table.recent._older.values()]
        assert sum(len(value) for value in held if isinstance(value, bytes)) < 32 * MB
    assert most * 100_000 < 32 * MB
    backend.dispose()


def test_values_that_grow_under_the_same_key_are_written_out(tmp_path):
    backend = make(tmp_path, memory_per_slot=16 * MB)
    state = backend.get_state(VALUE)
    table = backend._tables["v"]
    for key in range(50):
        backend.current_key = key
        state.update("")
    for size in range(64):
        for key in range(50):
            backend.current_key = key
            state.update("x" * 20_000 * size)
        backend.end_of_batch()
    assert len(table.delta) < 50
    backend.dispose()


def test_the_tables_of_a_slot_share_its_memory(tmp_path):
    resources = SlotResources(RocksDBSettings(local_directories=(str(tmp_path),), memory_per_slot=100 * MB))
    first, second = (RocksDBKeyedStateBackend("op", (0, 128), 128, resources) for _ in range(2))

    def use(backend, name):
        state = backend.get_state(ValueStateDescriptor(name))
        for key in range(100):
            backend.current_key = key
            state.update(key)

    use(first, "v")
    assert resources.table_bytes == 50 * MB
    for i in range(4):
        second.get_state(ValueStateDescriptor(f"unused {i}"))
        use(second, str(i))
    assert resources.table_bytes == 10 * MB
    assert first._database.raw.property_int_value("rocksdb.block-cache-capacity") == 50 * MB
    assert second._database.raw.property_int_value("rocksdb.block-cache-capacity") == 50 * MB
    second.dispose()
    assert resources.table_bytes == 50 * MB
    first.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_state_may_be_several_times_larger_than_the_memory(tmp_path, kind):
    """600 MB of state in a process that may use 150 MB more than it has after its imports (its peak is measured), and
    that could not even reserve 600 MB more: RLIMIT_DATA ends at 400."""
    code = """
        import os, random, resource, sys
        import rocksdict
        from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
        from tidegate.state.rocksdb.backend import RocksDBKeyedStateBackend
        from tidegate.state.rocksdb.resources import SlotResources
        from tidegate.state.rocksdb.settings import RocksDBSettings

        kind = sys.argv[2]
        settings = RocksDBSettings(local_directories=(sys.argv[1],), memory_per_slot=48 << 20)
        backend = RocksDBKeyedStateBackend("op", (0, 128), 128, SlotResources(settings))
        descriptors = {"value": ValueStateDescriptor, "list": ListStateDescriptor, "map": MapStateDescriptor}
        state = backend.get_state(descriptors[kind]("s"))
        def status(name):
            return next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith(name))
        base = status("VmRSS")
        data = status("VmData")
        resource.setrlimit(resource.RLIMIT_DATA, (data + (400 << 20), data + (400 << 20)))

        def value(i):
            return random.Random(i).randbytes(2000)

        count = 300_000
        for i in range(count):
            backend.current_key = i if kind == "value" else i % 500
            if kind == "value":
                state.update(value(i))
            elif kind == "list":
                state.add(value(i))
            else:
                state.put(i, value(i))
            if i % 1000 == 0:
                backend.end_of_batch()
        backend.snapshot(1)
        for i in random.Random(1).sample(range(count), 2000 if kind != "list" else 20):
            backend.current_key = i if kind == "value" else i % 500
            if kind == "list":
                assert list(state.get()) == [value(j) for j in range(i % 500, count, 500)]
            else:
                assert (state.value() if kind == "value" else state.get(i)) == value(i)
        print((status("VmHWM") - base) >> 20)
        backend.dispose()
    """
    done = run_python(code, str(tmp_path), kind)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150


# ---------------------------------------------------------------- checkpoints


def uploaded(sink, before):
    return sum(len(data) for path, data in sink.files.items() if path not in before)


def test_what_is_uploaded_follows_what_has_changed(tmp_path):
    backend, sink = make(tmp_path), MemorySink()
    state = backend.get_state(VALUE)
    source = random.Random(1)
    for key in range(50_000):
        backend.current_key = key
        state.update(source.randbytes(50))
    sizes = []
    for number, share in enumerate((1.0, 0.01, 0.01, 0.1, 0.1, 0.01, 0.01), 1):
        for key in source.sample(range(50_000), int(50_000 * share)):
            backend.current_key = key
            state.update(source.randbytes(50))
        before = set(sink.files)
        snapshot = backend.snapshot(number).write(sink)
        backend.notify_checkpoint_complete(number)
        sizes.append(uploaded(sink, before))
    full = sizes[0]
    assert sizes[1] < 0.03 * full
    assert sizes[3] < 0.25 * full
    assert sum(sizes[1:]) < 3 * 0.24 * full  # with what compaction writes anew
    again = make(tmp_path / "again")
    again.restore([snapshot], sink)
    assert sum(1 for _ in again.keys("v")) == 50_000
    for b in (backend, again):
        b.dispose()


def test_when_everything_has_changed_no_more_than_a_full_snapshot_is_uploaded(tmp_path):
    """RocksDB has merged some of the changes by then: without care those would be uploaded beside the newer ones."""
    backend, sink = make(tmp_path, write_buffer_size=MB // 2, background_threads=1), MemorySink()
    state = backend.get_state(VALUE)
    source = random.Random(1)
    sizes = []
    for number in range(1, 5):
        for key in source.sample(range(50_000), 50_000):
            backend.current_key = key
            state.update(source.randbytes(50))
            if key % 1000 == 0:
                backend.flush()
        before = set(sink.files)
        backend.snapshot(number).write(sink)
        backend.notify_checkpoint_complete(number)
        sizes.append(uploaded(sink, before))
    assert max(sizes[1:]) < 1.3 * sizes[0]
    backend.dispose()


def test_hard_links_do_not_stay(tmp_path):
    backend, sink = make(tmp_path), MemorySink()
    state = backend.get_state(VALUE)
    backend.current_key = 1
    for number in range(1, 6):
        state.update(number)
        writer = backend.snapshot(number)
        if number % 2:
            writer.write(sink)
        else:
            backend.notify_checkpoint_aborted(number)
    del writer
    assert [p.name for p in backend.folder.iterdir()] == ["live"]
    backend.dispose()


def test_a_savepoint_reads_the_frozen_entries(tmp_path):
    backend = make(tmp_path)
    state = backend.get_state(VALUE)
    for key in range(3000):
        backend.current_key = key
        state.update(key)
    writer = backend.snapshot(1, full=True)
    backend.current_key = 5
    state.update("later")
    found = {}
    for name, keys, namespaces, values in writer.take_entries():
        assert name == "v"
        assert set(namespaces) == {None}
        found.update(zip(keys, values, strict=True))
    assert found == {key: key for key in range(3000)}
    assert [p.name for p in backend.folder.iterdir()] == ["live"]
    backend.dispose()


def test_a_savepoint_takes_fewer_entries_at_once_the_larger_they_are(tmp_path):
    backend = make(tmp_path)
    state = backend.get_state(VALUE)
    for key in range(50):
        backend.current_key = key
        state.update(bytes(500_000))
    portions = [len(keys) for _, keys, _, _ in backend.snapshot(1, full=True).take_entries()]
    assert sum(portions) == 50
    assert max(portions) * 500_000 < 16 << 20
    backend.dispose()


# ---------------------------------------------------------------- key groups


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (3, 2), (5, 1)])
def test_a_database_restored_at_another_parallelism_holds_the_own_key_groups_and_no_other(
    tmp_path, kind, before, after
):
    """In the database itself: its readers skip the records of other groups, which would be uploaded for ever and come
    to life again at the next change of the parallelism."""
    backends, sink = Backends(kind, str(tmp_path)), MemorySink()
    keys, snapshots = range(1500), []
    groups = {key: key_group(key, 128) for key in keys}
    assert set(groups.values()) == set(range(128))
    for subtask in range(before):
        start, end = key_group_range(128, before, subtask)
        backend = backends.make((start, end))
        value, elements = backend.get_state(VALUE), backend.get_state(ListStateDescriptor("l"))
        for key in keys:
            if start <= groups[key] < end:
                backend.current_key = key
                value.update(key)
                elements.add(key)
        snapshots.append(backend.snapshot(1).write(sink))
    for subtask in range(after):
        start, end = key_group_range(128, after, subtask)
        overlapping = [s for s in snapshots if s.key_group_start < end and start < s.key_group_end]
        restored = backends.restored(overlapping, sink, (start, end), kind="rocksdb")
        records = [GROUP.unpack_from(key)[0] for key, _ in restored._database.scan(b"", b"\xff" * 8)]
        assert sorted(records) == sorted(2 * [group for group in groups.values() if start <= group < end])
    backends.dispose()


# ---------------------------------------------------------------- keys


def test_exact_keys_are_read_back():
    for key in (0, -1, 2**63 - 1, -(2**63), 2**64, "", "é", b"\xff", None, 1.5, float("inf"), (), (1, ("a", b""))):
        assert is_exact(key)
        again = decode_value(encode_value(key))
        assert again == key
        assert type(again) is type(key)
    for key in (True, 1.0, (1, True)):
        assert not is_exact(key)


EDGES = [0, 1, -1, -2, 127, 2**61 - 2, 2**61 - 1, 2**61, -(2**61) + 1, -(2**61), 2**63 - 1, -(2**63)]


@pytest.mark.parametrize(
    "entries",
    [
        [*EDGES, *range(-50, 50)],
        [*EDGES, 2**63, *range(50)],
        [*map(str, EDGES), "é", "", "\ud800", *map(chr, range(65, 120))],
        [*range(50), "a", None, True, (1, 2)],
        [1, 2],
    ],
    ids=["ints", "more than 64 bits", "strings", "mixed", "few"],
)
def test_many_keys_at_once_are_encoded_as_one_by_one(entries):
    codec = EntryCodec(3, 128, False)
    single = [codec.encode(entry) for entry in entries]
    assert encode_all(codec, entries) == single
    keys, positions = encode_in_order(codec, entries)
    assert keys == sorted(single)
    assert [single[i] for i in positions] == keys
    named = EntryCodec(3, 128, True)
    pairs = [(entry, "ns") for entry in entries]
    assert encode_all(named, pairs) == [named.encode(pair) for pair in pairs]


@pytest.mark.parametrize(
    "values",
    [
        [i for i in EDGES for _ in range(3)],
        [*EDGES, 2**63, *range(20)],
        [0.5, -0.0, float("inf"), 1e300, *map(float, range(30))],
        [*range(30), 1.5, True, None, "x", [1]],
        ["12345678", *range(30)],
    ],
)
def test_many_values_at_once_are_encoded_as_one_by_one(values):
    single = [encode_record(value) for value in values]
    many = encode_numbers(values)
    assert many is None or many == single
    for decoded in (decode_records(single), [record_value(record) for record in single]):
        assert list(map(repr, decoded)) == list(map(repr, values))
    for value, record in zip(values, single, strict=True):
        framed = frame("original", record)
        assert repr(record_value(framed)) == repr(value)
        assert framed_original(framed) == "original"
        assert framed_original(record) is None


def test_the_end_of_a_prefix():
    assert prefix_end(b"a") == b"b"
    assert prefix_end(b"a\xff\xff") == b"b"


def test_a_key_that_is_only_equal_to_itself_is_refused(tmp_path):
    class Thing:
        pass

    backend = make(tmp_path)
    state = backend.get_state(MapStateDescriptor("m"))
    backend.current_key = 1
    with pytest.raises(ConfigurationError, match="Thing"):
        state.get(Thing())
    backend.dispose()


# ---------------------------------------------------------------- settings


def settings_of(**keys):
    configuration = Configuration()
    for key, value in keys.items():
        configuration.set_string(f"state.backend.rocksdb.{key.replace('__', '.').replace('_', '-')}", value)
    return RocksDBSettings.from_configuration(configuration)


def options_of(backend):
    """What RocksDB itself says of its options."""
    return max(backend.folder.glob("live/OPTIONS-*")).read_text()


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ({"block__blocksize": "16 kb"}, "block_size=16384"),
        ({"block__blocksize": "16 kb", "predefined-options": "SPINNING_DISK_OPTIMIZED"}, "block_size=16384"),
        ({"predefined-options": "SPINNING_DISK_OPTIMIZED"}, "block_size=32768"),
        ({"predefined-options": "SPINNING_DISK_OPTIMIZED_HIGH_MEM"}, "target_file_size_base=268435456"),
        ({"predefined-options": "FLASH_SSD_OPTIMIZED"}, "max_background_jobs=4"),
        ({"thread__num": "3"}, "max_background_jobs=3"),
        ({"compaction__style": "level"}, "compaction_style=kCompactionStyleLevel"),
        ({"compaction__style": "UNIVERSAL"}, "compaction_style=kCompactionStyleUniversal"),
        ({"compression__per__level": "LZ4_COMPRESSION"}, "compression=kLZ4Compression"),
        ({"compression__per__level": "none;zstd"}, "compression_per_level=kNoCompression:kZSTD"),
        ({"writebuffer__size": "5 mb"}, "write_buffer_size=5242880"),
        ({"memory__fixed-per-slot": "64 mb"}, "write_buffer_size=8388608"),
        ({"memory__fixed-per-slot": "64 mb", "memory__write-buffer-ratio": "0.25"}, "write_buffer_size=4194304"),
    ],
)
def test_each_setting_reaches_rocksdb(tmp_path, keys, shown):
    settings = settings_of(localdir=str(tmp_path), **keys)
    backend = RocksDBKeyedStateBackend("op", (0, 128), 128, SlotResources(settings))
    backend.get_state(VALUE)
    assert shown in options_of(backend)
    assert backend.folder.is_relative_to(tmp_path)
    backend.dispose()


def test_the_block_cache_is_as_large_as_told(tmp_path):
    settings = settings_of(localdir=str(tmp_path), block__cache_size="3 mb")
    backend = RocksDBKeyedStateBackend("op", (0, 128), 128, SlotResources(settings))
    backend.get_state(VALUE)
    assert backend._database.raw.property_int_value("rocksdb.block-cache-capacity") == 3 * MB
    backend.dispose()


def test_a_wrong_compression_is_refused():
    with pytest.raises(ConfigurationError, match=r"per\.level.*'brotli'.*snappy"):
        settings_of(compression__per__level="brotli")


def test_one_of_several_folders_is_taken(tmp_path):
    settings = settings_of(localdir=f"{tmp_path}/a;{tmp_path}/b")
    assert len(settings.local_directories) == 2
    backend = RocksDBKeyedStateBackend("op", (0, 128), 128, SlotResources(settings))
    backend.get_state(VALUE)
    assert backend.folder.parent.parent in (tmp_path / "a", tmp_path / "b")
    backend.dispose()
