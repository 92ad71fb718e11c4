"""Where a port listens, under which name it is reached, and how it is encrypted.

Whoever has the token may stop the job, and the token is in every request: on another interface than the loopback there
is no port without TLS. That is held here, in the one place where settings of a port are made.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

_WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Tls:
    """Files in PEM."""

    certificate: str  # the server's, followed by those between it and the authority
    key: str
    password: str | None = None  # of the key
    authority: str = ""  # what clients trust; "": the authorities of their system

    def context(self) -> ssl.SSLContext:
        """For the server. Raises ConfigurationError when the files are not what they should be."""
        import ssl  # takes a while, and few jobs need it

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a password the default would be to ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, self.password or "")
            if self.authority:
                ssl.create_default_context(cafile=self.authority)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            files = ", ".join(filter(None, (self.certificate, self.key, self.authority)))
            raise ConfigurationError(
                f"the port cannot be encrypted with {files}: {error}. rest.ssl.certificate, rest.ssl.key and "
                "rest.ssl.ca are files in PEM, and the key belongs to the certificate"
            ) from error
        return context


@dataclass(frozen=True)
class RestSettings:
    """Raises ConfigurationError for an interface beyond the loopback without TLS."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    tls: Tls | None = None
    address: str = ""  # the name by which callers reach it; "": what it listens on, or this machine's name

    def __post_init__(self) -> None:
        if self.tls is None and not is_loopback(self.host):
            raise ConfigurationError(
                f"rest.bind-address = {self.host} is another interface than the loopback: whoever reads the token on "
                "its way could stop the job. Set rest.ssl.enabled with rest.ssl.certificate and rest.ssl.key (PEM), or "
                "leave the port on 127.0.0.1 and put a proxy with TLS before it"
            )

    @staticmethod
    def from_configuration(configuration: Configuration) -> RestSettings | None:
        """None: the job opens no port. Raises ConfigurationError, also for files that TLS cannot use."""
        if not options.read(configuration, options.REST_ENABLED):
            return None
        return RestSettings(
            options.read(configuration, options.REST_BIND_ADDRESS),
            options.read(configuration, options.REST_PORT),
            _tls(configuration),
            options.read(configuration, options.REST_ADDRESS) or "",
        )

    def url(self, port: int) -> str:
        name = self.address or (socket.gethostname() if self.host in _WILDCARDS else self.host)
        return f"{'https' if self.tls else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: what it stands for may change


def _tls(configuration: Configuration) -> Tls | None:
    if not options.read(configuration, options.REST_SSL_ENABLED):
        return None
    files = {}
    for option in (options.REST_SSL_CERTIFICATE, options.REST_SSL_KEY):
        files[option.key] = options.read(configuration, option)
        if not files[option.key]:
            raise ConfigurationError(f"rest.ssl.enabled needs {option.key}: a file in PEM")
    authority = options.read(configuration, options.REST_SSL_CA)
    tls = Tls(
        os.path.abspath(files["rest.ssl.certificate"]),
        os.path.abspath(files["rest.ssl.key"]),
        options.read(configuration, options.REST_SSL_KEY_PASSWORD),
        os.path.abspath(authority) if authority else "",
    )
    tls.context()  # says now what is wrong with the files
    return tls
