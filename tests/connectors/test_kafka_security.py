"""A broker that asks for a password (SASL/PLAIN and SCRAM) over TLS, or for a certificate, all made for the occasion:
source, sink with transactions (which uses a second client), and what is said to those who may not in."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker, running_broker
from tests.connectors.cache import UnavailableError
from tests.connectors.kafka_kit import barrier, builder, commit, open_writer, write
from tests.connectors.test_kafka_source import Reading, of
from tidegate.connectors.kafka import admin
from tidegate.connectors.kafka.offsets import KafkaOffsetsInitializer
from tidegate.connectors.kafka.settings import BrokerUnavailableError, KafkaError

SECRET = "s3cret-of-the-tests"


def make_certificate(folder: Path) -> None:
    """`ca.pem`, and `broker.pem` (key and certificate) signed by it; likewise `client.key` and `client.pem`."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    extension = folder / "names.cnf"
    extension.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    key = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=tests")
    openssl("req", *key, "-keyout", "b.key", "-out", "b.csr", "-subj", "/CN=localhost")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", str(extension))
    openssl("x509", "-req", "-in", "b.csr", "-out", "b.pem", *signing)
    openssl("pkcs8", "-topk8", "-nocrypt", "-in", "b.key", "-out", "b8.key")
    openssl("req", *key, "-keyout", "client.key", "-out", "client.csr", "-subj", "/CN=certified")
    openssl("x509", "-req", "-in", "client.csr", "-out", "client.pem", *signing)
    (folder / "broker.pem").write_text((folder / "b8.key").read_text() + (folder / "b.pem").read_text())


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificate(folder)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "broker.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": folder / "ca.pem",
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{module} username="admin" password="{SECRET}" user_job="{SECRET}" user_guest="{SECRET}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin;User:job;User:scrambled;User:CN=certified",
    }
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "job",
        "sasl.password": SECRET,
        "ssl.ca.location": str(folder / "ca.pem"),
    }
    try:
        with running_broker(settings, secured=True) as broker:
            yield broker, properties
    except UnavailableError as error:
        from tests.connectors.conftest import _missing

        _missing(error)


def secured_servers(broker: Broker) -> str:
    return f"127.0.0.1:{broker.secured_port}"


def certified_servers(broker: Broker) -> str:
    return f"127.0.0.1:{broker.certified_port}"


def add_scram_user(broker: Broker, user: str) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    added = UserScramCredentialUpsertion(user, info, SECRET.encode())
    for answer in admin.alter_user_scram_credentials([added]).values():
        answer.result(20)


def source_of(broker: Broker, topic: str, properties: dict[str, str]) -> Any:
    servers = certified_servers(broker) if properties["security.protocol"] == "SSL" else secured_servers(broker)
    build = of(broker, topic).set_bootstrap_servers(servers).set_properties(properties)
    return build.set_bounded(KafkaOffsetsInitializer.latest()).build()


def sink_of(broker: Broker, topic: str, properties: dict[str, str]) -> Any:
    servers = certified_servers(broker) if properties["security.protocol"] == "SSL" else secured_servers(broker)
    build = builder(broker, topic).set_bootstrap_servers(servers).set_transactional_id_prefix(topic)
    for key, value in properties.items():
        build.set_property(key, value)
    return build.build()


