"""PyFlink's path for `tidegate.connectors.postgres.jdbc`."""

from tidegate.connectors.postgres.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink

__all__ = ["JdbcConnectionOptions", "JdbcExecutionOptions", "JdbcSink"]
