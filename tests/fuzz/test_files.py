"""Every file that is read: what was damaged is an error with a sentence, or exactly what was written; never a crash, a
hang, or something else. Pickles are not fuzzed: reading one runs code, and a checksum stands before each."""

from __future__ import annotations

import contextlib
import shutil
import struct
import tempfile
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.fuzz.effort import fuzzed
from tests.fuzz.inputs import any_bytes, damaged, encoded, refusal
from tidegate.common.decoding import UNREADABLE
from tidegate.common.errors import SnapshotDamagedError, SnapshotError
from tidegate.connectors.files.part_files import LocalPartFiles, OutputFileError
from tidegate.jobmanager.job_view import JobView
from tidegate.state.savepoint.tables import columns_of, read_table
from tidegate.storage.checksums import checksum
from tidegate.storage.compression import ZLIB, compress, decompress
from tidegate.storage.files import open_files
from tidegate.storage.handles import CheckpointMetadata, FileRange, InlineBytes, SlotRestore
from tidegate.storage.job_lock import _decode as decode_lock
from tidegate.storage.location import StorageLocation
from tidegate.storage.metadata import FORMAT_VERSION, decode_metadata, encode_metadata, read_metadata
from tidegate.storage.reader import FileStateSource

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("savepoint-*"))
METADATA = [(path / "_metadata").read_bytes() for path in GOLDEN]
TABLES = [path.read_bytes() for path in GOLDEN[-1].rglob("*.parquet")][:4]


@fuzzed
@given(any_bytes(METADATA))
def test_metadata_is_what_was_written_or_an_error(data: bytes) -> None:
    metadata, error = refusal(lambda: decode_metadata(data, "the file"), SnapshotError)
    if error is not None:
        assert str(error).startswith("the file ")
    else:
        assert metadata in [decode_metadata(original, "") for original in METADATA]


@fuzzed
@given(st.one_of(any_bytes([data[20:-8] for data in METADATA]), encoded(CheckpointMetadata)))
def test_metadata_with_a_right_checksum_and_any_content(body: bytes) -> None:
    """As another program might write it."""
    data = struct.pack("<8sIQ", b"TIDEGATE", FORMAT_VERSION, len(body)) + body
    data += struct.pack("<Q", xxh3_64_intdigest(data))
    metadata, error = refusal(lambda: decode_metadata(data, "the file"), SnapshotDamagedError)
    if metadata is None:
        assert str(error).startswith("the file ")
    else:
        assert repr(decode_metadata(encode_metadata(metadata), "again")) == repr(metadata)


@fuzzed
@given(st.sampled_from(["_metadata", "metadata.json"]), st.data())
def test_a_savepoint_with_a_damaged_file_is_refused_or_the_same(name: str, data: st.DataObject) -> None:
    original = GOLDEN[-1]
    changed = data.draw(damaged([(original / name).read_bytes()]))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "savepoint"
        copy.mkdir()
        for each in ("_metadata", "metadata.json"):
            shutil.copy(original / each, copy / each)
        (copy / name).write_bytes(changed)
        try:
            loaded = read_metadata(str(copy))
        except SnapshotError:
            assert changed != (original / name).read_bytes()
        else:
            assert loaded.metadata == read_metadata(str(original)).metadata


@fuzzed
@given(any_bytes(TABLES))
def test_a_table_is_read_or_refused(data: bytes) -> None:
    _, error = refusal(
        lambda: columns_of(read_table(data, "the table"), ["key", "value"], "the table"), SnapshotDamagedError
    )
    assert error is None or str(error).startswith("the table ")


@fuzzed
@given(
    st.binary(max_size=300),
    st.binary(max_size=300),
    st.integers(-5, 400),
    st.integers(-5, 400),
    st.sampled_from(["state", "../state", "/etc/passwd", "gone", "", "a/../../b"]),
)
def test_a_range_of_state_is_what_was_written_or_an_error(
    written: bytes, found: bytes, offset: int, length: int, path: str
) -> None:
    handle = FileRange(path, offset, length, checksum(written[max(0, offset) : max(0, offset + length)]))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "state").write_bytes(found)
        try:
            data = FileStateSource(open_files(StorageLocation.parse(folder))).read(handle)
        except SnapshotError:
            return
    assert path == "state"
    assert data == written[offset : offset + length]


STATE = [b"", b"x", bytes(range(256)) * 40, b"abc" * 10_000]
PACKED = [compress(data, ZLIB) for data in STATE]


@fuzzed
@given(st.one_of(st.binary(max_size=200), damaged(PACKED)), st.sampled_from([ZLIB, ZLIB, "", "zstd", "\x00"]))
def test_compressed_state_is_what_was_packed_or_an_error(data: bytes, codec: str) -> None:
    """As it comes when the checksum beside it has been damaged in the same way."""
    state, error = refusal(lambda: decompress(data, codec), SnapshotError)
    if error is not None:
        assert codec
        assert isinstance(error, SnapshotDamagedError) == (codec == ZLIB)
    else:
        assert state == data if not codec else state in STATE


@fuzzed
@given(encoded(FileRange | InlineBytes), any_bytes(METADATA))
def test_handles_and_restores_decode_or_are_refused(handle: bytes, restore: bytes) -> None:
    for data, kind in ((handle, FileRange | InlineBytes), (restore, SlotRestore)):
        with contextlib.suppress(*UNREADABLE):  # on the slot's mailbox thread: they end the attempt
            msgspec.msgpack.decode(data, type=kind)


@fuzzed
@given(any_bytes([b'{"host": "h", "pid": 1, "since_ms": 1}']))
def test_a_lock_file_says_who_or_nothing(data: bytes) -> None:
    decode_lock(data)


@fuzzed
@given(any_bytes([b'{"job_id": "x", "name": "y"}']))
def test_a_view_is_one_or_a_decode_error(data: bytes) -> None:
    with contextlib.suppress(*UNREADABLE):
        JobView.from_json(data)


@fuzzed
@given(st.binary(max_size=100), st.integers(0, 120), st.booleans(), st.one_of(st.none(), st.binary(max_size=100)))
def test_a_part_file_is_published_whole_or_not_at_all(
    hidden: bytes, length: int, copied: bool, there: bytes | None
) -> None:
    """A committable names a hidden file, its length and its final name: after a crash something else may be there."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / ".hidden").write_bytes(hidden)
        if there is not None:
            (root / "part").write_bytes(there)
        files = LocalPartFiles(folder)
        publish = files.publish_copy if copied else files.publish
        try:
            publish(".hidden", "part", length)
        except OutputFileError:
            assert not (root / "part").exists() if there is None else (root / "part").read_bytes() == there
        else:
            assert len((root / "part").read_bytes()) == length
            if there is None:
                assert (root / "part").read_bytes() == hidden[:length]
