"""A connection in replication mode: the changes of a slot, and how far they are needed no more.

psycopg has no replication mode, but the library below it (libpq) has, and psycopg hands it out. Nothing here blocks:
what has arrived is taken, and what is sent is short. The mailbox makes all calls but for `has_more`. A thread beside it
gives the server a sign of life, also while a task that is held up takes nothing for longer than `wal_sender_timeout`;
libpq wants to be used by one thread at a time, so both hold a lock.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.postgres.connection import DatabaseUnavailableError, DatabaseUrl, PostgresError

_STATUS_SECONDS = 1.0
_EPOCH = 946_684_800  # PostgreSQL counts from the year 2000


START_ANEW = (
    "Otherwise start the job without a snapshot: it reads all rows as they are now first, into a target that was "
    "emptied or may get a row again"
)


class SlotLostError(PostgresError):
    """The slot does not hold the changes that come next."""


class SlotInUseError(PostgresError):
    """Another connection reads the slot."""


@dataclass(frozen=True)
class ServerPosition:
    """The server has sent all that was committed before this position: behind what it has sent there was nothing for
    us. It moves on in a database that is busy elsewhere."""

    lsn: int


def _connected(url: DatabaseUrl) -> Any:
    from psycopg import OperationalError, pq

    connection = pq.PGconn.connect(url.for_replication())
    if connection.status != pq.ConnStatus.OK:
        text = connection.get_error_message()
        connection.finish()
        raise url.refused("connecting", OperationalError(text))
    return connection


def check_replication(url: DatabaseUrl) -> None:
    """Raises when this user may not replicate, or nobody can. Who may is more than an attribute of the role: services
    that run databases have ways of their own."""
    _connected(url).finish()


class ReplicationStream:
    """From `start_lsn` on: the server leaves out transactions that were committed before it, and those that the slot
    knows to be confirmed. One in the middle of which a reader stopped comes again, whole."""

    def __init__(self, url: DatabaseUrl, slot: str, publication: str, start_lsn: int) -> None:
        from psycopg import OperationalError, pq

        self._url = url
        self._confirmed = start_lsn
        self._lock = threading.Lock()
        self._due = threading.Event()  # a status is wanted now
        self._thread: threading.Thread | None = None
        self._ok = pq.ExecStatus.COPY_BOTH
        self._connection: Any = _connected(url)
        names = publication.replace('"', '""')
        result = self._connection.exec_(
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(start_lsn)} '
            f"(proto_version '1', publication_names '\"{names}\"')".encode()
        )
        if result.status != self._ok:
            text = self._connection.get_error_message()
            lost = self._connection.status != pq.ConnStatus.OK  # or the server was stopped: that may pass
            self.close()
            if "is active" in text:
                raise SlotInUseError(
                    f"{url.connector}, {url}: the replication slot {slot} is read by somebody else; every job needs "
                    "its own (set_slot)"
                )
            if "does not exist" in text and slot in text:
                raise SlotLostError(
                    f"{url.connector}, {url}: the replication slot {slot} was dropped, and with it the changes that "
                    f"this job has not read. {START_ANEW}"
                )
            raise url.refused(f"reading slot {slot}", (OperationalError if lost else Exception)(text))

    def take(self, most: int) -> list[bytes | ServerPosition]:
        """Messages of pgoutput that have arrived, and between them positions. Raises `PostgresError` when the
        connection is lost. From the first call on, the server is told that somebody is here."""
        from psycopg import OperationalError

        if self._thread is None:
            self._due.set()
            self._thread = threading.Thread(target=self._keep_alive, name="tidegate-postgres-alive", daemon=True)
            self._thread.start()
        found: list[bytes | ServerPosition] = []
        try:
            with self._lock:
                self._connection.consume_input()
                while len(found) < most:
                    length, data = self._connection.get_copy_data(1)
                    if length == 0:
                        break
                    if length < 0:
                        raise self._ended()
                    message = bytes(data)
                    if message[:1] == b"w":
                        found.append(message[25:])
                    elif message[:1] == b"k":
                        found.append(ServerPosition(struct.unpack_from("!q", message, 1)[0]))
                        if message[17]:  # it asks for a sign of life
                            self._due.set()
        except OperationalError as error:
            raise self._url.refused("reading changes", error) from None
        return found

    def _ended(self) -> PostgresError:
        """The server has said so: with an error, or in good order, as one does that is stopped."""
        from psycopg import pq
        from psycopg.errors import error_from_result

        result = self._connection.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return self._url.refused("reading changes", error_from_result(result))
        return DatabaseUnavailableError(f"{self._url.connector}, {self._url}: the database has ended the replication")

    def has_more(self, seconds: float) -> bool:
        """Waits until something has arrived, or something is wrong with the connection, which `take` then notices. On
        any thread."""
        poll = select.poll()
        poll.register(self._connection.socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def confirm(self, lsn: int) -> None:
        """Changes up to here are in a complete checkpoint: the database may forget them."""
        if lsn > self._confirmed:
            self._confirmed = lsn
            self._due.set()

    def _keep_alive(self) -> None:
        from psycopg import OperationalError

        while True:
            self._due.wait(_STATUS_SECONDS)
            self._due.clear()
            with self._lock:
                if self._connection is None:
                    return
                try:
                    self._send_status()
                except OperationalError:
                    return  # `take` will notice as well, and says so

    def _send_status(self) -> None:
        now = int((time.time() - _EPOCH) * 1_000_000)
        lsn = self._confirmed
        self._connection.put_copy_data(b"r" + struct.pack("!qqqqb", lsn, lsn, lsn, now, 0))
        self._connection.flush()

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.finish()
        self._due.set()
        if self._thread is not None:
            self._thread.join()


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
