"""`PostgresSink`: the builder that users call, and the checks before a job starts."""

from __future__ import annotations

import logging
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.job_client import JobClient
from tidegate.common.time import TimeLike, as_milliseconds
from tidegate.connectors.postgres.append import (
    AppendCommitter,
    AppendWriter,
    OpenNames,
    prepared_below,
    prepared_names,
    roll_back,
)
from tidegate.connectors.postgres.connection import DatabaseUrl, check_installed
from tidegate.connectors.postgres.ledger import prepare_ledger
from tidegate.connectors.postgres.prefix import check_free
from tidegate.connectors.postgres.tables import (
    Table,
    check_rights,
    check_temporary,
    check_types,
    has_indexes,
    look_up,
    may_delete,
    quoted,
    unique_collations,
)
from tidegate.connectors.postgres.upsert import LotOrder, UpsertCommitter, UpsertWriter
from tidegate.contracts.connectors import Committer, Sink, SinkContext, SinkWriter
from tidegate.contracts.driver_side import DriverSide

_log = logging.getLogger(__name__)


class PostgresSink(Sink[Any, Any], DriverSide):
    """Writes rows to a table of PostgreSQL. Make one with `PostgresSink.builder()`. Needs
    `pip install tidegate[postgres]`.

    Appending (the default) is exactly once, with prepared transactions: the database needs
    `max_prepared_transactions` above 0. Upserting, by the primary key, is idempotent, and applied once by a ledger: the
    table `tidegate_ledger` on the user's search_path, made in its first schema when there is none. Rows are visible
    when their checkpoint is complete; without checkpoints, when the job ends well. Records are Rows, tuples, lists or
    dicts; a Row of kind DELETE deletes its key, when upserting."""

    sees_all_committables = True  # what is still needed, and in which order

    def __init__(
        self,
        url: DatabaseUrl,
        table: str,
        columns: tuple[str, ...] | None,
        upserts: bool,
        key: tuple[str, ...] | None,
        prefix: str | None,
        accept_forgotten: bool = False,
    ) -> None:
        self._url = url
        self._table = table
        self._columns = columns
        self._upserts = upserts
        self._key = key
        self._prefix = prefix
        self._accept_forgotten = accept_forgotten
        self._open = OpenNames()
        self._order = LotOrder()

    @staticmethod
    def builder() -> PostgresSinkBuilder:
        return PostgresSinkBuilder()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None, "_order": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_open": OpenNames(), "_order": LotOrder()}

    # ------------------------------------------------------------ on the driver
    @property
    def exclusive_name(self) -> str | None:
        return None if self._prefix is None else f"the transaction prefix '{self._prefix}' (PostgresSink)"

    def check_start(self, num_slots: int) -> None:
        with self._url.connect(wait=False) as connection:
            table = look_up(self._url, connection, self._table, self._columns)
            check_types(self._url, table)
            if self._upserts:
                self._check_upserts(connection, table)
            else:
                self._check_prepared(connection, num_slots)
                check_rights(self._url, connection, table, {"INSERT": table.columns})
                if self._prefix is not None:
                    check_free(connection, self._prefix)

    def _check_upserts(self, connection: Any, table: Table) -> None:
        self._check_key(connection, table)
        key = self._key or table.key
        # A column whose new value is taken (`excluded`), or that conflicts are looked for in, has to be readable too.
        others = [column for column in table.columns if column not in key]
        check_rights(self._url, connection, table, {"INSERT": table.columns, "SELECT": table.columns, "UPDATE": others})
        check_temporary(self._url, connection)
        if not may_delete(connection, table):
            _log.warning(
                "PostgresSink, %s: this user may not delete from table %s; a record of kind DELETE would fail the job "
                "(GRANT DELETE ON %s)",
                self._url,
                self._table,
                table.name,
            )
        prepare_ledger(self._url, connection)

    def _check_key(self, connection: Any, table: Table) -> None:
        columns, key = table.columns, self._key or table.key
        if not key:
            raise ConfigurationError(
                f"PostgresSink: table {self._table} has no primary key to upsert by; name the columns of a unique "
                "index: upsert('column', ...)"
            )
        for column in key:
            if column not in columns:
                raise ConfigurationError(f"PostgresSink: the key column '{column}' is not among {', '.join(columns)}")
        if has_indexes(connection, table) and unique_collations(connection, table, key) is None:
            raise ConfigurationError(
                f"PostgresSink: table {self._table} has no unique index on exactly the columns {', '.join(key)} that "
                "is neither partial nor deferrable, so there is nothing to upsert by: CREATE UNIQUE INDEX ON "
                f"{table.name} ({', '.join(map(quoted, key))})"
            )

    def _check_prepared(self, connection: Any, num_slots: int) -> None:
        ((limit,),) = connection.execute("SELECT current_setting('max_prepared_transactions')::int").fetchall()
        if limit < 2 * num_slots:
            raise ConfigurationError(
                f"PostgresSink: max_prepared_transactions of the database is {limit}; exactly once needs two per "
                f"subtask and more is better: ALTER SYSTEM SET max_prepared_transactions = {max(64, 4 * num_slots)}, "
                "and restart the database; or upsert by a key"
            )

    def job_started(self, client: JobClient) -> None:
        pass

    def job_refused(self) -> None:
        pass

    # ------------------------------------------------------------ on the workers
    def create_writer(self, context: SinkContext) -> SinkWriter[Any, Any]:
        name = self._prefix or f"tidegate:{context.job_id}:{context.operator_id}"
        if self._upserts:
            return UpsertWriter(self._url, self._table, self._columns, self._key, name, context, self._order)
        given = self._prefix is not None
        return AppendWriter(self._url, self._table, self._columns, name, given, context, self._open)

    def create_committer(self) -> Committer[Any]:
        if self._upserts:
            return UpsertCommitter(self._url, self._table, self._columns, self._key, self._order)
        return AppendCommitter(self._url, self._table, self._accept_forgotten, self._open)

    def shown_to_all(self, committable: Any) -> Any:
        """Not the rows of a lot: every subtask gets these when a job recovers."""
        return committable.name if self._upserts else committable

    def discard_leftovers(self, job_id: str) -> None:
        if self._upserts:
            return
        with self._url.connect() as connection:
            if self._prefix is None:
                names = prepared_below(connection, f"tidegate:{job_id}")
            else:
                names = list(prepared_names(connection, self._prefix))
            for name in names:
                roll_back(connection, name)

    def discard_uncommitted(self, job_id: str) -> None:
        self.discard_leftovers(job_id)  # what is prepared holds locks, and no writer has any state

    def __repr__(self) -> str:
        return f"PostgresSink({self._url}, {self._table}, {'upsert' if self._upserts else 'append'})"


