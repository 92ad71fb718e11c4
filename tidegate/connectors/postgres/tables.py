"""Tables as the connectors see them: columns with their types, keys, and rows turned into values for COPY."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.types import Row
from tidegate.common.value_conversion import shorten
from tidegate.connectors.postgres.connection import DatabaseUrl, PostgresError
from tidegate.formats.arrow_columns import values_of


@dataclass(frozen=True)
class Table:
    """A table, or a part of its columns."""

    name: str  # as SQL text, quoted
    columns: tuple[str, ...]
    types: tuple[int, ...]  # the types' numbers, one per column: as the values are written (see `base_types`)
    type_names: tuple[str, ...]
    key: tuple[str, ...]  # the columns of the primary key, or of the unique index that was asked for
    required: tuple[str, ...]  # columns that are NOT NULL, unless a trigger could give them a value


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """`schema.table` or `table`; a name that has quotes is taken as it stands."""
    return name if '"' in name else ".".join(quoted(part) for part in name.split("."))


def literal(text: str) -> str:
    """SQL text for a statement that has arguments, in which psycopg takes a `%` for a place of one."""
    return text.replace("%", "%%")


_NOTHING_FILLS_IN = (
    "EXISTS (SELECT 1 FROM pg_class WHERE oid = attrelid AND relkind = 'r') AND "
    "NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = attrelid AND tgtype & 7 = 7)"  # before each row's insert
)


def look_up(url: DatabaseUrl, connection: Any, name: str, columns: Sequence[str] | None) -> Table:
    """Raises when the table or a column is missing."""
    import psycopg

    text = quoted_table(name)
    try:
        found = connection.execute(
            "SELECT attname, atttypid::int8, format_type(atttypid, atttypmod), attgenerated <> '', "
            f"attnotnull AND {_NOTHING_FILLS_IN} FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [text],
        ).fetchall()
        key = connection.execute(
            "SELECT a.attname FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k(n, place), pg_attribute a "
            "WHERE i.indrelid = %s::regclass AND i.indisprimary AND a.attrelid = i.indrelid AND a.attnum = k.n "
            "ORDER BY k.place",
            [text],
        ).fetchall()
    except psycopg.Error as error:
        raise url.refused(f"looking at table {name}", error) from None
    there = {column: (number, kind) for column, number, kind, generated, _ in found if not generated}
    required = {column for column, *_, not_null in found if not_null}
    wanted = list(there) if columns is None else list(columns)
    for column in wanted:
        if column not in there:
            raise ConfigurationError(
                f"{url.connector}: table {name} has no column '{column}' that can be written; it has: "
                f"{', '.join(there)}"
            )
    bases = base_types(connection, [there[column][0] for column in wanted])
    return Table(
        text,
        tuple(wanted),
        tuple(bases[there[column][0]] for column in wanted),
        tuple(there[column][1] for column in wanted),
        tuple(column for (column,) in key),
        tuple(column for column in wanted if column in required),
    )


def has_indexes(connection: Any, table: Table) -> bool:
    """Of its own: a view has those of its tables."""
    question = "SELECT relkind::text FROM pg_class WHERE oid = %s::regclass"
    ((kind,),) = connection.execute(question, [table.name]).fetchall()
    return kind in ("r", "p")


def unique_collations(connection: Any, table: Table, key: Sequence[str]) -> dict[str, str] | None:
    """How the database compares the values of these columns, where a collation says so: that of the unique index on
    them, as SQL text. None when no unique index is on exactly these columns that upserts could go by."""
    found = connection.execute(
        "SELECT i.indexrelid::int8, a.attname, quote_ident(n.nspname) || '.' || quote_ident(c.collname) "
        "FROM pg_index i CROSS JOIN unnest(i.indkey::int2[], i.indcollation::oid[]) WITH ORDINALITY k(n, coll, place) "
        "LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n "
        "LEFT JOIN pg_collation c ON c.oid = k.coll LEFT JOIN pg_namespace n ON n.oid = c.collnamespace "
        "WHERE i.indrelid = %s::regclass AND k.place <= i.indnkeyatts "
        "AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL "
        "ORDER BY c.collisdeterministic",
        [table.name],
    ).fetchall()
    for index in dict.fromkeys(number for number, _, _ in found):
        columns = {column: collation for number, column, collation in found if number == index}
        if set(columns) == set(key):
            return {column: collation for column, collation in columns.items() if collation}
    return None


_TEXT = 25  # the number of the type text, in every database
_PADDED = 1042  # char(n), which psycopg reads but does not write; its binary form is that of text
_FIRST_OF_USERS = 16384  # numbers of types that are not PostgreSQL's own


def base_types(connection: Any, numbers: Sequence[int]) -> dict[int, int]:
    """The types that psycopg writes and reads values of these types as: of a domain what it is made of; text of an enum
    and of what users and extensions call strings."""
    own = {number: _written_as(number) for number in numbers if number < _FIRST_OF_USERS}
    if len(own) == len(set(numbers)):
        return own
    found = connection.execute(
        "WITH RECURSIVE base(of, number) AS (SELECT n, n FROM unnest(%s::int8[]) n UNION ALL "
        "SELECT b.of, t.typbasetype::int8 FROM base b JOIN pg_type t ON t.oid = b.number WHERE t.typtype = 'd') "
        "SELECT b.of, CASE WHEN t.typtype = 'e' OR (t.typcategory = 'S' AND t.oid >= %s) THEN %s ELSE b.number END "
        "FROM base b JOIN pg_type t ON t.oid = b.number AND t.typtype <> 'd'",
        [list(set(numbers)), _FIRST_OF_USERS, _TEXT],
    ).fetchall()
    return own | {number: _written_as(base) for number, base in found}


def _written_as(number: int) -> int:
    return _TEXT if number == _PADDED else number


def check_types(url: DatabaseUrl, table: Table) -> None:
    """Raises when there is no way to write a column's values."""
    import psycopg

    for column, number, kind in zip(table.columns, table.types, table.type_names, strict=True):
        try:
            psycopg.adapters.get_dumper_by_oid(number, psycopg.pq.Format.BINARY)
        except psycopg.ProgrammingError:
            raise ConfigurationError(
                f"{url.connector}: column '{column}' of {table.name} is of type {kind}, which cannot be written here; "
                "leave it out (set_columns), and have the database make it of another one, with a trigger, say"
            ) from None


