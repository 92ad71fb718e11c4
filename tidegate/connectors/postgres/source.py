"""`PostgresSource`: a table or a query, read once, in ranges of a key column.

The ranges are made on the driver when the job is submitted. Each is read in pages (`WHERE key > last ORDER BY key
LIMIT n`) on a helper thread, one page ahead: no transaction and no cursor stays open, so the offset, the last key, is
all that a recovery needs, and a database that was restarted is simply asked for the next page. That asks for a column
whose values are all different and none of them null. A row that changes while the job runs is seen as it was or as it
is.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import TimeLike, as_milliseconds
from tidegate.common.types import Row, make_row
from tidegate.connectors.postgres.connection import DatabaseUrl, PostgresError, check_installed
from tidegate.connectors.postgres.tables import check_rights, literal, look_up, quoted, quoted_table
from tidegate.contracts.connectors import Source, SourceContext, SourceSplit, SplitReader

_PAGE = 5000
_RANGES_PER_SUBTASK = 4  # so that a range with more rows than the others does not hold up its subtask alone
_WOKEN_BEFORE_MS = 1000.0  # a reader is woken when its page is there: this is only for the worst case


@dataclass(frozen=True)
class KeyRange(SourceSplit):
    """Keys above `low` up to and with `high`; None: no limit."""

    low: Any
    high: Any


class PostgresSource(Source[Row]):
    """Bounded. Rows with the names of the columns. Make one with `PostgresSource.builder()`. Needs
    `pip install tidegate[postgres]`."""

    gives_timestamps = False

    def __init__(self, url: DatabaseUrl, relation: str, key: str, checks: bool, page: int) -> None:
        self._url = url
        self._relation = relation  # SQL text: a table's name, or a query in parentheses with a name
        self._key = key
        self._checks = checks
        self._page = page
        self._pools: weakref.WeakKeyDictionary[SourceContext, PageReader] = weakref.WeakKeyDictionary()

    @staticmethod
    def builder() -> PostgresSourceBuilder:
        return PostgresSourceBuilder()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pools": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_pools": weakref.WeakKeyDictionary()}

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        import psycopg

        key = quoted(self._key)
        with self._url.connect(wait=False) as connection:
            try:
                if self._checks:
                    self._check_key(connection)
                empty = connection.execute(f"SELECT 1 FROM {self._relation} WHERE {key} IS NULL LIMIT 1").fetchall()
                if empty:
                    raise PostgresError(
                        f"PostgresSource: the key column '{self._key}' is null in some rows, which no range would "
                        "hold; choose another, or leave them out with a query (WHERE ... IS NOT NULL)"
                    )
                bounds = self._bounds(connection, parallelism * _RANGES_PER_SUBTASK)
            except psycopg.Error as error:
                raise self._url.refused("dividing the rows into ranges", error) from None
        edges = [None, *bounds, None]
        return [KeyRange(f"range-{n}", low, high) for n, (low, high) in enumerate(pairwise(edges))]

    def _check_key(self, connection: Any) -> None:
        table = look_up(self._url, connection, self._relation, None)
        check_rights(self._url, connection, table, {"SELECT": table.columns})
        unique = connection.execute(
            "SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
            "WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL "
            "AND a.attname = %s",
            [table.name, self._key],
        ).fetchall()
        if not unique:
            raise ConfigurationError(
                f"PostgresSource: the column '{self._key}' of {self._relation} has no unique index, so a recovery "
                "could not tell which rows it has read; choose one that has (set_key_column)"
            )

    def _bounds(self, connection: Any, ranges: int) -> list[Any]:
        """Keys between the ranges: of equal width for whole numbers, which costs nothing; else of equal counts, in the
        order of the database: that of text depends on its locale, and Python's is another."""
        key = quoted(self._key)
        ((low, high),) = connection.execute(f"SELECT min({key}), max({key}) FROM {self._relation}").fetchall()
        if low is None or low == high:
            return []
        if isinstance(low, int):
            return sorted({low + (high - low) * n // ranges for n in range(1, ranges)} - {high})
        shares = [n / ranges for n in range(1, ranges)]
        found = f"percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY {literal(key)})"
        if isinstance(low, str):
            found = f"({found})::text[]"  # psycopg knows no lists of enums or of types of extensions
        statement = f"SELECT {found} FROM {literal(self._relation)}"
        ((bounds,),) = connection.execute(statement, [shares]).fetchall()
        return [bound for bound in dict.fromkeys(bounds) if bound != high]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Row]:
        if not isinstance(split, KeyRange):
            raise TypeError(f"PostgresSource cannot read {split!r}")
        pages = self._pools.get(context)
        if pages is None:
            pages = PageReader(self._url, self._relation, self._key, self._page, context)
            self._pools[context] = pages
        return KeyRangeReader(pages, split, offset)

    def __repr__(self) -> str:
        return f"PostgresSource({self._url}, {self._relation})"


class PageReader:
    """The connection of a subtask and the thread that uses it, shared by the readers of its ranges."""

    def __init__(self, url: DatabaseUrl, relation: str, key: str, page: int, context: SourceContext) -> None:
        self._url, self._relation, self.key, self._page = url, relation, key, page
        self._clock, self._wake = context.clock, context.wake  # not the context: it is what this belongs to
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"tidegate-postgres-{os.getpid()}")
        self._connection: Any = None
        self._binary = True
        self._users = 0

    def open(self) -> None:
        self._users += 1

    def submit(self, low: Any, high: Any) -> Future[tuple[list[Row], Any]]:
        """Rows in order of the key, and the last key; no rows at the end. The task is woken when they are there."""
        future = self._thread.submit(self._read, low, high)
        wake = self._wake
        if wake is not None:
            future.add_done_callback(lambda _: wake())
        return future

    def wake_at_ms(self) -> float | None:
        """While a page is waited for."""
        now: float = self._clock.now_ms()
        return None if self._wake is None else now + _WOKEN_BEFORE_MS

    def _read(self, low: Any, high: Any) -> tuple[list[Row], Any]:
        import psycopg

        key = literal(quoted(self.key))
        limits = [(f"{key} > %s", low), (f"{key} <= %s", high)]
        given = [(text, value) for text, value in limits if value is not None]
        where = f"WHERE {' AND '.join(text for text, _ in given)}" if given else ""
        statement = f"SELECT * FROM {literal(self._relation)} {where} ORDER BY {key} LIMIT {self._page}"
        for attempt in range(2):
            try:
                if self._connection is None:
                    self._connection = self._url.connect()
                cursor = self._execute(statement, [value for _, value in given])
                names = tuple(column.name for column in cursor.description)
                rows = cursor.fetchall()
                break
            except psycopg.Error as error:
                self._disconnect()
                if attempt or not isinstance(error, psycopg.OperationalError):
                    raise self._url.refused("reading a page", error) from None
        last = rows[-1][names.index(self.key)] if rows else None
        return [make_row(names, list(row)) for row in rows], last

    def _execute(self, statement: str, arguments: list[Any]) -> Any:
        """In binary form, which is quicker, unless a column is of a type that psycopg does not know (an enum, one of
        an extension): as text such a value is what people write, in binary form it would be bytes."""
        cursor = self._connection.execute(statement, arguments, binary=self._binary)
        if self._binary and any(self._connection.adapters.types.get(c.type_code) is None for c in cursor.description):
            self._binary = False
            cursor = self._connection.execute(statement, arguments)
        return cursor

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._users -= 1
        if not self._users:
            self._thread.submit(self._disconnect)
            self._thread.shutdown(wait=False)


