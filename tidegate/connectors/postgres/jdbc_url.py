"""JDBC urls of PostgreSQL, as they stand in a program for Flink, translated for libpq."""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import unquote

from tidegate.common.errors import ConfigurationError

_FORM = "jdbc:postgresql://host:5432/database"
_SERVERS = {
    "any": "any",
    "primary": "primary",
    "master": "primary",
    "secondary": "standby",
    "slave": "standby",
    "preferSecondary": "prefer-standby",
    "preferSlave": "prefer-standby",
    "preferPrimary": "any",  # libpq has no such wish; a writer of its own would name the primary
}
_SAME = {  # by another name, or by another way to write it
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    "gssEncMode": "gssencmode",
    "kerberosServerName": "krbsrvname",
    "channelBinding": "channel_binding",
    "requireAuth": "require_auth",
}
_NO_EFFECT = {
    *("reWriteBatchedInserts", "stringtype", "prepareThreshold", "preparedStatementCacheQueries", "autosave"),
    *("preparedStatementCacheSizeMiB", "defaultRowFetchSize", "binaryTransfer", "binaryTransferEnable", "sslfactory"),
    *("binaryTransferDisable", "loginTimeout", "socketTimeout", "cancelSignalTimeout", "sendBufferSize"),
    *("receiveBufferSize", "logUnclosedConnections", "logServerErrorDetail", "assumeMinServerVersion"),
    *("databaseMetadataCacheFields", "databaseMetadataCacheFieldsMiB", "maxResultBuffer", "escapeSyntaxCallMode"),
    *(
        "adaptiveFetch",
        "adaptiveFetchMinimum",
        "adaptiveFetchMaximum",
        "quoteReturningIdentifiers",
        "cleanupSavepoints",
    ),
    *("hostRecheckSeconds", "disableColumnSanitiser", "unknownLength", "readOnlyMode", "preferQueryMode"),
    *("protocolVersion", "loggerLevel", "loggerFile", "allowEncodingChanges", "tcpNoDelay", "sslResponseTimeout"),
    *(
        "groupStartupParameters",
        "hideUnprivilegedObjects",
        "maxSendBufferSize",
        "compatible",
        "convertBooleanToNumeric",
    ),
}
_log = logging.getLogger(__name__)


def parameters_of(connector: str, url: str) -> dict[str, str]:
    """What libpq calls what the url says. Settings that only make Java's driver quicker are left out, and logged."""
    rest = url.removeprefix("jdbc:postgresql:")
    if rest == url:
        raise ConfigurationError(
            f"{connector}: {url.split('://')[0].split('?')[0]} is not supported; a url of PostgreSQL is: {_FORM}"
        )
    place, _, query = rest.partition("?")
    found = _place(connector, place)
    given = dict(_pairs(query))
    unknown, idle = [], []
    for name, value in given.items():
        if name in _NO_EFFECT:
            idle.append(name)
        elif name in _SAME:
            found[_SAME[name]] = value
        elif name in _TRANSLATED:
            _TRANSLATED[name](connector, value, found)
        elif name in _of_libpq() and name != "replication":
            found[name] = " ".join([*filter(None, [found.get(name)]), value]) if name == "options" else value
        else:
            unknown.append(name)
    if unknown:
        raise ConfigurationError(
            f"{connector}: the JDBC url has {', '.join(unknown)}, for which there is nothing here: leave it out"
        )
    if found.get("sslmode") == "verify-full" and "NonValidating" in given.get("sslfactory", ""):
        found["sslmode"] = "require"
    if idle:
        _log.info("%s: of the JDBC url, %s: without effect, since there is no Java driver", connector, ", ".join(idle))
    return found


def _place(connector: str, text: str) -> dict[str, str]:
    """`database`, `/`, or `//host:port,host:port/database`; a host that is not named is this one, not a socket."""
    if not text.startswith("//"):
        database = text.removeprefix("/")
        return {"host": "localhost", **({"dbname": unquote(database)} if database else {})}
    servers, _, database = text[2:].partition("/")
    found = {}
    login, at, servers = servers.rpartition("@")  # which libpq understands, and Java's driver does not
    if at:
        user, _, password = login.partition(":")
        found = {name: unquote(value) for name, value in (("user", user), ("password", password)) if value}
    hosts, ports = [], []
    for server in servers.split(","):
        host, bracket, port = server.rpartition("]") if server.startswith("[") else ("", "", server)
        if not bracket:
            host, _, port = server.partition(":")
        port = port.removeprefix(":")
        if port and not port.isdigit():
            raise ConfigurationError(
                f"{connector}: the JDBC url has a port that is no number; a url of PostgreSQL is: {_FORM}"
            )
        hosts.append(unquote(host.removeprefix("[")) or "localhost")
        ports.append(port or "5432")
    found |= {"host": ",".join(hosts), "port": ",".join(ports)}
    return {**found, "dbname": unquote(database)} if database else found


def _pairs(query: str) -> list[tuple[str, str]]:
    pairs = []
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        pairs.append((unquote(name), unquote(value)))
    return pairs


def _one_of(connector: str, name: str, value: str, choices: dict[str, str]) -> str:
    if value not in choices:
        raise ConfigurationError(
            f"{connector}: {name} of the JDBC url has to be one of {', '.join(choices)}, got {value!r}"
        )
    return choices[value]


def _setting(found: dict[str, str], name: str, value: str) -> None:
    """As libpq passes settings of a session on: blanks and backslashes are escaped."""
    text = value.replace("\\", "\\\\").replace(" ", "\\ ")
    found["options"] = " ".join([*filter(None, [found.get("options")]), f"-c {name}={text}"])


def _schema(connector: str, value: str, found: dict[str, str]) -> None:
    _setting(found, "search_path", value)


def _read_only(connector: str, value: str, found: dict[str, str]) -> None:
    if _one_of(connector, "readOnly", value, {"true": "on", "false": ""}):
        _setting(found, "default_transaction_read_only", "on")


def _server_type(connector: str, value: str, found: dict[str, str]) -> None:
    found["target_session_attrs"] = _one_of(connector, "targetServerType", value, _SERVERS)


def _balanced(connector: str, value: str, found: dict[str, str]) -> None:
    if _one_of(connector, "loadBalanceHosts", value, {"true": "random", "false": ""}):
        found["load_balance_hosts"] = "random"


def _ssl(connector: str, value: str, found: dict[str, str]) -> None:
    if _one_of(connector, "ssl", value, {"": "on", "true": "on", "false": ""}):
        found.setdefault("sslmode", "verify-full")  # what the driver does, unless sslmode says otherwise


def _keep_alive(connector: str, value: str, found: dict[str, str]) -> None:
    found["keepalives"] = _one_of(connector, "tcpKeepAlive", value, {"true": "1", "false": "0"})


_TRANSLATED: dict[str, Callable[[str, str, dict[str, str]], None]] = {
    "currentSchema": _schema,
    "readOnly": _read_only,
    "targetServerType": _server_type,
    "loadBalanceHosts": _balanced,
    "ssl": _ssl,
    "tcpKeepAlive": _keep_alive,
}


def _of_libpq() -> set[str]:
    from psycopg import pq

    return {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