def check_rights(url: DatabaseUrl, connection: Any, table: Table, rights: Mapping[str, Sequence[str]]) -> None:
    """Raises when this user lacks a right to one of the columns that it is needed for."""
    for right, columns in rights.items():
        found = connection.execute(
            "SELECT c, current_user FROM unnest(%s::text[]) c WHERE NOT has_column_privilege(%s::regclass, c, %s)",
            [list(columns), table.name, right],
        ).fetchall()
        if not found:
            continue
        user, missing = found[0][1], [column for column, _ in found]
        some = "" if len(missing) == len(table.columns) else f" ({', '.join(map(quoted, missing))})"
        raise PostgresError(
            f"{url.connector}, {url}: user {user} lacks the right {right}{some} on table {table.name}: GRANT "
            f"{right}{some} ON {table.name} TO {user}"
        )


def may_delete(connection: Any, table: Table) -> bool:
    """Rows of the table; there is no such right to single columns."""
    question = "SELECT has_table_privilege(%s::regclass, 'DELETE')"
    ((may,),) = connection.execute(question, [table.name]).fetchall()
    return bool(may)


def check_temporary(url: DatabaseUrl, connection: Any) -> None:
    """Raises when this user may not make temporary tables."""
    question = (
        "SELECT has_database_privilege(current_database(), 'TEMPORARY'), current_database()::text, current_user::text"
    )
    ((may, database, user),) = connection.execute(question).fetchall()
    if not may:
        raise PostgresError(
            f"{url.connector}, {url}: user {user} may not make temporary tables, from which rows are upserted: GRANT "
            f"TEMPORARY ON DATABASE {quoted(database)} TO {user}"
        )