class PostgresSinkBuilder:
    """A url and a table are needed."""

    def __init__(self) -> None:
        check_installed("PostgresSink")
        self._url: DatabaseUrl | None = None
        self._outage_timeout: int | None = None
        self._table: str | None = None
        self._columns: tuple[str, ...] | None = None
        self._upserts = False
        self._key: tuple[str, ...] | None = None
        self._prefix: str | None = None
        self._accept_forgotten = False

    def set_url(self, url: str, user: str | None = None, password: str | None = None) -> PostgresSinkBuilder:
        """`postgresql://user@host:5432/database`. A password may also come from PGPASSWORD or a password file, on all
        workers."""
        self._url = DatabaseUrl.checked("PostgresSink", url, user, password)
        return self

    def set_outage_timeout(self, timeout: TimeLike) -> PostgresSinkBuilder:
        """How long each attempt of the job waits for a database that is away: a Duration, or milliseconds. 30 s unless
        this is called. When it is over the attempt fails, and the restart strategy decides."""
        self._outage_timeout = as_milliseconds(timeout, "set_outage_timeout")
        return self

    def set_table(self, table: str) -> PostgresSinkBuilder:
        """`table`, or `schema.table`."""
        if not isinstance(table, str) or not table.strip():
            raise ConfigurationError(f"set_table: takes the name of a table, got {table!r}")
        self._table = table
        return self

    def set_columns(self, *columns: str) -> PostgresSinkBuilder:
        """The columns that the records have, in their order. All of the table unless this is called."""
        self._columns = _names("set_columns", columns)
        return self

    def append(self) -> PostgresSinkBuilder:
        """The default."""
        self._upserts, self._key = False, None
        return self

    def upsert(self, *key_columns: str) -> PostgresSinkBuilder:
        """Insert or update by these columns, which have a unique index; by the primary key when none are named."""
        self._upserts = True
        self._key = _names("upsert", key_columns) if key_columns else None
        return self

    def set_transaction_prefix(self, prefix: str) -> PostgresSinkBuilder:
        """Names of prepared transactions begin with it. Otherwise it is made from the id of the job and the sink's uid;
        then only a job with the same id finds what an earlier run has left prepared."""
        if not isinstance(prefix, str) or not prefix.strip() or len(prefix.encode()) > 100:
            raise ConfigurationError(f"set_transaction_prefix: takes a text of at most 100 bytes, got {prefix!r}")
        self._prefix = prefix
        return self

    def accept_forgotten_transactions(self) -> PostgresSinkBuilder:
        """Goes on from a snapshot whose prepared transactions are so old that the database cannot tell any more whether
        they were committed, as if they were. Otherwise that is an error. A warning names each of them."""
        self._accept_forgotten = True
        return self

    def build(self) -> PostgresSink:
        if self._url is None or self._table is None:
            raise ConfigurationError("PostgresSink: set_url and set_table are needed")
        url = self._url.waiting(self._outage_timeout)
        return PostgresSink(
            url, self._table, self._columns, self._upserts, self._key, self._prefix, self._accept_forgotten
        )


def _names(where: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise ConfigurationError(f"{where}: takes names of columns, each once, got {names!r}")
    return names
