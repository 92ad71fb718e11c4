"""Leases and records in a real ZooKeeper, which is killed and started again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.connectors.components import missing, provided
from tests.connectors.zookeeper import ZooKeeper, zookeeper
from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import CheckpointId
from tidegate.jobmanager.leadership.job_record import GraphOutline, JobRecord, SnapshotPointer
from tidegate.jobmanager.leadership.leadership import Leadership
from tidegate.jobmanager.leadership.record_claim import CheckpointCompleted
from tidegate.protocol.instructions import Recording
from tidegate.storage.leases.cells import Cell
from tidegate.storage.leases.zookeeper import ZooKeeperCell, open_zookeeper_cells

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import NoAuthError
except ImportError as error:
    missing(f"{error}: pip install kazoo")

LEASE_MS = 2000
JOB = JobRecord(job_id="0" * 32, name="job", graph=GraphOutline(operators=(), edges=()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with provided(), zookeeper(tmp_path_factory.mktemp("zookeeper")) as made:
        yield made


def cells(server: ZooKeeper, name: str, **access: Any) -> list[Cell]:
    path = f"/tidegate-{name}/{name}"
    return open_zookeeper_cells(server.quorum, path, ("lease", "job"), request_s=LEASE_MS / 4000, **access)


def leader(server: ZooKeeper, name: str, standby: bool = False, lease_ms: int = LEASE_MS) -> Leadership:
    lease, record = cells(server, name)
    found = Leadership(lease, record, lease_ms, JOB)
    found.campaign(standby)
    return found


def until(condition: Any) -> None:
    deadline = time.monotonic() + 120
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


def test_a_server_that_is_back_before_the_lease_has_run_out_has_cost_nothing(server: ZooKeeper) -> None:
    found = leader(server, "back", lease_ms=30_000)
    pointer = SnapshotPointer(checkpoint_id=CheckpointId(7), path="/c/chk-7", epoch=1)
    server.kill()
    outcomes: list[Recording] = []
    found.put(CheckpointCompleted(pointer), outcomes.append)
    until(lambda: getattr(found._keeper._lease.state, "in_doubt", True))  # a renewal came to nothing
    left = found.valid_ms()
    assert found.leads()
    server.start()
    until(lambda: outcomes and found.valid_ms() > left)  # it was renewed since
    assert outcomes == [Recording.WRITTEN]
    assert (found.leads(), found.epoch, found._keeper.epoch) == (True, 1, 1)
    found.close()


def test_nodes_of_their_creator_are_for_nobody_else(server: ZooKeeper) -> None:
    mine: dict[str, Any] = {"credentials": "me:opensesame", "creator_only": True}
    lease, record = cells(server, "secured", **mine)
    version = lease.put(b"a", None)
    assert version is not None
    for credentials in (None, "me:wrong"):
        with pytest.raises(ConfigurationError, match=r"the node /tidegate-secured/secured is for others: set the same"):
            cells(server, "secured", credentials=credentials)
    again, _ = cells(server, "secured", **mine)
    found = again.read()
    assert found is not None
    assert again.put(b"b", version) is not None
    other = stranger(server)
    for attempt in (
        lambda: other.get("/tidegate-secured/secured/lease"),
        lambda: other.set("/tidegate-secured/secured/lease", b"stolen"),
        lambda: other.create("/tidegate-secured/secured/job", b"stolen"),
        lambda: other.delete("/tidegate-secured/secured", recursive=True),
    ):
        with pytest.raises(NoAuthError):
            attempt()
    other.stop()
    for cell in (lease, record, again):
        cell.close()


def test_nodes_that_are_open_are_not_taken_for_secured_ones(server: ZooKeeper) -> None:
    for cell in cells(server, "open"):
        cell.close()
    with pytest.raises(ConfigurationError, match=r"everybody may change the node /tidegate-open/open of ZooKeeper"):
        cells(server, "open", credentials="me:opensesame", creator_only=True)


def stranger(server: ZooKeeper) -> Any:
    client = KazooClient(server.quorum)
    client.start()
    return client


class Answering:
    """A client whose first answer takes its time."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def sync_async(self, path: str) -> Answering:
        return self

    get_async = sync_async

    def get(self, timeout: float) -> Any:
        self.timeouts.append(timeout)
        time.sleep(0.05)
        return b"", SimpleNamespace(version=0)


def test_a_read_takes_no_longer_than_a_request_may() -> None:
    client = Answering()
    ZooKeeperCell(client, "q", "/x", 1.0).read()
    assert client.timeouts[0] == 1.0
    assert client.timeouts[1] <= 0.95


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
        open_zookeeper_cells("127.0.0.1:1", "/x", ("lease",), request_s=1.0)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tidegate\[zookeeper\]'"):
        open_zookeeper_cells(server.quorum, "/x", ("lease",), request_s=1.0)


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
    secured = given | {
        "high-availability.cluster-id": "secured",
        "high-availability.zookeeper.path.root": "/elsewhere-secured",
        "high-availability.zookeeper.client.acl": "creator",
        "tidegate.high-availability.zookeeper.username": "me",
        "tidegate.high-availability.zookeeper.password": "opensesame",
    }
    for_me = HighAvailability.from_configuration(Configuration.from_dict(secured))
    assert for_me is not None
    for cell in for_me._cells():
        cell.close()
    other = stranger(server)
    with pytest.raises(NoAuthError):
        other.get("/elsewhere-secured/secured")
    other.stop()
    lease, record = available._cells()
    assert record.where == f"ZooKeeper {server.quorum}, node /elsewhere/mine/job"
    assert lease.read() is None
    lease.close()
    record.close()
