"""Upserts and deletes in one transaction, by way of temporary tables, in which the database finds the last of each key.

The columns of the key are there of the types that they have in the table, so that values come to be what they are in
the table (rounded, padded), and with the collations of its unique index: two keys are the same here exactly if they are
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.connectors.postgres.tables import Table, copy_rows, quoted, unique_collations

_UPSERTS, _DELETES = "tidegate_upserts", "tidegate_deletes"
_INT4 = 23
_EXACT = {"smallint", "integer", "bigint", "uuid"}
"""Types whose values are the same to the database if and only if they are to Python, for all that can be written."""


class Stage:
    """For one table, on one connection."""

    def __init__(self, connector: str, connection: Any, table: Table, key: Sequence[str]) -> None:
        self._connector, self._connection, self._table, self._key = connector, connection, table, tuple(key)
        # None: of a view, say, whose indexes are its tables'
        self._collations = unique_collations(connection, table, key) or {}
        self._exact = all(self._is_exact(column) for column in self._key)
        place = "place"
        while place in table.columns:
            place += "_"
        self._place = quoted(place)

    def _is_exact(self, column: str) -> bool:
        kind = self._table.type_names[self._table.columns.index(column)]
        if kind != "text" or column not in self._collations:
            return kind in _EXACT
        ((deterministic,),) = self._connection.execute(
            "SELECT collisdeterministic FROM pg_collation WHERE oid = %s::regcollation", [self._collations[column]]
        ).fetchall()
        return bool(deterministic)

    def apply(
        self, upserts: Sequence[tuple[Any, ...]], deletes: Sequence[tuple[Any, ...]], places: Sequence[int] | None
    ) -> None:
        """Within a transaction. The last of each key counts; `places` says how many of the upserts come before each
        delete, None: all. No key comes twice for Python; when that says it all, nothing is looked for."""
        import psycopg

        if upserts:
            self._copy(_UPSERTS, self._table.columns, upserts, range(len(upserts)))
            if not self._exact:
                self._keep_last_upserts()
        if deletes:
            self._copy(_DELETES, self._key, deletes, [len(upserts)] * len(deletes) if places is None else places)
        if not (upserts and deletes):
            if upserts:
                self._upsert()
            else:
                self._delete()
            return
        if not self._exact:
            self._keep_last_kinds()
        # What is deleted first leaves room for others in further unique indexes; but rows that are changed to refer to
        # others have to be first, if the database checks that what is deleted is referred to no more.
        try:
            with self._connection.transaction():
                self._delete()
                self._upsert()
        except psycopg.errors.ForeignKeyViolation:
            self._upsert()
            self._delete()

    def _copy(self, name: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], places: Sequence[int]) -> None:
        """Into a temporary table of this transaction."""
        table = self._table
        at = [table.columns.index(column) for column in columns]
        defined = [f"{quoted(c)} {table.type_names[n]}{self._collated(c)}" for c, n in zip(columns, at, strict=True)]
        types = [table.types[n] for n in at]
        if not self._exact:
            defined.append(f"{self._place} int4")
            types.append(_INT4)
            rows = [(*row, place) for row, place in zip(rows, places, strict=True)]
        self._connection.execute(f"DROP TABLE IF EXISTS pg_temp.{name}")
        self._connection.execute(f"CREATE TEMPORARY TABLE {name} ({', '.join(defined)}) ON COMMIT DROP")
        with self._connection.cursor().copy(f"COPY pg_temp.{name} FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(types)
            copy_rows(copy, self._connector, rows)

    def _collated(self, column: str) -> str:
        return f" COLLATE {self._collations[column]}" if column in self._collations else ""

    def _keep_last_upserts(self) -> None:
        """Two of one key in an INSERT ... ON CONFLICT are an error. There are seldom any: to look costs less than to
        sort whole rows, and leaves them in the order of the stream, which further unique indexes may need."""
        key = ", ".join(map(quoted, self._key))
        ((differ,),) = self._connection.execute(
            f"SELECT count(*) = count(DISTINCT ({key})) FROM pg_temp.{_UPSERTS}"
        ).fetchall()
        if not differ:
            place = self._place
            self._connection.execute(
                f"DELETE FROM pg_temp.{_UPSERTS} u USING "
                f"(SELECT {key}, max({place}) AS {place} FROM pg_temp.{_UPSERTS} GROUP BY {key}) last "
                f"WHERE {self._same('u', 'last')} AND u.{place} < last.{place}"
            )

    def _keep_last_kinds(self) -> None:
        """Of keys that are both upserted and deleted."""
        same, place = self._same("u", "d"), self._place
        self._connection.execute(
            f"DELETE FROM pg_temp.{_UPSERTS} u USING pg_temp.{_DELETES} d WHERE {same} AND d.{place} > u.{place}"
        )
        self._connection.execute(f"DELETE FROM pg_temp.{_DELETES} d USING pg_temp.{_UPSERTS} u WHERE {same}")

    def _upsert(self) -> None:
        table = self._table
        columns = ", ".join(map(quoted, table.columns))
        updates = ", ".join(f"{quoted(c)} = excluded.{quoted(c)}" for c in table.columns if c not in self._key)
        action = f"DO UPDATE SET {updates}" if updates else "DO NOTHING"
        self._connection.execute(
            f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM pg_temp.{_UPSERTS} "
            f"ON CONFLICT ({', '.join(map(quoted, self._key))}) {action}"
        )

    def _delete(self) -> None:
        self._connection.execute(
            f"DELETE FROM {self._table.name} t USING pg_temp.{_DELETES} d WHERE {self._same('t', 'd')}"
        )

    def _same(self, one: str, other: str) -> str:
        # The collation is said, since the column may have another one than its unique index.
        return " AND ".join(f"{one}.{quoted(c)} = {other}.{quoted(c)}{self._collated(c)}" for c in self._key)