_LIMITS = {21: (-(2**15), 2**15 - 1), 23: (-(2**31), 2**31 - 1), 26: (0, 2**32 - 1)}  # of int2, int4 and oid
_TEXTS = {_TEXT, 1043}  # text and character varying


def rows_of(connector: str, table: Table, records: Sequence[Any]) -> list[Sequence[Any]]:
    """Rows, tuples, lists or dicts, as the table's values in order."""
    names = table.columns
    try:
        rows: list[Sequence[Any]] = [values_of(record, names) for record in records]
    except TypeError as error:
        raise PostgresError(f"{connector}: a record does not fit the columns {', '.join(names)}: {error}") from error
    for place, number in enumerate(table.types):
        if number in _LIMITS:
            _check_range(connector, table, rows, place, *_LIMITS[number])
    return rows


def _check_range(connector: str, table: Table, rows: list[Sequence[Any]], place: int, low: int, high: int) -> None:
    """psycopg cuts the upper bits of a number off that is too large for these types, without a word."""
    try:
        for row in rows:
            value = row[place]
            if value is not None and not low <= value <= high:
                raise _misfit(connector, row, f"{table.columns[place]} is out of range of {table.type_names[place]}")
    except TypeError:
        return  # no number: that is told when it is written


def copy_rows(copy: Any, connector: str, rows: Sequence[Sequence[Any]]) -> None:
    """Into a COPY whose types are set. The message about a value that does not fit shows the row."""
    _for_each(connector, rows, copy.write_row)


def _for_each(connector: str, rows: Sequence[Sequence[Any]], do: Callable[[Sequence[Any]], Any]) -> None:
    import psycopg

    rest = iter(rows)
    try:
        for row in rest:
            do(row)
    except (psycopg.DataError, psycopg.ProgrammingError, TypeError, ValueError, OverflowError, AttributeError) as error:
        culprit = rows[len(rows) - len(list(rest)) - 1]
        raise _misfit(connector, culprit, f"{type(error).__name__}: {error}") from error


def _misfit(connector: str, row: Sequence[Any], why: str) -> PostgresError:
    return PostgresError(f"{connector}: the row {shorten(tuple(row))} does not fit the columns' types: {why}")


class RowCheck:
    """Tells of rows that cannot be written without asking the database, as far as the client can know: for those that
    are written only when it is too late for the job to go back behind them."""

    def __init__(self, connector: str, table: Table, columns: Sequence[str]) -> None:
        """`columns`: those that the rows have."""
        from psycopg.adapt import PyFormat, Transformer
        from psycopg.pq import Format

        types = [table.types[table.columns.index(column)] for column in columns]
        self._connector, self._columns = connector, columns
        self._transformer = Transformer()
        self._transformer.set_dumper_types(types, Format.BINARY)
        self._formats = [PyFormat.BINARY] * len(types)
        self._texts = [place for place, number in enumerate(types) if number in _TEXTS]
        self._required = [place for place, column in enumerate(columns) if column in table.required]

    def check(self, rows: Sequence[Sequence[Any]]) -> None:
        dump, formats = self._transformer.dump_sequence, self._formats
        _for_each(self._connector, rows, lambda row: dump(row, formats))
        for place in self._texts:
            for row in rows:
                if row[place] is not None and "\0" in row[place]:
                    raise _misfit(self._connector, row, f"{self._columns[place]} holds a null character")
        for place in self._required:
            for row in rows:
                if row[place] is None:
                    raise _misfit(self._connector, row, f"{self._columns[place]} is NOT NULL, but has no value")


def kind_of(record: Any) -> int:
    """The kind of change a record stands for: that of a Row, an insert otherwise."""
    return record.get_row_kind().value if isinstance(record, Row) else 0