class KeyRangeReader(SplitReader[Row]):
    """The offset is the last key whose row was given on."""

    def __init__(self, pages: PageReader, split: KeyRange, offset: Any | None) -> None:
        pages.open()
        self._pages = pages
        self._high = split.high
        self._last = split.low if offset is None else offset[0]
        self._rows: list[Row] = []
        self._at = 0
        self._fetched = self._last  # the last key of the pages that were asked for
        self._future: Future[tuple[list[Row], Any]] | None = pages.submit(self._last, self._high)

    def poll(self, max_records: int) -> list[Row] | None:
        if self._at == len(self._rows):
            if self._future is None:
                return None
            if not self._future.done():
                return []
            self._rows, self._fetched = self._future.result()
            self._at = 0
            self._future = self._pages.submit(self._fetched, self._high) if self._rows else None
            if not self._rows:
                return None
        part = self._rows[self._at : self._at + max_records]
        self._at += len(part)
        self._last = part[-1][self._pages.key]
        return part

    def offset(self) -> Any:
        return (self._last,)

    def wake_at_ms(self) -> float | None:
        return self._pages.wake_at_ms()

    def close(self) -> None:
        if self._future is not None:
            self._future.cancel()
        self._pages.close()


class PostgresSourceBuilder:
    """A url, a table or a query, and a key column are needed."""

    def __init__(self) -> None:
        check_installed("PostgresSource")
        self._url: DatabaseUrl | None = None
        self._outage_timeout: int | None = None
        self._relation: str | None = None
        self._key: str | None = None
        self._checks = True
        self._page = _PAGE

    def set_url(self, url: str, user: str | None = None, password: str | None = None) -> PostgresSourceBuilder:
        self._url = DatabaseUrl.checked("PostgresSource", url, user, password)
        return self

    def set_outage_timeout(self, timeout: TimeLike) -> PostgresSourceBuilder:
        """How long each attempt of the job waits for a database that is away: a Duration, or milliseconds. 30 s unless
        this is called. When it is over the attempt fails, and the restart strategy decides."""
        self._outage_timeout = as_milliseconds(timeout, "set_outage_timeout")
        return self

    def set_table(self, table: str) -> PostgresSourceBuilder:
        """`table`, or `schema.table`."""
        if not isinstance(table, str) or not table.strip():
            raise ConfigurationError(f"set_table: takes the name of a table, got {table!r}")
        self._relation, self._checks = quoted_table(table), True
        return self

    def set_query(self, query: str) -> PostgresSourceBuilder:
        """A SELECT. The key column has to be one of its columns, with different values in all rows."""
        if not isinstance(query, str) or not query.strip():
            raise ConfigurationError(f"set_query: takes a SELECT, got {query!r}")
        text = query.strip().rstrip(";")
        self._relation, self._checks = f"({text}) AS tidegate_query", False
        return self

    def set_key_column(self, column: str) -> PostgresSourceBuilder:
        if not isinstance(column, str) or not column:
            raise ConfigurationError(f"set_key_column: takes the name of a column, got {column!r}")
        self._key = column
        return self

    def set_page_size(self, rows: int) -> PostgresSourceBuilder:
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise ConfigurationError(f"set_page_size: takes a number of rows >= 1, got {rows!r}")
        self._page = rows
        return self

    def build(self) -> PostgresSource:
        if self._url is None or self._relation is None or self._key is None:
            raise ConfigurationError("PostgresSource: set_url, set_key_column, and set_table or set_query are needed")
        url = self._url.waiting(self._outage_timeout)
        return PostgresSource(url, self._relation, self._key, self._checks, self._page)
