"""The same storage on an S3-compatible server that runs on this machine."""

from __future__ import annotations

import os
import pickle
import socket

import msgspec
import pytest

from tests.unit.storage.snapshots import checkpoint
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.metadata import read_metadata
from tidegate.storage.worker_storage import file_source

SMALL = os.urandom(100_000)
LARGE = os.urandom(9 * 1024 * 1024)


def names(client):
    """Of all objects but the empty ones that stand for directories."""
    found = client.list_objects_v2(Bucket="bucket").get("Contents", [])
    return sorted(o["Key"] for o in found if not o["Key"].endswith("/"))


@pytest.fixture
def storage(s3_server, request):
    endpoint, _ = s3_server
    storage = FileSystemStorage(f"s3://bucket/{request.node.name}?endpoint_override={endpoint}", "job")
    storage.open(0.0)
    yield storage
    storage.close()


def test_a_checkpoint_goes_to_s3_and_comes_back(storage, s3_server):
    writer = pickle.loads(pickle.dumps(storage.worker_storage())).task_writer(1, 0, 0, 0)
    handles = [writer.shared.write(SMALL), writer.exclusive.write(LARGE), writer.exclusive.write(SMALL)]
    writer.close()
    metadata = checkpoint(1, [(1, handles[:1])], handles[1:])
    pointer = storage.write_metadata(metadata)
    assert storage.completed_checkpoints() == [1]
    loaded = read_metadata(pointer)
    assert msgspec.structs.replace(loaded.metadata, witness="") == metadata
    by_its_file = read_metadata(f"{pointer.partition('?')[0]}/_metadata?{pointer.partition('?')[2]}")
    assert by_its_file.metadata == loaded.metadata
    for source in (storage.source(), storage.worker_storage().source(storage.root), file_source(str(loaded.root))):
        assert [source.read(h) for h in handles] == [SMALL, LARGE, SMALL]


def test_damage_is_found(storage, s3_server):
    _, client = s3_server
    writer = storage.worker_storage().task_writer(1, 0, 0, 0)
    small, large = writer.shared.write(SMALL), writer.exclusive.write(LARGE)
    writer.close()
    base = storage.root.partition("?")[0].removeprefix("s3://bucket/")
    client.put_object(Bucket="bucket", Key=f"{base}/{small.path}", Body=SMALL[:-1] + bytes([SMALL[-1] ^ 1]))
    with pytest.raises(SnapshotError, match=rf"s3://.*{small.path} is corrupt"):
        storage.source().read(small)
    client.put_object(Bucket="bucket", Key=f"{base}/{small.path}", Body=SMALL[:50])
    with pytest.raises(SnapshotError, match="truncated"):
        storage.source().read(small)
    client.delete_object(Bucket="bucket", Key=f"{base}/{large.path}")
    with pytest.raises(SnapshotError, match=rf"{large.path}.*no such file"):
        storage.source().read(large)
    with pytest.raises(SnapshotError, match=r"there is no s3://"):
        storage.read_metadata(1)


def test_abort_and_orphans_leave_nothing(storage, s3_server):
    _, client = s3_server
    before = names(client)
    writer = storage.worker_storage().task_writer(1, 0, 0, 0)
    writer.shared.write(LARGE)
    writer.abort()
    assert names(client) == before
    writer = storage.worker_storage().task_writer(2, 0, 0, 0)
    writer.shared.write(SMALL)
    writer.exclusive.write(SMALL)
    writer.close()
    assert storage.delete_orphans() == []
    assert names(client) == before


def test_the_same_job_twice_is_refused(storage):
    other = FileSystemStorage(storage.root.replace("/job?", "?"), "job")
    with pytest.raises(ConfigurationError, match="already running"):
        other.open(1.0)


def test_a_missing_bucket_and_an_unreachable_server_are_clear_errors(s3_server):
    endpoint, _ = s3_server
    with pytest.raises(ConfigurationError, match=r"s3://nobody/x/job cannot be written"):
        FileSystemStorage(f"s3://nobody/x?endpoint_override={endpoint}", "job").open(0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match="cannot be written"):
            FileSystemStorage(f"s3://bucket/x?endpoint_override={closed}", "job").open(0.0)
