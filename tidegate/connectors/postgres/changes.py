"""`PostgresChangeSource`: the rows of a table as they are, then every change to it, without a gap or a double.

The order of things, which makes both exact:

1. A replication slot is made when the job is submitted. From then on the database keeps all changes for it.
2. The rows are read in pages by primary key, in one transaction that sees one state of the table, and given on as
   inserts. That state is written down as PostgreSQL describes it: the transactions that it contains
   (`pg_current_snapshot`).
3. Then the changes are read from the slot. One whose transaction is contained in the state that its row was read in is
   left out; every other one is given on.

A recovery in the middle of 2 goes on behind the last key, with a new transaction, so a later part of the keys may have
been read in a later state; the offset holds the states with the keys up to which they hold. A recovery in 3 goes on
with the transaction, and the change in it, that comes next. The slot is told to forget only what a complete checkpoint
holds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import TimeLike, as_milliseconds
from tidegate.common.types import Row, RowKind, make_row
from tidegate.connectors.idle_watch import LOOK_SECONDS, IdleWatch
from tidegate.connectors.postgres import pgoutput
from tidegate.connectors.postgres.connection import DatabaseUrl, PostgresError, check_installed
from tidegate.connectors.postgres.publication import PublishedTable, check_publication, make_publication
from tidegate.connectors.postgres.replication import (
    START_ANEW,
    ReplicationStream,
    ServerPosition,
    SlotInUseError,
    SlotLostError,
    check_replication,
    lsn_number,
    lsn_text,
)
from tidegate.connectors.postgres.tables import Table, base_types, check_rights, literal, look_up, quoted
from tidegate.contracts.connectors import Boundedness, Source, SourceContext, SourceSplit, SplitReader

_PAGE = 2000
_TAKEN = 200  # messages that are taken from the connection together
_AT_ONCE = 5000  # messages that may be gone through for one row before the task has its turn again
_WOKEN_BEFORE_MS = 1000.0  # the watch wakes the task when something comes: this is only for the worst case
_SLOT_SECONDS = 60.0  # for the database to notice that the last reader of the slot is dead
_MAKING_SECONDS = 60.0
_ORDERED = {"int2", "int4", "int8", "text", "varchar", "bpchar", "uuid", "date", "timestamp", "timestamptz"}


@dataclass(frozen=True)
class TableState:
    """Which transactions a read has seen: all below `low`, and those below `high` that are not in `running`."""

    low: int
    high: int
    running: frozenset[int]

    @staticmethod
    def parse(text: str) -> TableState:
        low, high, running = text.split(":")
        return TableState(int(low), int(high), frozenset(int(xid) for xid in running.split(",") if xid))

    def contains(self, xid32: int) -> bool:
        """Replication gives the lower half of a transaction's number; the upper is that which brings it nearest."""
        xid = (self.high & ~0xFFFFFFFF) | xid32
        xid -= (xid - self.high > 1 << 31) << 32
        xid += (self.high - xid > 1 << 31) << 32
        return xid < self.low or (xid < self.high and xid not in self.running)


@dataclass(frozen=True)
class ChangeOffset:
    """Behind the last row or change that was given on."""

    lsn: int  # the end of the last transaction that was read whole, or where the server was found to be behind it
    changes: int = 0  # of the transaction after it
    states: tuple[tuple[Any, TableState], ...] = ()  # (key up to which it holds, state), in the order of the keys
    last_key: Any = None
    reading_rows: bool = True


@dataclass(frozen=True)
class ChangeSplit(SourceSplit):
    start: ChangeOffset


