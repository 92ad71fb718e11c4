"""The properties of a Kafka client, checked and translated. No value of a secret gets into a text from here.

Two libraries talk to the broker: librdkafka (confluent-kafka) moves the records; kafka-python asks about transactions
and ends them from processes that did not begin them, which librdkafka cannot. A job gives one set of properties, by
librdkafka's names, which are those of Kafka's own clients wherever both have the setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidegate.common.errors import ConfigurationError, TidegateError

_OF_JAVA_ONLY = frozenset(
    {
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "partition.discovery.interval.ms",
        "commit.offsets.on.checkpoint",
        "client.id.prefix",
        "register.consumer.metrics",
    }
)
"""Of Flink or of Kafka's Java classes: understood elsewhere or without a meaning here, unknown to librdkafka."""

_SECRET = re.compile(
    r"password|passphrase|secret|jaas|\.key\.pem$|token|keystore|credential|oauthbearer\.config|assertion",
    re.IGNORECASE,
)
_JAAS = re.compile(r"(username|password)\s*=\s*\"((?:[^\"\\]|\\.)*)\"")

_PYTHON_NAMES = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}


class KafkaError(TidegateError):
    """Kafka has refused something, or does not answer; the message names the connector, the setting and what to do."""


class BrokerUnavailableError(KafkaError):
    """No broker answers, or none that could do it now. It may be over at the next try: the restart strategy alone
    decides how often a job tries again, which ends sooner when its own program fails in the same way each time."""


class _Secret(str):
    """Text that does not show itself when a library writes its settings into a debug log."""

    def __repr__(self) -> str:
        return "'***'"


def check_installed(connector: str, transactions: bool = False) -> None:
    try:
        import confluent_kafka  # noqa: F401

        if transactions:
            import kafka  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{connector}: the package {error.name} is not installed; install it with: pip install tidegate[kafka]"
        ) from error


def checked_property(where: str, key: object, value: object) -> tuple[str, str]:
    """Both as text. Flink takes text only; numbers and booleans are what people write."""
    if not isinstance(key, str) or not key.strip():
        raise ConfigurationError(f"{where}: the name of a property is text such as 'fetch.min.bytes', got {key!r}")
    if isinstance(value, bool):
        return key, "true" if value else "false"
    if isinstance(value, str | int | float):
        return key, str(value)
    shown = "a value" if _SECRET.search(key) else repr(value)
    raise ConfigurationError(f"{where}: the property '{key}' has to be text or a number, got {shown}")


def checked_servers(where: str, servers: object) -> str:
    if not isinstance(servers, str) or not servers.strip():
        raise ConfigurationError(
            f"{where}: bootstrap servers are text such as 'host1:9092,host2:9092', got {servers!r}"
        )
    return servers


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties as they may be printed."""
    return {key: "***" if _SECRET.search(key) else value for key, value in properties.items()}


def librdkafka_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """For confluent-kafka. A login that was written for Java (`sasl.jaas.config`) is taken apart."""
    settings: dict[str, Any] = {k: v for k, v in _with_login(properties).items() if k not in _OF_JAVA_ONLY}
    settings.setdefault("log_level", "2")  # it logs each try to reach a broker that is away; what matters is raised
    return settings


def python_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """The same connection for kafka-python. Settings that would change who may connect and cannot be translated are
    refused rather than left out."""
    properties = _with_login(properties)
    settings: dict[str, Any] = {"bootstrap_servers": properties["bootstrap.servers"].split(",")}
    for key, value in properties.items():
        if key in _PYTHON_NAMES:
            settings[_PYTHON_NAMES[key]] = _Secret(value) if _SECRET.search(key) else value
        elif key == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = value.lower() not in ("", "none")
        elif key.startswith(("ssl.", "sasl.oauthbearer", "enable.ssl")):
            raise ConfigurationError(
                f"KafkaSink: the property '{key}' is not supported with DeliveryGuarantee.EXACTLY_ONCE, because "
                "commits use a second client that does not have it. Give certificates and keys as PEM files: "
                "ssl.ca.location, ssl.certificate.location, ssl.key.location, ssl.key.password."
            )
    if "sasl_mechanism" in settings:
        settings["sasl_mechanism"] = settings["sasl_mechanism"].upper()
    if "security_protocol" in settings:
        settings["security_protocol"] = settings["security_protocol"].upper()
    if settings.get("sasl_mechanism") == "OAUTHBEARER":
        raise ConfigurationError(
            "KafkaSink: sasl.mechanism OAUTHBEARER is not supported with DeliveryGuarantee.EXACTLY_ONCE; use PLAIN, "
            "SCRAM-SHA-256, SCRAM-SHA-512 or GSSAPI, or DeliveryGuarantee.AT_LEAST_ONCE"
        )
    return settings


def _with_login(properties: Mapping[str, str]) -> dict[str, str]:
    result = dict(properties)
    if "sasl.mechanisms" in result:
        result["sasl.mechanism"] = result.pop("sasl.mechanisms")
    login = result.pop("sasl.jaas.config", None)
    if login is not None:
        found = dict(_JAAS.findall(login))
        if "username" not in found or "password" not in found:
            raise ConfigurationError(
                "Kafka: sasl.jaas.config is understood for logins with a username and a password (PLAIN and SCRAM); "
                "otherwise give librdkafka's own properties, sasl.username, sasl.password and so on"
            )
        result.setdefault("sasl.username", found["username"])
        result.setdefault("sasl.password", found["password"])
    return result


def refused(connector: str, doing: str, servers: str, error: Exception) -> KafkaError | ConfigurationError:
    """What a client's error means to the user."""
    from confluent_kafka import KafkaError as Code

    cause = error.args[0] if error.args else None
    code = cause.code() if isinstance(cause, Code) else None
    text = cause.str() if isinstance(cause, Code) else str(error)
    where = f"{connector}, bootstrap servers {servers}: {doing}"
    if code == Code._INVALID_ARG and "configuration" in text:
        return ConfigurationError(f"{connector}: {text}. Properties have librdkafka's names; see docs/connectors.md")
    if code in (Code._AUTHENTICATION, Code.SASL_AUTHENTICATION_FAILED):
        return KafkaError(f"{where}: the broker refuses the login ({text}). Check security.protocol and sasl.*")
    if code in (Code.TOPIC_AUTHORIZATION_FAILED, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
        return KafkaError(
            f"{where}: this user lacks the rights ({text}). Ask for an ACL of the topic and of the prefix"
        )
    if isinstance(cause, Code) and is_about_availability(cause):
        return BrokerUnavailableError(
            f"{where}: no broker answers ({text}). Check bootstrap.servers, the network, security.protocol and sasl.*"
        )
    return KafkaError(f"{where}: {text}")


def is_about_availability(error: Any) -> bool:
    """Of an error of librdkafka: the broker, or what it needs, is away just now."""
    from confluent_kafka import KafkaError as Code

    away = {
        Code._TRANSPORT,
        Code._TIMED_OUT,
        Code._MSG_TIMED_OUT,
        Code._TIMED_OUT_QUEUE,
        Code._ALL_BROKERS_DOWN,
        Code._RESOLVE,
        Code.REQUEST_TIMED_OUT,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_FOR_PARTITION,
        Code.BROKER_NOT_AVAILABLE,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
    return error.code() in away or bool(error.retriable())
