from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.storage.snapshots import checkpoint, of_a_newer_version
from tidegate.common.errors import SnapshotDamagedError, SnapshotError
from tidegate.common.ids import OperatorId
from tidegate.storage.handles import EnumeratorState, FileRange, InlineBytes
from tidegate.storage.metadata import FORMAT_VERSION, decode_metadata, encode_metadata, read_metadata

METADATA = checkpoint(7, [(6, [FileRange("shared/x", 0, 5, "00")]), (7, [InlineBytes(b"abc", "11")])])
ENCODED = encode_metadata(METADATA)


def test_it_comes_back_as_it_was():
    assert decode_metadata(ENCODED, "f") == METADATA


@given(st.integers(0, len(ENCODED) - 1))
def test_every_truncation_is_refused_as_incomplete(length):
    with pytest.raises(SnapshotError, match=r"^the-file is incomplete"):
        decode_metadata(ENCODED[:length], "the-file")


@given(st.integers(0, len(ENCODED) - 1), st.integers(1, 255))
def test_every_changed_byte_is_refused_with_the_files_name(position, flip):
    damaged = bytearray(ENCODED)
    damaged[position] ^= flip
    with pytest.raises(SnapshotDamagedError, match=r"^the-file "):  # in the version too: it is no newer one
        decode_metadata(bytes(damaged), "the-file")


def test_a_newer_version_is_named_and_is_no_damage():
    with pytest.raises(SnapshotError, match=rf"version {FORMAT_VERSION + 1}.*reads up to {FORMAT_VERSION}") as raised:
        decode_metadata(of_a_newer_version(ENCODED), "f")
    assert not isinstance(raised.value, SnapshotDamagedError)


def test_what_older_readers_would_leave_out_in_silence_has_a_version_that_they_refuse():
    """Version 2 knew no enumerators: it would read every file of a watched folder again."""
    known = EnumeratorState(known=["a", "b"], handed_out=2)
    with_splits = msgspec.structs.replace(METADATA, enumerators={OperatorId("source"): known})
    encoded = encode_metadata(with_splits)
    assert struct.unpack_from("<I", encoded, 8)[0] > 2
    assert decode_metadata(encoded, "f").enumerators == with_splits.enumerators


def test_another_file_is_not_taken_for_metadata():
    with pytest.raises(SnapshotError, match="not the metadata"):
        decode_metadata(b"PAR1" + bytes(100), "f")


def test_read_by_directory_or_file(tmp_path):
    directory = tmp_path / "job" / "chk-7"
    directory.mkdir(parents=True)
    (directory / "_metadata").write_bytes(ENCODED)
    for path in (directory, f"{directory}/", directory / "_metadata", directory.as_uri()):
        loaded = read_metadata(str(path))
        assert loaded.metadata == METADATA
        assert str(loaded.root) == str(tmp_path / "job")


@pytest.mark.parametrize("name", ["chk-8", "chk-8/_metadata", "nothing/here/at/all"])
def test_a_missing_one_is_named(tmp_path, name):
    with pytest.raises(SnapshotError, match=r"there is no .*_metadata"):
        read_metadata(str(tmp_path / name))