class PostgresChangeSource(Source[Row]):
    """Unbounded. Rows with the columns' names and a kind: INSERT, UPDATE_BEFORE (when the table has REPLICA IDENTITY
    FULL, or the key has changed), UPDATE_AFTER, DELETE (only the key, without REPLICA IDENTITY FULL). One subtask reads
    it. Make one with `PostgresChangeSource.builder()`. Needs `wal_level = logical`."""

    gives_timestamps = False

    def __init__(self, url: DatabaseUrl, table: str, slot: str, publication: str, rows_first: bool) -> None:
        self._url = url
        self._table = table
        self._slot = slot
        self._publication = publication
        self._rows_first = rows_first

    @staticmethod
    def builder() -> PostgresChangeSourceBuilder:
        return PostgresChangeSourceBuilder()

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        import psycopg

        with self._url.connect(wait=False) as connection:
            try:
                ((level,),) = connection.execute("SHOW wal_level").fetchall()
                if level != "logical":
                    raise ConfigurationError(
                        f"PostgresChangeSource: wal_level of the database is {level}; changes need: ALTER SYSTEM SET "
                        "wal_level = logical, and a restart of the database"
                    )
                table = self._checked_table(connection)
                check_replication(self._url)
                make_publication(connection, self._publication, table)
                check_publication(connection, self._publication, table)
                start = self._slot_start(connection)
            except psycopg.Error as error:
                raise self._url.refused(f"making slot {self._slot}", error) from None
        return [ChangeSplit("changes", ChangeOffset(start, reading_rows=self._rows_first))]

    def _checked_table(self, connection: Any) -> Table:
        table = look_up(self._url, connection, self._table, None)
        check_rights(self._url, connection, table, {"SELECT": table.columns})
        if len(table.key) != 1:
            raise ConfigurationError(
                f"PostgresChangeSource: table {self._table} has to have a primary key of one column, it has "
                f"{len(table.key) or 'none'}"
            )
        ((kind,),) = connection.execute(
            "SELECT typname FROM pg_attribute JOIN pg_type t ON t.oid = atttypid "
            "WHERE attrelid = %s::regclass AND attname = %s",
            [table.name, table.key[0]],
        ).fetchall()
        if kind not in _ORDERED:
            raise ConfigurationError(f"PostgresChangeSource: a primary key of type {kind} is not supported")
        return table

    def _slot_start(self, connection: Any) -> int:
        """The slot is made unless it is there: from a savepoint a job goes on with its own. After the publication:
        the server looks that up as it was when a change was made."""
        slot = connection.execute(
            "SELECT plugin, confirmed_flush_lsn::text, database::text, current_database()::text "
            "FROM pg_replication_slots WHERE slot_name = %s",
            [self._slot],
        ).fetchall()
        if not slot:
            return self._made_slot(connection)
        plugin, confirmed, database, this = slot[0]
        if plugin != "pgoutput":
            raise ConfigurationError(f"PostgresChangeSource: the slot {self._slot} is of another kind: {plugin}")
        if database != this:
            raise ConfigurationError(
                f"PostgresChangeSource: the slot {self._slot} is one of database {database}, and a name serves "
                f"once per server: give this job, which reads from {this}, another one (set_slot)"
            )
        return lsn_number(confirmed)

    def _made_slot(self, connection: Any) -> int:
        """The database waits for the end of all transactions that have begun before; this does not wait for ever."""
        import psycopg

        try:
            connection.execute(f"SET statement_timeout = {_MAKING_SECONDS * 1000:.0f}")
            ((lsn,),) = connection.execute(
                "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", [self._slot]
            ).fetchall()
        except psycopg.errors.QueryCanceled:
            raise PostgresError(
                f"PostgresChangeSource, {self._url}: the replication slot {self._slot} could not be made within "
                f"{_MAKING_SECONDS:g} s: the database waits for transactions that do not end. Look into "
                "pg_prepared_xacts, and for old ones in pg_stat_activity (xact_start)"
            ) from None
        return lsn_number(lsn)

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Row]:
        if not isinstance(split, ChangeSplit):
            raise TypeError(f"PostgresChangeSource cannot read {split!r}")
        return ChangeReader(self._url, self._table, self._slot, self._publication, offset or split.start, context)

    def __repr__(self) -> str:
        return f"PostgresChangeSource({self._url}, {self._table})"


