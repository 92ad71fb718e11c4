"""Rows appended exactly once: binary COPY, prepared at the barrier, committed when the checkpoint is complete.

A prepared transaction belongs to no session: it survives the worker, and the database's own crash, until somebody says
COMMIT PREPARED. A commit that is repeated finds nothing prepared under its name; then the transaction's number tells
what became of it (`pg_xact_status`): committed before, or rolled back by somebody, which is an error. The database
forgets the ends of old transactions; rows that are still as such a one wrote them tell that it was committed.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.postgres.connection import DatabaseUrl, PostgresError
from tidegate.connectors.postgres.prefix import take_prefix
from tidegate.connectors.postgres.tables import Table, copy_rows, look_up, quoted, quoted_table, rows_of
from tidegate.contracts.connectors import CommittableLostError, Committer, SinkContext, SinkWriter

_LOCK_SECONDS = 30.0  # that a COPY waits for another transaction, unless the url sets lock_timeout itself
_WAITING = 8  # transactions of one writer that may wait for their commit before it takes no more records
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedTransaction:
    """A committable: its name in pg_prepared_xacts, and its number."""

    name: str
    number: int


class OpenNames:
    """Names that were prepared in this process and not committed yet: a committer tells the writer beside it. Only
    single operations on the set, from both threads."""

    def __init__(self) -> None:
        self.names: set[str] = set()


class AppendWriter(SinkWriter[Any, PreparedTransaction]):
    """One connection; a transaction with one COPY from barrier to barrier."""

    def __init__(
        self,
        url: DatabaseUrl,
        table: str,
        columns: tuple[str, ...] | None,
        prefix: str,
        prefix_is_given: bool,
        context: SinkContext,
        opened: OpenNames,
    ) -> None:
        self._url = url
        self._open = opened
        self._connection = url.connect()
        try:
            self._begin(table, columns, prefix, prefix_is_given, context)
        except BaseException:
            self._connection.close()  # and with it the prefix is free
            raise
        self._connection.autocommit = False
        self._copying: Any = None  # the context manager of the COPY that is under way
        self._copy: Any = None
        self._waiting: list[str] = []

    def _begin(
        self, table: str, columns: tuple[str, ...] | None, prefix: str, prefix_is_given: bool, context: SinkContext
    ) -> None:
        import psycopg

        self._table: Table = look_up(self._url, self._connection, table, columns)
        self._stem = f"{prefix}:{context.subtask}:"
        try:
            if prefix_is_given:
                take_prefix(self._connection, prefix, context.job_id)
            if not context.of_one_attempt:
                self._roll_back_leftovers(prefix, context)
            # While it waits the task stands still: a wait that cannot end would be told by nobody.
            self._connection.execute(
                "SELECT set_config('lock_timeout', %s, false) WHERE current_setting('lock_timeout') = '0'",
                [f"{_LOCK_SECONDS * 1000:.0f}ms"],
            )
        except psycopg.Error as error:
            raise self._url.refused("rolling back what an earlier attempt has left", error) from None

    def _roll_back_leftovers(self, prefix: str, context: SinkContext) -> None:
        """Prepared by an earlier attempt, and in no checkpoint: they hold locks and keep the database from cleaning up.
        Those of subtasks that no longer exist are shared out."""
        needed = {t.name for t in context.restored_committables} | {t.name for t in context.committables_of_all}
        for name, owner in prepared_names(self._connection, prefix).items():
            if owner % context.parallelism == context.subtask and name not in needed:
                roll_back(self._connection, name)
                _log.info("rolled back prepared transaction %s, left over from an earlier attempt", name)

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        import psycopg

        if not values:
            return
        rows = rows_of(self._url.connector, self._table, values)
        try:
            if self._copy is None:
                columns = ", ".join(map(quoted, self._table.columns))
                statement = f"COPY {self._table.name} ({columns}) FROM STDIN (FORMAT BINARY)"
                self._copying = self._connection.cursor().copy(statement)
                self._copy = self._copying.__enter__()
                self._copy.set_types(self._table.types)
            copy_rows(self._copy, self._url.connector, rows)
        except psycopg.Error as error:
            raise self._refused(error) from None

    def flush(self, end_of_input: bool) -> None:
        import psycopg

        copying, self._copying, self._copy = self._copying, None, None
        if copying is None:
            return
        try:
            copying.__exit__(None, None, None)
        except psycopg.Error as error:
            raise self._refused(error) from None

    def _refused(self, error: Any) -> PostgresError:
        """Of a COPY. A key of a unique index that repeats is either there already, or in a transaction of this sink
        that is prepared: that one can only be committed when the checkpoint is complete, which waits for this COPY."""
        import psycopg

        remedy = (
            f"If a unique key of {self._table.name} can come twice in the stream, upsert by it (upsert()); otherwise "
        )
        hint = ""
        if isinstance(error, psycopg.errors.UniqueViolation):
            hint = f". {remedy}the row was in the table before, or is from an earlier run of this job"
        elif isinstance(error, psycopg.errors.LockNotAvailable):
            where = " ".join((error.diag.context or "").split())
            hint = (
                f" ({where}): another transaction, which may be a prepared one of this sink, holds the same key or a "
                f"lock on the table. {remedy}pg_locks and pg_prepared_xacts tell who. A longer wait: "
                "options='-c lock_timeout=...' in the url"
            )
        refused = self._url.refused(f"writing to {self._table.name}", error)
        return type(refused)(f"{refused}{hint}")  # whether it may pass is said by the type

    def prepare_commit(self) -> list[PreparedTransaction]:
        import psycopg

        if self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            return []  # nothing was written since the last barrier
        name = f"{self._stem}{uuid.uuid4().hex}"
        try:
            ((number,),) = self._connection.execute("SELECT pg_current_xact_id()::text::int8").fetchall()
            self._connection.execute(f"PREPARE TRANSACTION '{_escaped(name)}'")
        except psycopg.Error as error:
            hint = ""
            if isinstance(error, psycopg.errors.ConfigurationLimitExceeded | psycopg.errors.OutOfMemory):
                hint = " (raise max_prepared_transactions and restart the database)"
            raise self._url.refused(f"preparing a transaction{hint}", error) from None
        # PREPARE has ended the transaction for the server; psycopg sees that too, and begins the next one by itself.
        self._waiting.append(name)
        self._open.names.add(name)
        return [PreparedTransaction(name, number)]

    @property
    def available(self) -> bool:
        if self._waiting:
            self._waiting = [name for name in self._waiting if name in self._open.names]
        return len(self._waiting) < _WAITING

    def close(self) -> None:
        copying, self._copying, self._copy = self._copying, None, None
        self._connection.close()
        if copying is not None:
            # It raises, since the connection is closed; left to the garbage collector it would do so on standard error.
            with contextlib.suppress(Exception):
                copying.__exit__(None, None, None)


class PreparedTransactionLostError(PostgresError, CommittableLostError):
    """Somebody has rolled back what a complete checkpoint holds."""


class AppendCommitter(Committer[PreparedTransaction]):
    def __init__(self, url: DatabaseUrl, table: str, accept_forgotten: bool, opened: OpenNames) -> None:
        self._url = url
        self._table = table
        self._accept_forgotten = accept_forgotten
        self._open = opened
        self._connection: Any = None

    def commit(self, committables: list[PreparedTransaction]) -> list[PreparedTransaction]:
        with self._url.told_when_slow("committing a prepared transaction"):
            return self._commit(committables)

    def _commit(self, committables: list[PreparedTransaction]) -> list[PreparedTransaction]:
        import psycopg

        try:
            if self._connection is None:
                self._connection = self._url.connect()
            for place, transaction in enumerate(committables):
                try:
                    self._connection.execute(f"COMMIT PREPARED '{_escaped(transaction.name)}'")
                except psycopg.errors.UndefinedObject:
                    self._check_committed(transaction)
                except psycopg.errors.ObjectInUse:  # a session that is being ended still holds it
                    return committables[place:]
                self._open.names.discard(transaction.name)
        except psycopg.Error as error:
            self.close()
            raise self._url.refused("committing a prepared transaction", error) from None
        return []

    def _check_committed(self, transaction: PreparedTransaction) -> None:
        import psycopg

        try:
            ((status,),) = self._connection.execute(
                "SELECT pg_xact_status(%s::text::xid8)", [str(transaction.number)]
            ).fetchall()
        except psycopg.errors.InvalidParameterValue:  # "is in the future"
            raise PreparedTransactionLostError(
                f"{self._url.connector}, {self._url}: the prepared transaction {transaction.name}, which belongs to "
                "the checkpoint that this job started from, is one that this database has never had: it was set back "
                "to an older backup, or is another one. What was committed since is gone from the table: start from a "
                "snapshot that goes with the backup"
            ) from None
        if status == "aborted":
            raise PreparedTransactionLostError(
                f"{self._url.connector}, {self._url}: the prepared transaction {transaction.name}, which belongs to "
                "the checkpoint that this job started from, was rolled back by somebody. Its rows are not in the "
                "table: start from another snapshot"
            )
        if status is None and not self._has_rows_of(transaction):
            self._check_forgotten(transaction)

    def _has_rows_of(self, transaction: PreparedTransaction) -> bool:
        """Whether rows are in the table as this transaction, long ago, has written them: then it was committed. It
        looks at all rows. Numbers in rows have 32 bits: one of another transaction, 4 billion before or after, could be
        taken for it, but hardly in the rows of this table."""
        import psycopg

        try:
            ((found,),) = self._connection.execute(
                f"SELECT EXISTS (SELECT 1 FROM {quoted_table(self._table)} WHERE xmin = %s::text::xid)",
                [str(transaction.number % 2**32)],
            ).fetchall()
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedColumn):  # of a view, say
            return False
        return bool(found)

    def _check_forgotten(self, transaction: PreparedTransaction) -> None:
        what = f"transaction {transaction.name} (number {transaction.number})"
        if self._accept_forgotten:
            _log.warning(
                "%s, %s: %s is taken for committed, as accept_forgotten_transactions allows",
                self._url.connector,
                self._url,
                what,
            )
            return
        raise PreparedTransactionLostError(
            f"{self._url.connector}, {self._url}: nobody can tell any more whether {what}, which belongs to the "
            "checkpoint that this job started from, was committed or rolled back: it is so old that the database has "
            f"forgotten its end, and no row that can be seen in {self._table} is still as it wrote it. Look whether "
            "the rows of that checkpoint came into the table (they may have been changed or deleted since). If they "
            "did, or may be missing: accept_forgotten_transactions() of the sink's builder. Otherwise start from "
            "another snapshot"
        )

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def prepared_names(connection: Any, prefix: str) -> dict[str, int]:
    """What is prepared in this database under exactly this prefix, with the subtask that did: `a` is not the owner of
    what belongs to `a:b`."""
    form = re.compile(re.escape(prefix) + r":(\d+):[0-9a-f]{32}")
    found = map(form.fullmatch, prepared_below(connection, prefix))
    return {match[0]: int(match[1]) for match in found if match is not None}


def prepared_below(connection: Any, prefix: str) -> list[str]:
    """What is prepared in this database under the prefix, and under those that go on from it with a colon."""
    found = connection.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s) ORDER BY gid",
        [f"{prefix}:"],
    ).fetchall()
    return [name for (name,) in found]


def roll_back(connection: Any, name: str) -> None:
    connection.execute(f"ROLLBACK PREPARED '{_escaped(name)}'")


def _escaped(text: str) -> str:
    return text.replace("'", "''")
