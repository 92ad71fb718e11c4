"""Connections to PostgreSQL, and its errors as sentences. No password gets into a text from here."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.texts import bounded
from tidegate.connectors.postgres.jdbc_url import parameters_of

_WAIT_SECONDS = 30.0  # for a server that is starting again, unless `set_outage_timeout` says otherwise
_CONNECT_SECONDS = 10
_SLOW_SECONDS = 30.0  # that a commit may take before the log says so
# A network that drops packets is noticed within a minute, not after the two hours that systems allow by themselves.
_NETWORK = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_log = logging.getLogger(__name__)


class PostgresError(TidegateError):
    """The database has refused something, or does not answer; the message names the connector and what to do."""


class DatabaseUnavailableError(PostgresError):
    """The database is away, breaks the connection off or has no room. It may be over at the next try: the restart
    strategy alone decides how often a job tries again, which ends sooner when its own program fails in the same way."""


def check_installed(connector: str) -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{connector}: the package psycopg is not installed; install it with: pip install tidegate[postgres]"
        ) from error


@dataclass(frozen=True)
class DatabaseUrl:
    """Where the database is. `repr` and `str` show neither the password nor anything else that could hold one."""

    connector: str
    text: str
    user: str | None = None
    password: str | None = None
    wait_seconds: float = _WAIT_SECONDS

    @staticmethod
    def checked(connector: str, url: object, user: str | None = None, password: str | None = None) -> DatabaseUrl:
        """`postgresql://user@host:port/database`, libpq's `host=... dbname=...`, or a JDBC url."""
        import psycopg

        if not isinstance(url, str) or not url.strip():
            raise ConfigurationError(f"{connector}: a url such as postgresql://user@host:5432/database is needed")
        text = url.strip()
        try:
            if text.startswith("jdbc:"):
                text = psycopg.conninfo.make_conninfo(**parameters_of(connector, text))
            psycopg.conninfo.conninfo_to_dict(text)
        except psycopg.Error:
            raise ConfigurationError(
                f"{connector}: the url is none that PostgreSQL understands; it has the form "
                "postgresql://user@host:5432/database"
            ) from None
        return DatabaseUrl(connector, text, user, password)

    def waiting(self, outage_ms: int | None) -> DatabaseUrl:
        """With the builder's `set_outage_timeout`; None: it was not called."""
        return self if outage_ms is None else replace(self, wait_seconds=outage_ms / 1000)

    def connect(self, autocommit: bool = True, wait: bool = True) -> Any:
        """A connection. With `wait`, a server that is away or starting is waited for, up to a limit, and the log says
        so."""
        import psycopg

        began, said = time.monotonic(), False
        deadline = began + (self.wait_seconds if wait else 0.0)
        while True:
            try:
                connection = psycopg.connect(self._conninfo(), autocommit=autocommit)
            except psycopg.OperationalError as error:
                final = any(sign in str(error) for sign in _FINAL)
                told = self.refused("connecting", error)
                if final or time.monotonic() >= deadline:
                    raise told from None
                if not said:
                    said = True
                    _log.warning(
                        "%s; it is waited for, for at most %.0f s (set_outage_timeout), and nothing is lost",
                        bounded(str(told), 500),
                        self.wait_seconds,
                    )
                time.sleep(0.2)
            else:
                if said:
                    seconds = time.monotonic() - began
                    _log.warning("%s, %s: the database answers again, after %.0f s", self.connector, self, seconds)
                return connection

    def for_replication(self) -> bytes:
        """For libpq, in the mode that hands out changes."""
        return self._conninfo(replication="database").encode()

    def _conninfo(self, **more: str) -> str:
        """With user and password that were given beside the url, and what the url does not say."""
        import psycopg

        settings: dict[str, Any] = {**psycopg.conninfo.conninfo_to_dict(self.text), **more}
        settings.setdefault("connect_timeout", _CONNECT_SECONDS)
        settings.setdefault("application_name", "tidegate")
        for name, value in _NETWORK.items():
            settings.setdefault(name, value)
        settings |= {k: v for k, v in {"user": self.user, "password": self.password}.items() if v is not None}
        return psycopg.conninfo.make_conninfo(**settings)

    @contextlib.contextmanager
    def told_when_slow(self, doing: str) -> Iterator[None]:
        """Around a commit: one that takes long is in the log while it does, and again when it is over. A server that is
        frozen, or waits for a lock, answers nothing, and its connection looks well."""
        began = time.monotonic()
        said = threading.Event()

        def tell() -> None:
            said.set()
            _log.warning(
                "%s, %s: %s takes longer than %.0f s; it is waited for. pg_stat_activity and pg_locks tell what the "
                "database waits for",
                self.connector,
                self,
                doing,
                _SLOW_SECONDS,
            )

        timer = threading.Timer(_SLOW_SECONDS, tell)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if said.is_set():
                _log.warning("%s, %s: %s took %.0f s", self.connector, self, doing, time.monotonic() - began)

    def refused(self, doing: str, error: Exception) -> PostgresError:
        """What the database's error means to the user."""
        import psycopg

        text = " ".join(str(error).split())
        for secret in (self.password, psycopg.conninfo.conninfo_to_dict(self.text).get("password")):
            if secret:
                text = text.replace(str(secret), "***")
        hint = ""
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            hint = ". This user lacks the right: GRANT it"
        elif isinstance(error, psycopg.errors.UndefinedTable):
            hint = ". Create the table, or check its name and the search_path"
        elif isinstance(error, psycopg.errors.DiskFull):
            hint = ". The database's disk is full; the job goes on from its last checkpoint once there is room"
        elif "permission denied to start WAL sender" in text:
            hint = ". This user may not replicate: ALTER ROLE ... REPLICATION"
        elif isinstance(error, psycopg.OperationalError) and doing == "connecting":
            hint = ". Check host, port, database, user and password of the url"
        final = not isinstance(error, psycopg.OperationalError) or any(sign in text for sign in _FINAL)
        kind = PostgresError if final else DatabaseUnavailableError
        return kind(f"{self.connector}, {self}: {doing}: {text}{hint}")

    def __str__(self) -> str:
        import psycopg

        parts = psycopg.conninfo.conninfo_to_dict(self.text)
        return f"{parts.get('host', 'local')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"

    __repr__ = __str__


_FINAL = ("password authentication failed", "does not exist", "no pg_hba.conf entry", "not resolve", "no password")