class ChangeReader(SplitReader[Row]):
    def __init__(
        self,
        url: DatabaseUrl,
        table: str,
        slot: str,
        publication: str,
        offset: ChangeOffset,
        context: SourceContext,
    ) -> None:
        self._url, self._slot, self._publication = url, slot, publication
        self._clock = context.clock
        self._watch: IdleWatch | None = None
        if context.wake is not None:
            self._watch = IdleWatch(self._look, context.wake, "tidegate-postgres-watch")
        self._offset = offset
        self._connection = url.connect(autocommit=False)
        self._table = look_up(url, self._connection, table, None)
        self._published = PublishedTable.of(self._connection, self._table)
        self._connection.rollback()  # a transaction that stays open would keep the database from cleaning up
        self._key = self._table.key[0]
        kind = self._table.type_names[self._table.columns.index(self._key)]
        self._is_text = kind.split("(")[0] in {"text", "character varying", "character"}
        self._state: TableState | None = None
        self._stream: ReplicationStream | None = None
        # None: of another table of the same publication
        self._relations: dict[int, tuple[pgoutput.Relation, list[Callable[[bytes], Any]]] | None] = {}
        self._waiting: deque[bytes | ServerPosition] = deque()
        self._give_up_at: float | None = None  # from the first time that the slot was found in use
        self._xid = 0
        self._within = False  # a transaction of which not all was read
        self._seen = 0  # changes of the transaction that is being read

    def poll(self, max_records: int) -> list[Row]:
        return self._next_rows(max_records) if self._offset.reading_rows else self._next_changes(max_records)

    # ------------------------------------------------------------ the rows
    def _next_rows(self, most: int) -> list[Row]:
        import psycopg

        key = literal(quoted(self._key)) + (' COLLATE "C"' if self._is_text else "")
        try:
            if self._state is None:
                self._connection.rollback()
                self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                ((text,),) = self._connection.execute("SELECT pg_current_snapshot()::text").fetchall()
                self._state = TableState.parse(text)
            after = "" if self._offset.last_key is None else f"WHERE {key} > %s"
            cursor = self._connection.execute(
                f"SELECT * FROM {literal(self._table.name)} {after} ORDER BY {key} LIMIT {min(most, _PAGE)}",
                [] if self._offset.last_key is None else [self._offset.last_key],
            )
            names = tuple(column.name for column in cursor.description)
            found = cursor.fetchall()
        except psycopg.Error as error:
            raise self._url.refused(f"reading {self._table.name}", error) from None
        state = self._state
        if not found:
            self._connection.rollback()
            self._state = None
            states = (*self._offset.states, (None, state))  # for all keys behind the last one too
            self._offset = replace(self._offset, states=states, reading_rows=False)
            return []
        last = found[-1][names.index(self._key)]
        earlier = tuple((upto, seen) for upto, seen in self._offset.states if seen != state)
        self._offset = replace(self._offset, states=(*earlier, (last, state)), last_key=last)
        return [make_row(names, list(values)) for values in found]

    def _seen_in(self, key: Any) -> TableState | None:
        for upto, state in self._offset.states:
            if upto is None or self._order(key) <= self._order(upto):
                return state
        return None

    def _order(self, key: Any) -> Any:
        return key.encode() if self._is_text else key

    # ------------------------------------------------------------ the changes
    def _next_changes(self, most: int) -> list[Row]:
        if self._stream is None and not self._open_stream():
            return []
        # What was given on before is left out at once: a reader without rows is asked again only after a pause.
        left = _AT_ONCE
        while left > 0 and self._fill(most):
            left -= len(self._waiting)
            if rows := self._rows_of_waiting(most):
                return rows
        return []

    def _fill(self, most: int) -> bool:
        """Whether messages wait. Otherwise somebody looks out for them."""
        assert self._stream is not None
        if not self._waiting:
            if self._watch is not None:
                self._watch.take()  # nothing but that there is something
            self._waiting.extend(self._stream.take(max(most, _TAKEN)))
            if not self._waiting and self._watch is not None and not self._watch.begun:
                self._watch.begin()
        return bool(self._waiting)

    def _rows_of_waiting(self, most: int) -> list[Row]:
        rows: list[Row] = []
        while self._waiting and len(rows) < most:
            data = self._waiting.popleft()
            if isinstance(data, ServerPosition):
                self._move_to(data.lsn)
                continue
            message = pgoutput.parse(data)
            match message:
                case pgoutput.Begin():
                    self._xid, self._seen, self._within = message.xid, 0, True
                case pgoutput.Commit():
                    self._within = False
                    self._offset = replace(self._offset, lsn=message.end_lsn, changes=0)
                case pgoutput.Relation():
                    self._relations[message.number] = self._described(message)
                case pgoutput.Change():
                    if self._is_new():
                        rows += self._rows_of(message)
                case pgoutput.Truncate() if any(self._relations[number] for number in message.relations):
                    raise PostgresError(
                        f"PostgresChangeSource: table {self._table.name} was truncated, which no row can stand for; "
                        "start the job anew"
                    )
                case _:
                    pass
        return rows

    def _open_stream(self) -> bool:
        """False: the connection of a worker that was killed still holds the slot; the database will notice."""
        try:
            self._stream = ReplicationStream(self._url, self._slot, self._publication, self._offset.lsn)
        except SlotInUseError:
            now = time.monotonic()
            self._give_up_at = self._give_up_at or now + _SLOT_SECONDS
            if now > self._give_up_at:
                raise
            return False
        self._check_slot()
        return True

    def _check_slot(self) -> None:
        """Asked for what it was told to forget, the server begins behind it without a word. Nobody else moves the slot
        by now: it is ours."""
        import psycopg

        question = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        try:
            check_publication(self._connection, self._publication, self._table)
            ((text,),) = self._connection.execute(question, [self._slot]).fetchall()
            self._connection.rollback()
        except psycopg.Error as error:
            raise self._url.refused(f"looking at slot {self._slot}", error) from None
        if lsn_number(text) > self._offset.lsn:
            raise SlotLostError(
                f"PostgresChangeSource, {self._url}: this job goes on from {lsn_text(self._offset.lsn)}, but the "
                f"replication slot {self._slot} begins at {text}: a later run has confirmed what lies between, or the "
                "slot was dropped and made anew. Those changes cannot be read any more. If there is a "
                f"newer checkpoint or savepoint, start from that. {START_ANEW}"
            )

    def _move_to(self, lsn: int) -> None:
        """The table was quiet up to here, so the slot need not keep the log of the others for us. Within a transaction,
        also one that is to come again, the position says nothing new."""
        if not self._within and not self._offset.changes and lsn > self._offset.lsn:
            self._offset = replace(self._offset, lsn=lsn)

    def _is_new(self) -> bool:
        """Whether this change was not given on before a recovery. Moves the offset over it."""
        self._seen += 1
        if self._seen <= self._offset.changes:
            return False
        self._offset = replace(self._offset, changes=self._seen)
        return True

    def _described(self, relation: pgoutput.Relation) -> tuple[pgoutput.Relation, list[Callable[[bytes], Any]]] | None:
        """With what reads its columns; None when it is another table."""
        import psycopg
        from psycopg.adapt import Transformer
        from psycopg.pq import Format

        number, schema, name = relation.number, relation.schema, relation.name
        try:
            is_ours = self._published.is_described_by(self._connection, number, schema, name)
            known = base_types(self._connection, relation.types) if is_ours else {}  # as in the rows that came first
            self._connection.rollback()
        except psycopg.Error as error:
            raise self._url.refused(f"looking at {schema}.{name}", error) from None
        if not is_ours:
            return None
        transformer = Transformer(self._connection)
        return relation, [transformer.get_loader(known[number], Format.TEXT).load for number in relation.types]

    def _rows_of(self, change: pgoutput.Change) -> list[Row]:
        described = self._relations[change.relation]
        if described is None:
            return []
        relation, loaders = described
        place = relation.columns.index(self._key)
        result = []
        old = None if change.old is None else self._values(change.old, loaders)
        if old is not None and self._given_on(old[place]):
            kind = RowKind.DELETE if change.new is None else RowKind.UPDATE_BEFORE
            result.append(_row(relation.columns, old, kind))
        if change.new is not None:
            new = self._values(change.new, loaders)
            if any(value is pgoutput.UNCHANGED for value in new):
                column = relation.columns[[value is pgoutput.UNCHANGED for value in new].index(True)]
                raise PostgresError(
                    f"PostgresChangeSource: an update of {self._table.name} does not hold its large column '{column}'; "
                    f"ALTER TABLE {self._table.name} REPLICA IDENTITY FULL makes the database send it"
                )
            if self._given_on(new[place]):
                kind = RowKind.INSERT if change.is_insert else RowKind.UPDATE_AFTER
                result.append(_row(relation.columns, new, kind))
        return result

    def _values(self, values: tuple[Any, ...], loaders: list[Callable[[bytes], Any]]) -> list[Any]:
        return [load(v) if isinstance(v, bytes) else v for v, load in zip(values, loaders, strict=True)]

    def _given_on(self, key: Any) -> bool:
        state = self._seen_in(key)
        return state is None or not state.contains(self._xid)

    def _look(self) -> bool | None:
        assert self._stream is not None
        return self._stream.has_more(LOOK_SECONDS) or None

    def wake_at_ms(self) -> float | None:
        """While the watch looks."""
        if self._watch is None or not self._watch.begun:
            return None
        now: float = self._clock.now_ms()
        return now + _WOKEN_BEFORE_MS

    def offset(self) -> ChangeOffset:
        return self._offset

    def notify_checkpoint_complete(self, checkpoint_id: int, offset: Any) -> None:
        if self._stream is not None:
            self._stream.confirm(offset.lsn)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.end()
        if self._stream is not None:
            self._stream.close()
        self._connection.close()


