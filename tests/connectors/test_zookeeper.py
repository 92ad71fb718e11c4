"""Leases and records in a real ZooKeeper, which is killed and started again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.cache import UnavailableError
from tests.connectors.zookeeper import ZooKeeper
from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import CheckpointId
from tidegate.jobmanager.leadership.job_record import GraphOutline, JobRecord, SnapshotPointer
from tidegate.jobmanager.leadership.leadership import Leadership
from tidegate.jobmanager.leadership.record_claim import CheckpointCompleted
from tidegate.protocol.instructions import Recording
from tidegate.storage.leases.cells import Cell
from tidegate.storage.leases.zookeeper import open_zookeeper_cells

LEASE_MS = 2000
JOB = JobRecord(job_id="0" * 32, name="job", graph=GraphOutline(operators=(), edges=()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    pytest.importorskip("kazoo")
    made = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        made.start()
    except UnavailableError as error:
        pytest.skip(str(error))
    yield made
    made.kill()


def cells(server: ZooKeeper, name: str) -> list[Cell]:
    return open_zookeeper_cells(server.quorum, f"/tidegate/{name}", ("lease", "job"), LEASE_MS / 1000)


def leader(server: ZooKeeper, name: str, standby: bool = False) -> Leadership:
    lease, record = cells(server, name)
    found = Leadership(lease, record, LEASE_MS, JOB)
    found.campaign(standby)
    return found


def until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_write_is_refused_unless_the_version_is_known(server: ZooKeeper) -> None:
    (one, _), (other, _) = cells(server, "versions"), cells(server, "versions")
    assert one.read() is None
    first = one.put(b"a", None)
    assert first is not None
    assert other.put(b"b", None) is None
    second = other.put(b"b", first)
    assert second not in (None, first)
    assert one.put(b"c", first) is None
    found = one.read()
    assert found is not None
    assert (found.data, found.version) == (b"b", second)
    version = second
    with ThreadPoolExecutor(4) as pool:
        for number in range(10):
            put = [pool.submit(cell.put, b"%d" % number, version) for cell in (one, other)]
            (version,) = [v for v in (p.result() for p in put) if v is not None]
    one.close()
    other.close()


def test_the_leader_survives_a_short_outage_and_stops_in_a_long_one(server: ZooKeeper) -> None:
    first = leader(server, "outage")
    pointer = SnapshotPointer(checkpoint_id=CheckpointId(7), path="/c/chk-7", epoch=1)
    outcomes: list[Recording] = []
    server.kill()
    first.put(CheckpointCompleted(pointer), outcomes.append)
    assert first.leads()  # its lease is valid, whatever has become of the server
    until(lambda: not first.leads())
    assert first.valid_ms() == 0
    until(lambda: outcomes)
    assert outcomes == [Recording.DEPOSED]
    server.start()
    first.close()
    second = leader(server, "outage")
    assert (second.epoch, second.leads()) == (2, True)
    # What the first one has asked for may have been written when the server was there again: that was before the claim.
    assert second.record.checkpoint in (None, pointer)
    newer = SnapshotPointer(checkpoint_id=CheckpointId(8), path="/c/chk-8", epoch=2)
    assert put_now(second, CheckpointCompleted(newer)) is Recording.WRITTEN
    second.close()
    third = leader(server, "outage", standby=True)
    assert third.record.checkpoint == newer
    third.close()


def put_now(found: Leadership, change: Any) -> Recording:
    outcomes: list[Recording] = []
    found.put(change, outcomes.append)
    until(lambda: outcomes)
    return outcomes[0]


def test_what_is_missing_is_said(server: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.storage.leases.zookeeper._START_S", 0.5)
    with pytest.raises(ConfigurationError, match=r"high-availability.zookeeper.quorum: no ZooKeeper at 127.0.0.1:1 "):
        open_zookeeper_cells("127.0.0.1:1", "/x", ("lease",), 1.0)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tidegate\[zookeeper\]'"):
        open_zookeeper_cells(server.quorum, "/x", ("lease",), 1.0)


def test_the_settings_lead_to_the_servers(server: ZooKeeper, tmp_path: Path) -> None:
    from tidegate.common.configuration import Configuration
    from tidegate.jobmanager.leadership.settings import HighAvailability

    given = {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": server.quorum,
        "high-availability.zookeeper.path.root": "/elsewhere",
        "high-availability.cluster-id": "mine",
    }
    available = HighAvailability.from_configuration(Configuration.from_dict(given))
    assert available is not None
    lease, record = available._cells()
    assert record.where == f"ZooKeeper {server.quorum}, node /elsewhere/mine/job"
    assert lease.read() is None
    lease.close()
    record.close()