@pytest.mark.parametrize("login", ["PLAIN", "SCRAM-SHA-512", "certificate"])
def test_a_transaction_is_written_committed_and_read(
    secured: Any,
    name: str,
    login: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    broker, properties = secured
    caplog.set_level(logging.DEBUG)
    if login == "SCRAM-SHA-512":
        add_scram_user(broker, "scrambled")
        properties = properties | {"sasl.mechanism": login, "sasl.username": "scrambled"}
    elif login == "certificate":
        ca = properties["ssl.ca.location"]
        properties = {
            "security.protocol": "SSL",
            "ssl.ca.location": ca,
            "ssl.certificate.location": str(Path(ca).with_name("client.pem")),
            "ssl.key.location": str(Path(ca).with_name("client.key")),
        }
    topic = broker.create_topic(name)
    sink = sink_of(broker, topic, properties)
    sink.check_start(1)
    writer = open_writer(sink)
    write(writer, ["a", "b"])
    committables = barrier(writer)
    assert broker.values(topic) == []
    assert writer.committer.commit(committables) == []
    writer.close()
    sink.job_refused()  # gives the prefix back
    reading = Reading(source_of(broker, topic, properties))
    assert reading.until() == ["a", "b"]
    assert SECRET not in repr(sink) + repr(reading.source) + repr(committables)
    # Also with all logs on: the second client would log what it sends, the password too (see TransactionClient).
    captured = capfd.readouterr()
    assert SECRET not in caplog.text + captured.out + captured.err


def test_who_sees_a_topic_but_may_not_use_it_is_told_so_before_the_start(secured: Any, name: str) -> None:
    broker, properties = secured
    topic = broker.create_topic(name)
    guest = properties | {"sasl.username": "guest"}
    allow(broker, "TOPIC", topic, "DESCRIBE")
    with pytest.raises(KafkaError, match=f"sees topic '{topic}' but lacks the right to READ it"):
        source_of(broker, topic, guest).create_splits(1)
    with pytest.raises(KafkaError, match=f"sees topic '{topic}' but lacks the right to WRITE it"):
        sink_of(broker, topic, guest).check_start(1)
    allow(broker, "TOPIC", topic, "READ", "WRITE")
    assert len(source_of(broker, topic, guest).create_splits(1)) == 1
    sink = sink_of(broker, topic, guest)
    with pytest.raises(KafkaError, match=f"may not use transactional ids that begin with '{topic}'"):
        sink.check_start(1)
    sink.job_refused()


def test_what_is_written_exactly_once_has_to_be_readable_too(secured: Any, name: str) -> None:
    """The place of a record of each transaction is asked for at the barrier: not then is it to be found out."""
    broker, properties = secured
    topic = broker.create_topic(name)
    guest = properties | {"sasl.username": "guest"}
    allow(broker, "TOPIC", topic, "DESCRIBE", "WRITE")
    allow(broker, "TRANSACTIONAL_ID", topic, "DESCRIBE", "WRITE", prefixed=True)
    allow(broker, "GROUP", f"{topic}-tidegate-owner", "READ")
    with pytest.raises(KafkaError, match=f"sees topic '{topic}' but lacks the right to READ it"):
        sink_of(broker, topic, guest).check_start(1)
    writer = open_writer(sink_of(broker, topic, guest))  # as with topics that a selector chooses
    write(writer, ["a"])
    with pytest.raises(KafkaError, match=f"{topic}, partition 0: TopicAuth.*ACL of the topic: operation Read"):
        barrier(writer)
    writer.close()
    allow(broker, "TOPIC", topic, "READ")
    sink = sink_of(broker, topic, guest)
    sink.check_start(1)
    writer = open_writer(sink)
    write(writer, ["b"])
    commit(writer.committer, barrier(writer))
    writer.close()
    sink.job_refused()
    assert broker.values(topic) == ["b"]


def test_who_may_not_use_the_group_that_holds_a_prefix_is_told_so_before_the_start(secured: Any, name: str) -> None:
    broker, properties = secured
    topic = broker.create_topic(name)
    guest = properties | {"sasl.username": "guest"}
    allow(broker, "TOPIC", topic, "READ", "WRITE")
    allow(broker, "TRANSACTIONAL_ID", topic, "DESCRIBE", "WRITE", prefixed=True)
    wanted = f"may not use the consumer group '{topic}-tidegate-owner'.*operation Read .*resource type Group"
    for right in ("", "DESCRIBE"):  # to see the members, but not to be one
        if right:
            allow(broker, "GROUP", f"{topic}-tidegate-owner", right)
        sink = sink_of(broker, topic, guest)
        with pytest.raises(KafkaError, match=wanted) as refusal:
            sink.check_start(1)
        assert not isinstance(refusal.value, BrokerUnavailableError)  # trying again would not help
        assert SECRET not in str(refusal.value)
        sink.job_refused()
    allow(broker, "GROUP", f"{topic}-tidegate-owner", "READ")
    sink = sink_of(broker, topic, guest)
    sink.check_start(1)
    sink.job_refused()


def test_without_a_prefix_no_right_to_a_group_is_needed(secured: Any, name: str) -> None:
    broker, properties = secured
    topic = broker.create_topic(name)
    guest = properties | {"sasl.username": "guest"}
    allow(broker, "TOPIC", topic, "READ", "WRITE")
    allow(broker, "TRANSACTIONAL_ID", "tidegate-", "DESCRIBE", "WRITE", prefixed=True)
    build = builder(broker, topic).set_bootstrap_servers(secured_servers(broker))
    for key, value in guest.items():
        build.set_property(key, value)
    sink = build.build()
    sink.check_start(1)
    writer = open_writer(sink)
    write(writer, ["a"])
    commit(writer.committer, barrier(writer))
    writer.close()
    assert broker.values(topic) == ["a"]


def allow(broker: Broker, kind: str, name: str, *operations: str, prefixed: bool = False) -> None:
    """The guest may do these; returns when the broker knows."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    permission = AclPermissionType.ALLOW
    rules = [
        AclBinding(ResourceType[kind], name, pattern, "User:guest", "*", AclOperation[operation], permission)
        for operation in operations
    ]
    for answer in admin.create_acls(rules).values():
        answer.result(20)


@pytest.mark.parametrize(
    ("wrong", "start"),
    [
        pytest.param({"sasl.password": "not-this-one"}, lambda *a: sink_of(*a).check_start(1), id="password"),
        pytest.param(
            {"ssl.ca.location": "/etc/ssl/certs/ca-certificates.crt"},
            lambda *a: source_of(*a).create_splits(1),
            id="certificate",
        ),
        pytest.param({"sasl.username": "guest"}, lambda *a: sink_of(*a).check_start(1), id="no rights to write"),
        pytest.param({"sasl.username": "guest"}, lambda *a: source_of(*a).create_splits(1), id="no rights to read"),
    ],
)
def test_who_may_not_in_is_told_so_without_a_secret(
    secured: Any,
    name: str,
    wrong: dict[str, str],
    start: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    broker, properties = secured
    if "sasl.username" not in wrong:  # to the client such a broker is one that does not answer
        monkeypatch.setattr(admin, "_SECONDS", 2.0)
    topic = broker.create_topic(name)
    with pytest.raises(KafkaError) as refusal:
        start(broker, topic, properties | wrong)
    text = str(refusal.value)
    assert "KafkaS" in text
    assert "sasl.username" not in wrong or "no right to see it" in text
    assert secured_servers(broker) in text
    assert SECRET not in text + caplog.text
    assert "not-this-one" not in text + caplog.text
