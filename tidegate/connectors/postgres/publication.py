"""The publication of a change capture: what the database sends of which tables.

Everything is looked at before the start, and again by every reader: of what a publication leaves out nothing comes, and
nobody says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.connectors.postgres.tables import Table, quoted

_NEEDED = ("insert", "update", "delete", "truncate")  # a TRUNCATE is an error, so it has to be seen
_SHOWN_TABLES = 5


@dataclass(frozen=True)
class PublishedTable:
    """The table whose changes are wanted, as messages of replication name it."""

    number: int
    schema: str
    name: str

    @staticmethod
    def of(connection: Any, table: Table) -> PublishedTable:
        ((number, schema, name),) = connection.execute(
            "SELECT c.oid::int8, nspname::text, relname::text FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = relnamespace WHERE c.oid = %s::regclass",
            [table.name],
        ).fetchall()
        return PublishedTable(number, schema, name)

    def is_described_by(self, connection: Any, number: int, schema: str, name: str) -> bool:
        """Whether a message that describes a table (`pgoutput.Relation`) is about this one: renamed since or made anew,
        or one of its partitions, under whose names changes come from before its publication was altered."""
        if number == self.number or (schema, name) == (self.schema, self.name):
            return True
        question = "SELECT 1 FROM pg_partition_ancestors(%s::oid::regclass) a WHERE a.relid = %s::oid"
        return bool(connection.execute(question, [number, self.number]).fetchall())

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def make_publication(connection: Any, publication: str, table: Table) -> None:
    """Unless there is one of that name, which `check_publication` looks at."""
    if not connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [publication]).fetchall():
        connection.execute(
            f"CREATE PUBLICATION {quoted(publication)} FOR TABLE {table.name} WITH (publish_via_partition_root = true)"
        )


def check_publication(connection: Any, publication: str, table: Table) -> None:
    """Raises unless every change to every row of the table comes, with all of its columns and under its own name."""
    wanted, text = PublishedTable.of(connection, table), quoted(publication)
    _check_table(connection, wanted)
    found = connection.execute(
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot FROM pg_publication WHERE pubname = %s",
        [publication],
    ).fetchall()
    if not found:
        raise ConfigurationError(
            f"PostgresChangeSource: there is no publication {text} any more: CREATE PUBLICATION {text} FOR TABLE "
            f"{table.name} WITH (publish_via_partition_root = true). Changes since it was dropped cannot be read"
        )
    *sent, as_whole = found[0]
    if missing := [kind for kind, is_sent in zip(_NEEDED, sent, strict=True) if not is_sent]:
        raise ConfigurationError(
            f"PostgresChangeSource: the publication {text} leaves out every {' and every '.join(missing)}, so changes "
            f"would be lost: ALTER PUBLICATION {text} SET (publish = '{', '.join(_NEEDED)}'), or give the job one of "
            "its own (set_slot)"
        )
    tables = connection.execute(
        "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = %s ORDER BY 1, 2",
        [publication],
    ).fetchall()
    if (wanted.schema, wanted.name) not in tables:
        if not as_whole and _is_partitioned(connection, wanted):
            raise ConfigurationError(
                f"PostgresChangeSource: {wanted} has partitions, and the publication {text} would send their changes "
                f"as those of other tables, or not at all: ALTER PUBLICATION {text} SET (publish_via_partition_root = "
                "true), with the table itself in it, or give the job one of its own (set_slot)"
            )
        raise ConfigurationError(
            f"PostgresChangeSource: the publication {text} does not send the changes of {wanted}: it is of "
            f"{_shown(tables)}. If it belongs to another job, give this one a slot and a publication of its own "
            f"(set_slot); otherwise ALTER PUBLICATION {text} ADD TABLE {table.name}"
        )
    if connection.info.server_version >= 150000:
        _check_whole_rows(connection, publication, wanted, table)


def _check_table(connection: Any, wanted: PublishedTable) -> None:
    ((identity, has_key, inherited),) = connection.execute(
        "SELECT relreplident = ANY('{d,f}'), (SELECT bool_and(indisprimary) FROM pg_index WHERE indrelid = c.oid AND "
        "indisreplident), relkind <> 'p' AND EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = c.oid) "
        "FROM pg_class c WHERE oid = %s::oid",
        [wanted.number],
    ).fetchall()
    if not identity and not has_key:
        raise ConfigurationError(
            f"PostgresChangeSource: the REPLICA IDENTITY of {wanted} is not its primary key, so updates and deletes "
            f"would not say of which row: ALTER TABLE {quoted(wanted.schema)}.{quoted(wanted.name)} REPLICA IDENTITY "
            "DEFAULT, or FULL"
        )
    if inherited:
        raise ConfigurationError(
            f"PostgresChangeSource: other tables inherit from {wanted}, whose rows are among its own and whose changes "
            "are not. Read a table without children, or one with partitions"
        )


def _is_partitioned(connection: Any, wanted: PublishedTable) -> bool:
    return bool(
        connection.execute("SELECT 1 FROM pg_partitioned_table WHERE partrelid = %s::oid", [wanted.number]).fetchall()
    )


def _check_whole_rows(connection: Any, publication: str, wanted: PublishedTable, table: Table) -> None:
    """Publications could not choose rows and columns before PostgreSQL 15."""
    ((columns, only_if),) = connection.execute(
        "SELECT attnames::text[], rowfilter FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND "
        "tablename = %s",
        [publication, wanted.schema, wanted.name],
    ).fetchall()
    text, remedy = (
        quoted(publication),
        "take that out (ALTER PUBLICATION ... SET TABLE), or give the job one of its own",
    )
    if only_if is not None:
        raise ConfigurationError(
            f"PostgresChangeSource: the publication {text} sends changes of {wanted} only WHERE {only_if}, so others "
            f"would be lost: {remedy} (set_slot)"
        )
    if left_out := [column for column in table.columns if column not in columns]:
        raise ConfigurationError(
            f"PostgresChangeSource: the publication {text} leaves out columns of {wanted} ({', '.join(left_out)}): "
            f"{remedy} (set_slot)"
        )


def _shown(tables: list[tuple[str, str]]) -> str:
    names = [f"{schema}.{name}" for schema, name in tables[:_SHOWN_TABLES]]
    return (", ".join(names) or "no table") + (", ..." if len(tables) > _SHOWN_TABLES else "")
