"""A connection in replication mode: the changes of a slot, and how far they are needed no more.

psycopg has no replication mode, but the library below it (libpq) has, and psycopg hands it out. Nothing here blocks:
what has arrived is taken, and what is sent is short. All calls come from one thread, but for
`has_more`.
"""

from __future__ import annotations

import select
import struct
import time
from typing import Any

from tidegate.connectors.postgres.connection import DatabaseUrl, PostgresError

_STATUS_SECONDS = 5.0
_EPOCH = 946_684_800  # PostgreSQL counts from the year 2000


class SlotInUseError(PostgresError):
    """Another connection reads the slot."""


class ReplicationStream:
    """From `start_lsn` on: the server leaves out transactions that were committed before it, and those that the slot
    knows to be confirmed. One in the middle of which a reader stopped comes again, whole."""

    def __init__(self, url: DatabaseUrl, slot: str, publication: str, start_lsn: int) -> None:
        from psycopg import pq

        self._url = url
        self._confirmed = start_lsn
        self._status_at = 0.0
        self._ok = pq.ExecStatus.COPY_BOTH
        self._connection: Any = pq.PGconn.connect(url.for_replication())
        if self._connection.status != pq.ConnStatus.OK:
            text = self._connection.get_error_message()
            self.close()
            raise url.refused("connecting", Exception(text))
        names = publication.replace('"', '""')
        result = self._connection.exec_(
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(start_lsn)} '
            f"(proto_version '1', publication_names '\"{names}\"')".encode()
        )
        if result.status != self._ok:
            text = self._connection.get_error_message()
            self.close()
            if "is active" in text:
                raise SlotInUseError(
                    f"{url.connector}, {url}: the replication slot {slot} is read by somebody else; every job needs "
                    "its own (set_slot)"
                )
            raise url.refused(f"reading slot {slot}", Exception(text))

    def take(self, most: int) -> list[bytes]:
        """Messages of pgoutput that have arrived. Raises `PostgresError` when the connection is lost."""
        from psycopg import OperationalError

        found: list[bytes] = []
        try:
            self._connection.consume_input()
            while len(found) < most:
                length, data = self._connection.get_copy_data(1)
                if length == 0:
                    break
                if length < 0:
                    raise PostgresError(f"{self._url.connector}, {self._url}: the database has ended the replication")
                message = bytes(data)
                if message[:1] == b"w":
                    found.append(message[25:])
                elif message[:1] == b"k" and message[17]:  # the server asks for a sign of life
                    self._status_at = 0.0
            if time.monotonic() >= self._status_at:
                self._send_status()
        except OperationalError as error:
            raise self._url.refused("reading changes", error) from None
        return found

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
            self._status_at = 0.0

    def _send_status(self) -> None:
        self._status_at = time.monotonic() + _STATUS_SECONDS
        now = int((time.time() - _EPOCH) * 1_000_000)
        lsn = self._confirmed
        self._connection.put_copy_data(b"r" + struct.pack("!qqqqb", lsn, lsn, lsn, now, 0))
        self._connection.flush()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.finish()


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
