"""What is hidden of a configuration that is shown, and what is not."""

from __future__ import annotations

import pytest

from tidegate.common import options
from tidegate.common.secrets import HIDDEN, looks_secret, shown, without_secrets


@pytest.mark.parametrize(
    "key",
    [
        "my.password",
        "sasl.jaas.config",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.session.token",
        "spark.hadoop.fs.s3a.encryption.key",
        "fs.azure.account.key.lake.dfs.core.windows.net",
        "fs.azure.sas.container.lake.blob.core.windows.net",
        "fs.azure.account.oauth2.client.secret",
        "google.cloud.auth.service.account.private.key",
        "basic.auth.user.info",
        "ssl.keystore.key",
        "ssl.key.passphrase",
        "connection-string",
        "API_KEY",
        "accountKey",
        "db.pwd",
        "tidegate.otel.headers",
        "rest.ssl.key-password",
        "tidegate.high-availability.zookeeper.password",
    ],
)
def test_keys_whose_values_are_hidden(key: str) -> None:
    assert shown(key, "hunter2") == HIDDEN


def test_of_our_own_options_only_secrets_are_hidden() -> None:
    assert sorted(option.key for option in options.ALL_OPTIONS if looks_secret(option.key)) == [
        "rest.ssl.key-password",
        "tidegate.high-availability.zookeeper.password",
        "tidegate.otel.headers",
    ]


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("s3://ME:hunter2@bucket/path?region=here", "s3://******@bucket/path?region=here"),
        ("s3://ME:hun/ter2+@bucket/path", "s3://******@bucket/path"),
        ("s3://ME:hunter2@bucket/path@v1", "s3://******@bucket/path@v1"),
        (
            "s3a://b/p?access_key=hunter2&region=here&secret%5Fkey=hun,ter2;&session_token=hunter2",
            "s3a://b/p?access_key=******&region=here&secret%5Fkey=******&session_token=******",
        ),
        ("s3://a:hunter2@b/c;s3://d:hunter2@e/f", "s3://******@b/c;s3://******@e/f"),
        ("https://hunter2@host/path", "https://******@host/path"),
        ("http://a:80,http://u:hunter2@b:90/x", "http://a:80,http://******@b:90/x"),
        ("abfss://data:hunter2==@lake.dfs.core.windows.net/x", "abfss://data:******@lake.dfs.core.windows.net/x"),
        ("https://lake/x?sv=2024&sig=hunter2%2B&se=1", "https://lake/x?sv=2024&sig=******&se=1"),
        ("AccountName=lake;AccountKey=hunter2==;Suffix=net", "AccountName=lake;AccountKey=******;Suffix=net"),
        ("postgresql://me:hun@ter2@host:5432/db", "postgresql://me:******@host:5432/db"),
        ("jdbc:postgresql://host/db?user=me&password=hunter2", "jdbc:postgresql://host/db?user=me&password=******"),
        ("-Da.password=hunter2 -Db=1 -Dc.secret='hunter2 '", "-Da.password=****** -Db=1 -Dc.secret=******"),
        ("more=-Dtoken=hunter2", "more=-Dtoken=******"),
        ('{"password": "hunter2 hunter2", "x": 1}', '{"password": ******, "x": 1}'),
        ("api-key:hunter2,tenant:me", "api-key:******,tenant:me"),
        ("x: 1, Authorization: Bearer hunter2", "x: 1, Authorization: ******"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2", HIDDEN),
    ],
)
def test_secrets_within_values(value: str, seen: str) -> None:
    assert shown("some.key", value) == seen
    assert "hunter2" not in seen
    assert without_secrets(seen) == seen


@pytest.mark.parametrize(
    "value",
    [
        "/data/checkpoints",
        "file:///data/check@points",
        "s3://bucket/path?endpoint_override=http://minio:9000&region=us-east-1",
        "abfss://container@lake.dfs.core.windows.net/path",
        "hdfs://me@namenode:8020/path",
        "http://collector:4318",
        "http://host:8080/path@x",
        "localhost:9092,other:9092",
        "SASL_SSL",
        "10 s",
        "true",
        "a;b",
        "k1:v1,k2:v2",
        "token",
        "",
    ],
)
def test_what_is_no_secret_is_shown_as_it_is(value: str) -> None:
    assert shown("some.key", value) == value


def test_long_values_take_no_time_to_speak_of() -> None:
    for value in ("x" * 200_000, "a://" * 50_000, "s3://a:" * 30_000, "a=b," * 50_000, "x" + " " * 200_000):
        assert without_secrets(value) == value
