"""PostgreSQL: sinks that append and upsert, a bounded source, and a source of changes."""

from tidegate.connectors.postgres.changes import PostgresChangeSource, PostgresChangeSourceBuilder
from tidegate.connectors.postgres.sink import PostgresSink, PostgresSinkBuilder
from tidegate.connectors.postgres.source import PostgresSource, PostgresSourceBuilder

__all__ = [
    "PostgresChangeSource",
    "PostgresChangeSourceBuilder",
    "PostgresSink",
    "PostgresSinkBuilder",
    "PostgresSource",
    "PostgresSourceBuilder",
]