def _row(names: tuple[str, ...], values: list[Any], kind: RowKind) -> Row:
    row = make_row(names, values)
    row.set_row_kind(kind)
    return row


class PostgresChangeSourceBuilder:
    """A url, a table and the name of a slot are needed."""

    def __init__(self) -> None:
        check_installed("PostgresChangeSource")
        self._url: DatabaseUrl | None = None
        self._outage_timeout: int | None = None
        self._table: str | None = None
        self._slot: str | None = None
        self._publication: str | None = None
        self._rows_first = True

    def set_url(self, url: str, user: str | None = None, password: str | None = None) -> PostgresChangeSourceBuilder:
        """Of a user that may replicate (ALTER ROLE ... REPLICATION)."""
        self._url = DatabaseUrl.checked("PostgresChangeSource", url, user, password)
        return self

    def set_outage_timeout(self, timeout: TimeLike) -> PostgresChangeSourceBuilder:
        """How long each attempt of the job waits for a database that is away: a Duration, or milliseconds. 30 s unless
        this is called. When it is over the attempt fails, and the restart strategy decides."""
        self._outage_timeout = as_milliseconds(timeout, "set_outage_timeout")
        return self

    def set_table(self, table: str) -> PostgresChangeSourceBuilder:
        """`table`, or `schema.table`, with a primary key of one column."""
        if not isinstance(table, str) or not table.strip():
            raise ConfigurationError(f"set_table: takes the name of a table, got {table!r}")
        self._table = table
        return self

    def set_slot(self, slot: str, publication: str | None = None) -> PostgresChangeSourceBuilder:
        """The replication slot, one per job, and the publication, by default of the same name; both are made when they
        are not there. A slot that no job reads makes the database keep its log for ever: drop it with
        `SELECT pg_drop_replication_slot(...)` when the job is no more."""
        if not isinstance(slot, str) or not slot or not slot.replace("_", "").isalnum() or slot.lower() != slot:
            raise ConfigurationError(f"set_slot: takes lower-case letters, digits and underscores, got {slot!r}")
        self._slot, self._publication = slot, publication or slot
        return self

    def set_rows_first(self, rows_first: bool) -> PostgresChangeSourceBuilder:
        """True, the default: the rows that are there come first, as inserts. False: only changes from now on."""
        self._rows_first = bool(rows_first)
        return self

    def build(self) -> PostgresChangeSource:
        if self._url is None or self._table is None or self._slot is None or self._publication is None:
            raise ConfigurationError("PostgresChangeSource: set_url, set_table and set_slot are needed")
        url = self._url.waiting(self._outage_timeout)
        return PostgresChangeSource(url, self._table, self._slot, self._publication, self._rows_first)
