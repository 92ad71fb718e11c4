"""Rows by primary key, effectively once: the last one of each key, applied together with a row of a ledger.

No prepared transactions here: one that has upserted a key keeps it locked, and the next checkpoint's upsert of the same
key would wait for a commit that can only come after it. Instead the rows between two barriers (one per key, a *lot*)
travel in the checkpoint, and the commit applies them in one transaction that also moves the ledger's row of the writer
to this lot. A commit that is repeated finds the ledger there already and does nothing.

The ledger's row belongs to one writer (a subtask of one attempt, over all its micro-batches), never to the job: numbers
of the job's checkpoints come again when it is started from an older savepoint, and new lots would be taken for applied
ones.

Which keys are the same is for the database to say: to Python 'A' and 'a' of a citext, or 0.001 and 0.002 of a
numeric(4, 2), are two. So of what a lot holds the last of each key is found in SQL, in tables of the same types and
collations (see `staging.py`); that the writer keeps one row per key of Python's only makes lots smaller.

Lots with the same key are applied in their order. Those of one writer come one after the other. After a recovery keys
have other writers, which know from the checkpoint which lots of the earlier ones wait, whoever has to apply them: a
lot is applied when the ledger says that all of these were (see `LotOrder`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.connectors.postgres.connection import DatabaseUnavailableError, DatabaseUrl, PostgresError
from tidegate.connectors.postgres.ledger import KEPT_DAYS, LEDGER
from tidegate.connectors.postgres.staging import Stage
from tidegate.connectors.postgres.tables import RowCheck, kind_of, look_up, rows_of
from tidegate.contracts.connectors import Committer, SinkContext, SinkWriter

_SURELY_KEPT_MS = (KEPT_DAYS - 1) * 86_400_000.0
_UPDATE_BEFORE, _DELETE = 1, 3


@dataclass(frozen=True)
class LotName:
    """A lot without its rows."""

    writer: str  # different in all jobs
    number: int  # of the lots of this writer, from 1
    generation: int  # above that of all lots that waited when its writer began


@dataclass(frozen=True)
class Lot:
    """What one writer has to apply at once."""

    sink: str
    writer: str
    number: int
    upserts: list[tuple[Any, ...]] = field(repr=False)
    deletes: list[tuple[Any, ...]] = field(repr=False)  # the values of the key
    generation: int = 0
    after_ms: float = 0.0  # when the lot before it was made
    delete_places: list[int] | None = field(default=None, repr=False)
    """How many of the upserts come before each delete; None, of versions that did not say: all of them."""

    @property
    def name(self) -> LotName:
        return LotName(self.writer, self.number, self.generation)


class LotOrder:
    """The lots that waited in the checkpoint that a job goes on from, in all subtasks: shared by the writer, which is
    told of them, and the committer of a process."""

    def __init__(self) -> None:
        self._waiting: set[LotName] = set()

    def restored(self, lots: Iterable[LotName]) -> int:
        """Before any lot is applied. The generation of new lots."""
        self._waiting |= set(lots)
        return 1 + max((lot.generation for lot in self._waiting), default=-1)

    def before(self, lot: Lot) -> list[LotName]:
        """What has to be applied before it, as far as it is not known to be."""
        return [
            other
            for other in self._waiting
            if other.generation < lot.generation or (other.writer == lot.writer and other.number < lot.number)
        ]

    def applied(self, lots: Iterable[LotName]) -> None:
        self._waiting -= set(lots)


class UpsertWriter(SinkWriter[Any, Lot]):
    """Keeps the last row of each key until the barrier."""

    def __init__(
        self,
        url: DatabaseUrl,
        table: str,
        columns: tuple[str, ...] | None,
        key: tuple[str, ...] | None,
        sink: str,
        context: SinkContext,
        order: LotOrder,
    ) -> None:
        self._clock = context.clock
        own = [lot.name for lot in context.restored_committables]
        self._generation = order.restored([*own, *context.committables_of_all])
        self._connector = url.connector
        with url.connect() as connection:
            self._table = look_up(url, connection, table, columns)
        names = key or self._table.key
        self._places = [self._table.columns.index(column) for column in names]
        self._check = RowCheck(self._connector, self._table, self._table.columns)
        self._check_keys = RowCheck(self._connector, self._table, names)
        self._sink = sink
        self._writer: str
        self._lots: int
        self._last_ms: float
        made = f"{context.subtask}-{uuid.uuid4().hex}"
        self._writer, self._lots, self._last_ms = context.memo or (made, 0, 0.0)
        self._rows: dict[tuple[Any, ...], tuple[Any, ...] | None] = {}  # by key; None: delete it

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        rows, places = self._rows, self._places
        written: list[Sequence[Any]] = []
        deleted: list[Sequence[Any]] = []
        for record, row in zip(values, rows_of(self._connector, self._table, values), strict=True):
            key = tuple([row[place] for place in places])
            if None in key:
                raise PostgresError(
                    f"{self._connector}: a record has no value for the key column "
                    f"'{self._table.columns[places[key.index(None)]]}'"
                )
            kind = kind_of(record)
            if kind == _UPDATE_BEFORE:
                continue  # what it was; what it is now comes next
            rows.pop(key, None)  # so that the lot is in the order of the last changes
            if kind == _DELETE:
                rows[key] = None
                deleted.append(key)
            else:
                rows[key] = tuple(row)
                written.append(row)
        # Once a checkpoint holds what cannot be applied, no attempt gets past it.
        self._check.check(written)
        if deleted:
            self._check_keys.check(deleted)

    def prepare_commit(self) -> list[Lot]:
        if not self._rows:
            return []
        rows, self._rows = self._rows, {}
        self._lots += 1
        upserts: list[tuple[Any, ...]] = []
        deletes: list[tuple[Any, ...]] = []
        places: list[int] = []
        for key, row in rows.items():
            if row is None:
                deletes.append(key)
                places.append(len(upserts))
            else:
                upserts.append(row)
        after_ms, self._last_ms = self._last_ms, self._clock.now_ms()
        return [Lot(self._sink, self._writer, self._lots, upserts, deletes, self._generation, after_ms, places)]

    def memo(self) -> tuple[str, int, float]:
        """The ledger keeps the row of a writer for a month: one of each micro-batch would be too many."""
        return self._writer, self._lots, self._last_ms


class LotWaitsError(DatabaseUnavailableError):
    """An earlier lot is not applied yet, for whatever reason its subtask has: this one is not at fault."""


class UpsertCommitter(Committer[Lot]):
    """Applies lots, each in a transaction of its own."""

    def __init__(
        self,
        url: DatabaseUrl,
        table: str,
        columns: tuple[str, ...] | None,
        key: tuple[str, ...] | None,
        order: LotOrder,
    ) -> None:
        self._url = url
        self._order = order
        self._name, self._columns, self._key = table, columns, key
        self._connection: Any = None
        self._stage: Stage | None = None

    def commit(self, committables: list[Lot]) -> list[Lot]:
        with self._url.told_when_slow(f"committing to {self._name}"):
            return self._commit(committables)

    def _commit(self, committables: list[Lot]) -> list[Lot]:
        import psycopg

        waits = None
        try:
            if self._connection is None:
                self._connection = self._url.connect()
                table = look_up(self._url, self._connection, self._name, self._columns)
                self._stage = Stage(self._url.connector, self._connection, table, self._key or table.key)
            for lot in committables:
                if (before := self._not_applied_before(lot)) is not None:
                    waits = (
                        waits
                        or f"lot {lot.number} of writer {lot.writer} waits for lot {before.number} of {before.writer}"
                    )
                else:
                    self._apply(lot)
        except psycopg.Error as error:
            self.close()
            refused = self._url.refused(f"writing to {self._name}", error)
            hint = ""
            if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
                hint = (
                    ". These rows are in a complete checkpoint: the job goes on from it as soon as the table takes "
                    "them (ALTER TABLE), or from an older snapshot without them"
                )
            raise type(refused)(f"{refused}{hint}") from None
        if waits:
            raise LotWaitsError(
                f"{self._url.connector}, {self._url}: {waits}, which another subtask has to apply first"
            )
        return []

    def _not_applied_before(self, lot: Lot) -> LotName | None:
        before = self._order.before(lot)
        if not before:
            return None
        found = self._connection.execute(
            f"SELECT writer, lot FROM {LEDGER} WHERE writer = ANY(%s)", [[other.writer for other in before]]
        ).fetchall()
        applied = dict(found)
        self._order.applied([other for other in before if applied.get(other.writer, 0) >= other.number])
        return min(self._order.before(lot), key=lambda other: other.number, default=None)

    def _apply(self, lot: Lot) -> None:
        connection, stage = self._connection, self._stage
        assert stage is not None
        with connection.transaction():
            # The row is locked until the end: two commits of one writer, in two processes, come one after the other.
            connection.execute(
                f"INSERT INTO {LEDGER} (sink, writer, lot) VALUES (%s, %s, 0) ON CONFLICT DO NOTHING",
                [lot.sink, lot.writer],
            )
            ((applied,),) = connection.execute(
                f"SELECT lot FROM {LEDGER} WHERE sink = %s AND writer = %s FOR UPDATE", [lot.sink, lot.writer]
            ).fetchall()
            if applied >= lot.number:
                return
            self._check_predecessor(lot, applied)
            stage.apply(lot.upserts, lot.deletes, lot.delete_places)
            connection.execute(
                f"UPDATE {LEDGER} SET lot = %s, applied_at = now() WHERE sink = %s AND writer = %s",
                [lot.number, lot.sink, lot.writer],
            )

    def _check_predecessor(self, lot: Lot, applied: int) -> None:
        """It does not wait, so it was applied: then the ledger knows of it, unless that was so long ago that its row
        was deleted."""
        age_ms = time.time() * 1000 - lot.after_ms
        if applied == lot.number - 1 or (applied == 0 and age_ms > _SURELY_KEPT_MS):
            return
        raise PostgresError(
            f"{self._url.connector}, {self._url}: lot {lot.number} of writer {lot.writer} comes next, but the table "
            f"{LEDGER} knows of {applied or 'none'} only: what was applied since is gone from the database. Was it "
            "restored from a backup, or the ledger emptied? Start the job from a snapshot that is older than the "
            f"backup; or, when nothing is missing: INSERT INTO {LEDGER} (sink, writer, lot) VALUES ('{lot.sink}', "
            f"'{lot.writer}', {lot.number - 1}) ON CONFLICT (sink, writer) DO UPDATE SET lot = excluded.lot"
        )

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
