"""The order of the work for a job's storage, without threads."""

from __future__ import annotations

from tidegate.storage.work_queues import Lane, Work, WorkQueues


def work(*folders: str) -> Work:
    return Work("work", lambda: None, frozenset(folders))


def test_a_deletion_waits_for_the_writes_into_its_folder_and_for_no_others() -> None:
    queues = WorkQueues()
    write, deletion = work("chk-1"), work("chk-1")
    queues.add(Lane.WRITES, write)
    queues.add(Lane.SAVEPOINTS, work("savepoint"))
    queues.add(Lane.DELETIONS, deletion)
    assert queues.take(Lane.DELETIONS) is None
    assert queues.take(Lane.WRITES) is write
    assert queues.take(Lane.DELETIONS) is None
    queues.ended(Lane.WRITES, write)
    assert queues.take(Lane.DELETIONS) is deletion


def test_a_deletion_does_not_wait_for_a_write_that_was_dropped() -> None:
    queues = WorkQueues()
    begun, dropped, unfinished = work("chk-1"), work("chk-2"), work("chk-1")
    queues.add(Lane.WRITES, begun)
    assert queues.take(Lane.WRITES) is begun
    queues.add(Lane.WRITES, dropped)
    queues.add(Lane.WRITES, unfinished)  # behind the one that has begun
    queues.drop()
    assert all(queues.waiting(lane) == 0 for lane in Lane)
    one, other, everything = work("chk-1"), work("chk-2"), Work("all", lambda: None, None)
    for deletion in (other, one, everything):
        queues.add(Lane.DELETIONS, deletion)
    assert queues.take(Lane.DELETIONS) is other
    assert queues.take(Lane.DELETIONS) is None  # what has begun may still end
    queues.ended(Lane.WRITES, begun)
    assert queues.take(Lane.DELETIONS) is one
    assert queues.take(Lane.DELETIONS) is everything
