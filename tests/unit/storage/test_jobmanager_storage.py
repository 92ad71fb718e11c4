from __future__ import annotations

import pickle

import pytest

from tests.unit.storage.snapshots import checkpoint
from tidegate.common.errors import SnapshotError
from tidegate.storage.cleanup import SharedFileRegistry
from tidegate.storage.handles import FileRange, InlineBytes
from tidegate.storage.leases.keeper import LeaseLostError
from tidegate.storage.memory import JobManagerStorage


def test_state_travels_in_the_handles():
    storage = JobManagerStorage()
    worker = pickle.loads(pickle.dumps(storage.worker_storage()))
    assert not worker.supports_increments
    writer = worker.task_writer(1, 0, 0, 0)
    handle = writer.shared.write(b"abc" * 10_000)
    assert isinstance(handle, InlineBytes)
    writer.exclusive.write(b"x")
    writer.close()
    assert (writer.bytes_written, writer.files_written) == (30_001, 0)
    assert worker.source().read(handle) == storage.source().read(handle) == b"abc" * 10_000
    with pytest.raises(SnapshotError, match="no files"):
        worker.source().read(FileRange("x", 0, 1, ""))


def test_over_the_limit_is_a_clear_error():
    writer = JobManagerStorage(1000).worker_storage().task_writer(1, 0, 2, 3)
    writer.exclusive.write(bytes(600))
    with pytest.raises(SnapshotError, match=r"subtask 3 of vertex 2 .*1,000 bytes.*execution.checkpointing.dir"):
        writer.shared.write(bytes(600))


def test_the_default_limit_is_five_mebibytes():
    writer = JobManagerStorage().worker_storage().task_writer(1, 0, 0, 0)
    writer.shared.write(bytes(5 * 1024 * 1024))
    with pytest.raises(SnapshotError):
        writer.shared.write(b"x")


def test_a_cancelled_writer_writes_no_more():
    writer = JobManagerStorage().worker_storage().task_writer(1, 0, 0, 0)
    writer.cancel()
    with pytest.raises(SnapshotError, match="aborted"):
        writer.shared.write(b"x")


def test_completed_checkpoints_are_kept_until_they_are_discarded():
    storage, registry = JobManagerStorage(), SharedFileRegistry()
    for n in (1, 2):
        registry.begin(n)
        storage.write_metadata(checkpoint(n))
        registry.register(checkpoint(n))
    assert storage.completed_checkpoints() == [1, 2]
    storage.delete(registry.discard(1))
    assert storage.completed_checkpoints() == [2]
    assert storage.read_metadata(2) == checkpoint(2)
    with pytest.raises(SnapshotError):
        storage.read_metadata(1)


def test_a_run_that_does_not_lead_any_more_completes_nothing() -> None:
    def refuse() -> None:
        raise LeaseLostError("another driver leads")

    storage = JobManagerStorage(guard=refuse)
    for call in (storage.check_owned, lambda: storage.write_metadata(checkpoint(1))):
        with pytest.raises(LeaseLostError):
            call()
    assert storage.completed_checkpoints() == []
