"""Cells in ZooKeeper: a node each, changed on the condition of its version. Needs the package kazoo.

ZooKeeper orders all writes, so a conditional one is all that a lease and a record need; there are no ephemeral nodes,
whose end with a session would say less than a lease: that a server has given the session up, not that the client knows.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.storage.leases.cells import Cell, Content

_START_S = 15.0


def open_zookeeper_cells(
    quorum: str,
    path: str,
    names: tuple[str, ...],
    *,
    request_s: float,
    credentials: str | None = None,
    creator_only: bool = False,
) -> list[Cell]:
    """The cells `names` below the node `path`, over one connection. `request_s`: how long a read or a write may take.
    `credentials`: "user:password"; with `creator_only` nobody without them can read or change the nodes. They have to
    have been made so. ConfigurationError when no server answers, or the nodes are not for us."""
    try:
        from kazoo.client import KazooClient
        from kazoo.exceptions import KazooException, NoAuthError
        from kazoo.security import CREATOR_ALL_ACL
    except ImportError as error:
        raise ConfigurationError(
            "high-availability.type is zookeeper, which needs the package kazoo: pip install 'tidegate[zookeeper]'"
        ) from error
    logging.getLogger("kazoo.client").setLevel(logging.ERROR)  # it tells of every lost connection; so does the lease
    client = KazooClient(
        hosts=quorum,
        # Nothing depends on the session, but a connection that hangs, also while it is made, is given up after it.
        timeout=2 * request_s,
        auth_data=None if credentials is None else [("digest", credentials)],
        default_acl=CREATOR_ALL_ACL if creator_only else None,
        connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 1.0},
        command_retry={"max_tries": 0},  # a write that is repeated unseen could refuse itself
    )
    try:
        client.start(timeout=_START_S)
        client.ensure_path(path)
        client.get(path)  # servers before 3.5.5 tell everybody who has the rights
        acls, _ = client.get_acls(path)
    except NoAuthError as error:
        _stop(client)
        raise ConfigurationError(
            f"ZooKeeper {quorum}: the node {path} is for others: set the same high-availability.zookeeper.client.acl, "
            "tidegate.high-availability.zookeeper.username and tidegate.high-availability.zookeeper.password as for "
            "the driver that has made it"
        ) from error
    except (KazooException, client.handler.timeout_exception, OSError, ValueError) as error:
        _stop(client)
        raise ConfigurationError(
            f"high-availability.zookeeper.quorum: no ZooKeeper at {quorum} answers within {_START_S:.0f} s, or it "
            f"refuses the node {path}: {type(error).__name__} {error}"
        ) from error
    if creator_only and any(acl.id.scheme == "world" for acl in acls):
        _stop(client)
        raise ConfigurationError(
            f"high-availability.zookeeper.client.acl is creator, but everybody may change the node {path} of ZooKeeper "
            f"{quorum}, which is there already: delete it with what is below it, or use another "
            "high-availability.cluster-id"
        )
    return [ZooKeeperCell(client, quorum, f"{path}/{name}", request_s) for name in names]


def _stop(client: Any) -> None:
    with contextlib.suppress(Exception):  # there may be no server to take leave of
        client.stop()
        client.close()


class ZooKeeperCell:
    def __init__(self, client: Any, quorum: str, path: str, request_s: float) -> None:
        self._client = client
        self._path = path
        self._request_s = request_s
        self.where = f"ZooKeeper {quorum}, node {path}"

    def read(self) -> Content | None:
        from kazoo.exceptions import NoNodeError

        # A server may lag behind the others; after this it has seen what was written before.
        deadline = time.monotonic() + self._request_s
        self._client.sync_async(self._path).get(timeout=self._request_s)
        try:
            data, stat = self._client.get_async(self._path).get(timeout=max(0.0, deadline - time.monotonic()))
        except NoNodeError:
            return None
        return Content(data, str(stat.version))

    def put(self, data: bytes, expected: str | None) -> str | None:
        from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

        try:
            if expected is None:
                made = self._client.create_async(self._path, data, include_data=True)
                _, stat = made.get(timeout=self._request_s)
            else:
                stat = self._client.set_async(self._path, data, int(expected)).get(timeout=self._request_s)
            return str(stat.version)  # from 0 on; nobody deletes the node
        except (BadVersionError, NodeExistsError, NoNodeError):
            return None

    def close(self) -> None:
        _stop(self._client)
