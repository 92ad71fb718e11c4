"""What is told of a job that reads from and writes to PostgreSQL has no password in it."""

from __future__ import annotations

import logging

import pytest

from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcSink
from tidegate.datastream.connectors.postgres import PostgresChangeSource, PostgresSink, PostgresSource
from tidegate.graph.chaining import build_job_graph
from tidegate.jobmanager.job_publisher import JobPublisher

IN_URL = "postgresql://me:hunter-1@db:5432/shop"


def test_what_is_told_of_a_job_has_no_passwords_of_its_databases(caplog: pytest.LogCaptureFixture) -> None:
    """Its graph, its view, which the REST API and the web page show, how its parts print themselves, and the log."""
    caplog.set_level(logging.DEBUG)
    table = PostgresSource.builder().set_url(IN_URL).set_table("orders").set_key_column("id").build()
    changes = PostgresChangeSource.builder().set_url("postgresql://db/shop", "me", "hunter-2")
    build = PostgresSink.builder().set_url("postgresql://db:5432/shop?user=me&password=hunter-3").set_table("totals")
    options = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url("jdbc:postgresql://db:5432/shop")
    connection = options.with_user_name("me").with_password("hunter-4").build()
    row = Types.ROW_NAMED(["n"], [Types.LONG()])
    sources = [table, changes.set_table("orders").set_slot("slot").build()]
    sinks = [build.build(), JdbcSink.sink("INSERT INTO totals (n) VALUES (?)", row, connection)]
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    for source, sink in zip(sources, sinks, strict=True):
        env.from_source(source, WatermarkStrategy.no_watermarks(), "orders").sink_to(sink)
    graph = build_job_graph(env._operators, env._graph_settings(), "job", env._job_id()).job_graph
    view = JobPublisher(graph, "STREAMING", 1, 0.0, env._configuration).view
    logging.getLogger("tests").debug("%r %r %s", sources, sinks, connection)
    assert "orders" in view.to_json().decode()
    assert "totals" in caplog.text
    told = [*map(repr, [*sources, *sinks, connection, build, options, view, graph]), *map(str, [*sources, *sinks])]
    for text in (*told, view.to_json().decode(), caplog.text):
        assert "hunter" not in text
