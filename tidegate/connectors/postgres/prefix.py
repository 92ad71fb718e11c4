"""Whose is a prefix of prepared transactions? Two jobs with one would roll back each other's, so the second is refused.

Every writer holds an advisory lock of the database, shared, with two numbers: one stands for the prefix, one for the
job. So the writers of a job, those of an attempt that has just died among them, do not stand in each other's way, and
everybody sees in `pg_locks` whether another job holds the prefix. The lock ends with the session.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from tidegate.common.errors import ConfigurationError

_DYING_SECONDS = 10.0  # a job that was killed holds its prefix until the server has noticed


def take_prefix(connection: Any, prefix: str, job_id: str) -> None:
    """For as long as the session of this connection (which commits by itself) lasts. Raises when another job has it."""
    connection.execute("SELECT pg_advisory_lock_shared(%s, %s)", [_number(prefix), _number(job_id)])
    others = _holders(connection, prefix, job_id)
    if others:
        raise _taken(prefix, others)


def check_free(connection: Any, prefix: str) -> None:
    """Before a job starts, on a connection that commits by itself."""
    deadline = time.monotonic() + _DYING_SECONDS
    while others := _holders(connection, prefix, None):
        if time.monotonic() > deadline:
            raise _taken(prefix, others)
        time.sleep(0.2)


def _holders(connection: Any, prefix: str, job_id: str | None) -> list[int]:
    """The sessions, by their process, of jobs that hold the prefix: of all but this one."""
    found = connection.execute(
        "SELECT pid, objid::int8 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND "
        "database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid::int8 = %s",
        [_number(prefix) & 0xFFFFFFFF],
    ).fetchall()
    mine = None if job_id is None else _number(job_id) & 0xFFFFFFFF
    return [pid for pid, job in found if job != mine]


def _number(text: str) -> int:
    """The two numbers of a lock have 32 bits and a sign."""
    return int.from_bytes(hashlib.sha256(f"tidegate {text}".encode()).digest()[:4], "big", signed=True)


def _taken(prefix: str, pids: list[int]) -> ConfigurationError:
    return ConfigurationError(
        f"PostgresSink: the transaction prefix '{prefix}' is in use by another job, which is running (sessions "
        f"{', '.join(map(str, pids[:5]))} of the database). Two jobs with one prefix would roll back each other's "
        "transactions: give each its own (set_transaction_prefix), or end the other one; if it is dead and its worker "
        "was cut off: SELECT pg_terminate_backend(session)"
    )
