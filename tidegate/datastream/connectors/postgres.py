"""PostgreSQL: sinks that append and upsert, and a bounded source."""

from tidegate.connectors.postgres.sink import PostgresSink, PostgresSinkBuilder
from tidegate.connectors.postgres.source import PostgresSource, PostgresSourceBuilder

__all__ = ["PostgresSink", "PostgresSinkBuilder", "PostgresSource", "PostgresSourceBuilder"]
