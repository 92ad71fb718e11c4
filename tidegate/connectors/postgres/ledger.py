"""The table that says which lots of upserts were applied: found, or made, before a job starts.

It is named without a schema, as it always was: the first `tidegate_ledger` on the user's search_path is the ledger, and
one that has to be made comes into the first schema of that path. It need not be made by the job's user: PostgreSQL
wants the right CREATE on the schema even for a CREATE TABLE IF NOT EXISTS of a table that is there, and since version
15 nobody but the owner has it on `public`.
"""

from __future__ import annotations

from typing import Any

from tidegate.connectors.postgres.connection import DatabaseUrl, PostgresError
from tidegate.connectors.postgres.tables import quoted

LEDGER = "tidegate_ledger"
KEPT_DAYS = 30  # how long rows of the ledger are kept after their writer's last lot
_COLUMNS = (
    "(sink text, writer text, lot int8 NOT NULL, applied_at timestamptz NOT NULL DEFAULT now(), "
    "PRIMARY KEY (sink, writer))"
)
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


def prepare_ledger(url: DatabaseUrl, connection: Any) -> None:
    """Once per job, on the driver, on a connection that commits by itself. A second time is fine. Raises when the
    ledger is not there and cannot be made, or when this user lacks a right to it."""
    import psycopg

    try:
        if not _is_there(connection):
            _create(url, connection)
        _check_rights(url, connection)
        connection.execute(f"DELETE FROM {LEDGER} WHERE applied_at < now() - make_interval(days => %s)", [KEPT_DAYS])
    except psycopg.Error as error:
        raise url.refused(f"preparing the table {LEDGER}", error) from None


def _is_there(connection: Any) -> bool:
    """On the search_path, as the statements of the sink will find it."""
    ((found,),) = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [LEDGER]).fetchall()
    return bool(found)


def _create(url: DatabaseUrl, connection: Any) -> None:
    import psycopg

    try:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {LEDGER} {_COLUMNS}")
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as error:
        ((schema, user),) = connection.execute("SELECT current_schema()::text, current_user::text").fetchall()
        place = f"{quoted(schema)}.{LEDGER}" if schema else LEDGER
        raise PostgresError(
            f"{url.connector}, {url}: upserts need the table {LEDGER}, which user {user} neither finds on its "
            f"search_path nor may make ({' '.join(str(error).split())}). Have it made, once: CREATE TABLE {place} "
            f"{_COLUMNS}; GRANT {', '.join(_RIGHTS)} ON {place} TO {user}"
        ) from None
    except psycopg.errors.UniqueViolation:  # another job has made it in the same moment
        if not _is_there(connection):
            raise


def _check_rights(url: DatabaseUrl, connection: Any) -> None:
    found = connection.execute(
        "SELECT r, current_user::text FROM unnest(%s::text[]) r WHERE NOT has_table_privilege(%s::regclass, r)",
        [list(_RIGHTS), LEDGER],
    ).fetchall()
    if found:
        user, missing = found[0][1], ", ".join(right for right, _ in found)
        raise PostgresError(
            f"{url.connector}, {url}: user {user} lacks the right {missing} on the table {LEDGER}, which upserts are "
            f"applied once by: GRANT {missing} ON {LEDGER} TO {user}"
        )
