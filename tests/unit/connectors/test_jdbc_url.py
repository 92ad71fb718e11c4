"""JDBC urls as they stand in programs for Flink."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tidegate.common.errors import ConfigurationError
from tidegate.connectors.postgres.connection import DatabaseUrl
from tidegate.connectors.postgres.jdbc_url import parameters_of


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("//h:1/d", {"host": "h", "port": "1", "dbname": "d"}),
        ("//h/d", {"host": "h", "port": "5432", "dbname": "d"}),
        ("//h/", {"host": "h", "port": "5432"}),
        ("//a:1,b/d%20d", {"host": "a,b", "port": "1,5432", "dbname": "d d"}),
        ("//[::1]:7/d", {"host": "::1", "port": "7", "dbname": "d"}),
        ("//me:p%40w@h:1/d", {"user": "me", "password": "p@w", "host": "h", "port": "1", "dbname": "d"}),
        ("d", {"host": "localhost", "dbname": "d"}),
        ("/", {"host": "localhost"}),
        ("d?user=me&password=a%26b", {"host": "localhost", "dbname": "d", "user": "me", "password": "a&b"}),
        ("/?currentSchema=a b,c", {"host": "localhost", "options": r"-c search_path=a\ b,c"}),
        (
            "/?options=-c%20statement_timeout=9&currentSchema=s&readOnly=true",
            {
                "host": "localhost",
                "options": "-c statement_timeout=9 -c search_path=s -c default_transaction_read_only=on",
            },
        ),
        (
            "/?ApplicationName=x&connectTimeout=3",
            {"host": "localhost", "application_name": "x", "connect_timeout": "3"},
        ),
        ("/?targetServerType=preferSecondary", {"host": "localhost", "target_session_attrs": "prefer-standby"}),
        ("/?targetServerType=master", {"host": "localhost", "target_session_attrs": "primary"}),
        ("/?loadBalanceHosts=true", {"host": "localhost", "load_balance_hosts": "random"}),
        ("/?reWriteBatchedInserts=true&stringtype=unspecified", {"host": "localhost"}),
        ("/?ssl=true", {"host": "localhost", "sslmode": "verify-full"}),
        ("/?ssl=true&sslmode=require", {"host": "localhost", "sslmode": "require"}),
        ("/?ssl=true&sslfactory=org.postgresql.ssl.NonValidatingFactory", {"host": "localhost", "sslmode": "require"}),
        ("/?tcpKeepAlive=true&connect_timeout=4", {"host": "localhost", "keepalives": "1", "connect_timeout": "4"}),
    ],
)
def test_a_url_is_understood(url: str, expected: dict[str, str]) -> None:
    assert parameters_of("JdbcSink", f"jdbc:postgresql:{url}") == expected


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("jdbc:mysql://h/d?password=secret", "jdbc:mysql is not supported"),
        ("jdbc:postgresql:/?socketFactory=x&user=me", "the JDBC url has socketFactory, for which there is nothing"),
        ("jdbc:postgresql:/?targetServerType=best", "targetServerType of the JDBC url has to be one of any, primary"),
        ("jdbc:postgresql:/?ssl=maybe", "ssl of the JDBC url has to be one of"),
        ("jdbc:postgresql://me:secret@h:p/d", "has a port that is no number"),
    ],
)
def test_what_is_not_understood_is_named(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"JdbcSink: .*{text}") as told:
        DatabaseUrl.checked("JdbcSink", url)
    assert "secret" not in str(told.value)


def test_what_has_no_effect_is_logged(caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        url = DatabaseUrl.checked("JdbcSink", "jdbc:postgresql://h/d?reWriteBatchedInserts=true&connectTimeout=3")
    assert "of the JDBC url, reWriteBatchedInserts: without effect" in caplog.text
    assert str(url) == "h:5432/d"


def test_what_a_url_says_is_not_overruled() -> None:
    url = DatabaseUrl.checked("JdbcSink", "jdbc:postgresql:d?ApplicationName=mine&connectTimeout=3&user=a", "b", "p w")
    expected = {"host=localhost", "dbname=d", "application_name=mine", "connect_timeout=3", "user=b", "password='p w'"}
    assert all(part in url._conninfo() for part in expected)
    assert "application_name=tidegate" in DatabaseUrl.checked("JdbcSink", "postgresql://h/d")._conninfo()
