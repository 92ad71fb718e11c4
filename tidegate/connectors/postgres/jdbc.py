"""`JdbcSink` under PyFlink's names, for PostgreSQL: a statement per record, in batches, at least once.

A statement that is idempotent (`INSERT ... ON CONFLICT ... DO UPDATE`) makes it effectively once; for exactly once
there is `PostgresSink`.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.job_client import JobClient
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation
from tidegate.common.value_conversion import shorten
from tidegate.connectors.postgres.connection import DatabaseUrl, PostgresError, check_installed
from tidegate.contracts.connectors import Sink, SinkContext, SinkWriter
from tidegate.contracts.driver_side import DriverSide


@dataclass(frozen=True, repr=False)
class JdbcConnectionOptions:
    """Made by `JdbcConnectionOptions.JdbcConnectionOptionsBuilder()`."""

    url: str
    driver_name: str | None
    user_name: str | None
    password: str | None

    def get_db_url(self) -> str:
        return self.url

    def get_driver_name(self) -> str | None:
        return self.driver_name

    def get_user_name(self) -> str | None:
        return self.user_name

    def get_password(self) -> str | None:
        return self.password

    class JdbcConnectionOptionsBuilder:
        def __init__(self) -> None:
            self._given: dict[str, str] = {}

        def with_url(self, url: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """`jdbc:postgresql://host:5432/database`."""
            return self._set("url", url)

        def with_driver_name(self, driver_name: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """Has no effect: there is no Java driver."""
            return self._set("driver_name", driver_name)

        def with_user_name(self, user_name: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            return self._set("user_name", user_name)

        def with_password(self, password: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            return self._set("password", password)

        def _set(self, name: str, value: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            if not isinstance(value, str):
                raise ConfigurationError(f"JdbcConnectionOptions: with_{name} takes text")
            self._given[name] = value
            return self

        def build(self) -> JdbcConnectionOptions:
            given = self._given
            if "url" not in given:
                raise ConfigurationError("JdbcConnectionOptions: with_url is missing")
            return JdbcConnectionOptions(
                given["url"], given.get("driver_name"), given.get("user_name"), given.get("password")
            )


@dataclass(frozen=True)
class JdbcExecutionOptions:
    """When records are written: so many, or after so long, and always before a checkpoint."""

    batch_interval_ms: int = 0
    batch_size: int = 5000
    max_retries: int = 3

    @staticmethod
    def builder() -> JdbcExecutionOptions.Builder:
        return JdbcExecutionOptions.Builder()

    @staticmethod
    def defaults() -> JdbcExecutionOptions:
        return JdbcExecutionOptions()

    def get_batch_interval_ms(self) -> int:
        return self.batch_interval_ms

    def get_batch_size(self) -> int:
        return self.batch_size

    def get_max_retries(self) -> int:
        return self.max_retries

    class Builder:
        def __init__(self) -> None:
            self._given: dict[str, int] = {}

        def with_batch_size(self, size: int) -> JdbcExecutionOptions.Builder:
            return self._set("batch_size", size, 1)

        def with_batch_interval_ms(self, interval_ms: int) -> JdbcExecutionOptions.Builder:
            """0: no limit of time."""
            return self._set("batch_interval_ms", interval_ms, 0)

        def with_max_retries(self, max_retries: int) -> JdbcExecutionOptions.Builder:
            return self._set("max_retries", max_retries, 0)

        def _set(self, name: str, value: int, least: int) -> JdbcExecutionOptions.Builder:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(f"JdbcExecutionOptions: with_{name} takes a number >= {least}, got {value!r}")
            self._given[name] = value
            return self

        def build(self) -> JdbcExecutionOptions:
            return JdbcExecutionOptions(**self._given)


class JdbcSink(Sink[Any, Any], DriverSide):
    """Made by `JdbcSink.sink(...)`; `add_sink` and `sink_to` take it."""

    def __init__(self, sql: str, names: Sequence[str] | None, url: DatabaseUrl, options: JdbcExecutionOptions) -> None:
        self._statement, self._count = _with_placeholders(sql)
        self._names = names
        self._url = url
        self._options = options

    @staticmethod
    def sink(
        sql: str,
        type_info: TypeInformation,
        jdbc_connection_options: JdbcConnectionOptions,
        jdbc_execution_options: JdbcExecutionOptions | None = None,
    ) -> JdbcSink:
        """`sql` has a `?` for each field of the row type, in order."""
        check_installed("JdbcSink")
        if not isinstance(sql, str) or not sql.strip():
            raise ConfigurationError(f"JdbcSink.sink: sql has to be a statement, got {sql!r}")
        if not isinstance(type_info, RowTypeInfo):
            raise ConfigurationError(f"JdbcSink.sink: type_info has to be a row type (Types.ROW), got {type_info!r}")
        if not isinstance(jdbc_connection_options, JdbcConnectionOptions):
            raise TypeError("JdbcSink.sink: takes JdbcConnectionOptions")
        o = jdbc_connection_options
        url = DatabaseUrl.checked("JdbcSink", o.url, o.user_name, o.password)
        sink = JdbcSink(sql, type_info.get_field_names(), url, jdbc_execution_options or JdbcExecutionOptions())
        fields = len(type_info.get_field_types())
        if sink._count != fields:
            raise ConfigurationError(
                f"JdbcSink.sink: the statement has {sink._count} '?', the row type {fields} fields"
            )
        return sink

    def check_start(self, num_slots: int) -> None:
        import psycopg

        wrong = (
            psycopg.errors.UndefinedTable,
            psycopg.errors.UndefinedColumn,
            psycopg.errors.InvalidSchemaName,
            psycopg.errors.InvalidColumnReference,  # ON CONFLICT by columns without a unique index
            psycopg.errors.SyntaxError,
            psycopg.errors.InsufficientPrivilege,
        )
        with self._url.connect(wait=False) as connection:
            error = _error_of(connection, self._statement, self._count)
        if isinstance(error, wrong):  # others may come from parameters whose types are not known yet
            raise self._url.refused("looking at the statement", error)

    def job_started(self, client: JobClient) -> None:
        pass

    def job_refused(self) -> None:
        pass

    def create_writer(self, context: SinkContext) -> JdbcWriter:
        return JdbcWriter(self._statement, self._count, self._url, self._options, context.clock)

    def __repr__(self) -> str:
        return f"JdbcSink({self._url})"


class JdbcWriter(SinkWriter[Any, Any]):
    def __init__(self, statement: str, count: int, url: DatabaseUrl, options: JdbcExecutionOptions, clock: Any) -> None:
        self._statement, self._count = statement, count
        self._url, self._options, self._clock = url, options, clock
        self._connection: Any = None
        self._rows: list[Sequence[Any]] = []
        self._oldest_ms = 0.0

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        for value in values:
            row = list(value) if not isinstance(value, dict) else list(value.values())
            if len(row) != self._count:
                raise PostgresError(f"JdbcSink: {shorten(value)} has {len(row)} fields, the statement {self._count}")
            if not self._rows:
                self._oldest_ms = self._clock.now_ms()
            self._rows.append(row)
            if len(self._rows) >= self._options.batch_size:
                self.flush(False)
        interval = self._options.batch_interval_ms
        if interval and self._rows and self._clock.now_ms() - self._oldest_ms >= interval:
            self.flush(False)

    def flush(self, end_of_input: bool) -> None:
        """All of it in one transaction, tried again when the connection breaks."""
        import psycopg

        for attempt in range(self._options.max_retries + 1):
            if not self._rows:
                return
            try:
                if self._connection is None:
                    self._connection = self._url.connect()
                with self._connection.transaction(), self._connection.cursor() as cursor:
                    cursor.executemany(self._statement, self._rows)
                self._rows = []
            except psycopg.Error as error:
                broken = isinstance(error, psycopg.OperationalError)
                self.close()
                if not broken or attempt == self._options.max_retries:
                    raise self._url.refused("writing a batch", error) from None
                time.sleep(0.1 * 2**attempt)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _error_of(connection: Any, statement: str, count: int) -> Exception | None:
    """What the database has against a statement that psycopg understands. It is not executed."""
    import psycopg

    place = itertools.count(1)
    text = re.sub("%%|%s", lambda part: "%" if part[0] == "%%" else f"${next(place)}", statement)
    result = connection.pgconn.prepare(b"tidegate", text.encode())
    if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
        return psycopg.errors.error_from_result(result)
    try:
        connection.execute(f"EXPLAIN EXECUTE tidegate({', '.join(['NULL'] * count)})")  # which looks at rights
    except psycopg.Error as error:
        return error
    return None


def _with_placeholders(sql: str) -> tuple[str, int]:
    """`?` outside of quotes as psycopg's `%s`, and how many there are."""
    parts = re.split(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")", sql)
    count = 0
    for i, part in enumerate(parts):
        part = part.replace("%", "%%")
        if i % 2 == 0:
            count += part.count("?")
            part = part.replace("?", "%s")
        parts[i] = part
    return "".join(parts), count
