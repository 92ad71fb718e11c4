"""Tables as the connectors see them: columns with their types, keys, and rows turned into values for COPY."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """`schema.table` or `table`; a name that has quotes is taken as it stands."""
    return name if '"' in name else ".".join(quoted(part) for part in name.split("."))


def literal(text: str) -> str:
    """SQL text for a statement that has arguments, in which psycopg takes a `%` for a place of one."""
    return text.replace("%", "%%")


def look_up(url: DatabaseUrl, connection: Any, name: str, columns: Sequence[str] | None) -> Table:
    """Raises when the table or a column is missing."""
    import psycopg

    text = quoted_table(name)
    try:
        found = connection.execute(
            "SELECT attname, atttypid::int8, format_type(atttypid, atttypmod), attgenerated <> '' FROM pg_attribute "
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
    there = {column: (number, kind) for column, number, kind, generated in found if not generated}
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
    )


_TEXT = 25  # the number of the type text, in every database
_FIRST_OF_USERS = 16384  # numbers of types that are not PostgreSQL's own


def base_types(connection: Any, numbers: Sequence[int]) -> dict[int, int]:
    """The types that psycopg writes and reads values of these types as: of a domain what it is made of; text of an enum
    and of what users and extensions call strings."""
    own = {number: number for number in numbers if number < _FIRST_OF_USERS}
    if len(own) == len(set(numbers)):
        return own
    found = connection.execute(
        "WITH RECURSIVE base(of, number) AS (SELECT n, n FROM unnest(%s::int8[]) n UNION ALL "
        "SELECT b.of, t.typbasetype::int8 FROM base b JOIN pg_type t ON t.oid = b.number WHERE t.typtype = 'd') "
        "SELECT b.of, CASE WHEN t.typtype = 'e' OR (t.typcategory = 'S' AND t.oid >= %s) THEN %s ELSE b.number END "
        "FROM base b JOIN pg_type t ON t.oid = b.number AND t.typtype <> 'd'",
        [list(set(numbers)), _FIRST_OF_USERS, _TEXT],
    ).fetchall()
    return own | dict(found)


def check_types(url: DatabaseUrl, table: Table) -> None:
    """Raises when there is no way to write a column's values."""
    import psycopg

    for column, number, kind in zip(table.columns, table.types, table.type_names, strict=True):
        if psycopg.adapters.types.get(number) is None:
            raise ConfigurationError(
                f"{url.connector}: column '{column}' of {table.name} is of type {kind}, which cannot be written here; "
                "leave it out (set_columns), and have the database make it of another one, with a trigger, say"
            )


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


def rows_of(connector: str, table: Table, records: Sequence[Any]) -> list[Sequence[Any]]:
    """Rows, tuples, lists or dicts, as the table's values in order."""
    names = table.columns
    try:
        return [values_of(record, names) for record in records]
    except TypeError as error:
        raise PostgresError(f"{connector}: a record does not fit the columns {', '.join(names)}: {error}") from error


def copy_rows(copy: Any, connector: str, rows: Sequence[Sequence[Any]]) -> None:
    """Into a COPY whose types are set. The message about a value that does not fit shows the row."""
    import psycopg

    rest = iter(rows)
    write = copy.write_row
    try:
        for row in rest:
            write(row)
    except (psycopg.DataError, psycopg.ProgrammingError, TypeError, ValueError, OverflowError, AttributeError) as error:
        culprit = rows[len(rows) - len(list(rest)) - 1]
        raise PostgresError(
            f"{connector}: the row {shorten(tuple(culprit))} does not fit the columns' types: "
            f"{type(error).__name__}: {error}"
        ) from error


def kind_of(record: Any) -> int:
    """The kind of change a record stands for: that of a Row, an insert otherwise."""
    return record.get_row_kind().value if isinstance(record, Row) else 0
