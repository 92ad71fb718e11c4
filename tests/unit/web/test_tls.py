"""Ports beyond the loopback: refused without TLS; https for commands and browsers; odd callers."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.web.web_kit import FakeJobs
from tidegate.cli.main import main
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.web.job_port import JobPort
from tidegate.web.registry import running_jobs
from tidegate.web.remote import RemoteJobError, call, view_of
from tidegate.web.rest import RestServer
from tidegate.web.rest_settings import RestSettings, Tls

JOB = "abcd" * 8


def make_certificate(folder: Path, name: str, password: bytes | None = None) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    files = folder / f"{name}.crt", folder / f"{name}.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files[1].write_bytes(key.private_bytes(pem, form, lock))
    return str(files[0]), str(files[1])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "port")


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, str]) -> Iterator[JobPort]:
    """The port of a job on every interface, found by the name that its certificate has."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = JobPort(
        FakeJobs(), JOB, "my job", 1.0, RestSettings("0.0.0.0", 0, Tls(*files, None, files[0]), "localhost")
    )
    found.open()
    found._thread.join()
    yield found
    found.close()


def given(values: dict[str, Any]) -> RestSettings | None:
    return RestSettings.from_configuration(Configuration.from_dict(values))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.3.4", "my-machine", "169.254.1.1", "2001:db8::1", ""])
def test_another_interface_than_the_loopback_is_refused_without_tls(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rest\.ssl\.enabled"):
        given({"rest.bind-address": host})
    with pytest.raises(ConfigurationError, match=r"rest\.ssl\.enabled"):
        RestServer(FakeJobs(), RestSettings(host))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.5.5", "::1", "localhost"])
def test_the_loopback_needs_none(host: str) -> None:
    found = given({"rest.bind-address": host})
    assert found is not None
    assert found.url(5).startswith("http://")


def test_the_settings_come_from_the_configuration(files: tuple[str, str]) -> None:
    wanted = {"rest.bind-address": "0.0.0.0", "rest.ssl.certificate": files[0], "rest.ssl.key": files[1]}
    found = given({**wanted, "rest.ssl.enabled": "true"})
    assert found is not None
    assert found.tls == Tls(*files)
    assert given({**wanted, "security.ssl.rest.enabled": "true"}) == found  # Flink's name
    for missing in ("rest.ssl.certificate", "rest.ssl.key"):
        with pytest.raises(ConfigurationError, match=f"needs {missing}"):
            given({k: v for k, v in {**wanted, "rest.ssl.enabled": "true"}.items() if k != missing})


def test_files_that_are_no_certificate_are_told_before_the_job_starts(tmp_path: Path, files: tuple[str, str]) -> None:
    other, text = make_certificate(tmp_path, "other"), tmp_path / "text"
    text.write_text("no certificate")
    base = {"rest.ssl.enabled": "true"}
    for certificate, key in ((str(text), files[1]), ("/nowhere", files[1]), (files[0], other[1])):
        with pytest.raises(ConfigurationError, match="in PEM"):
            given({**base, "rest.ssl.certificate": certificate, "rest.ssl.key": key})
    with pytest.raises(ConfigurationError, match="in PEM"):
        given({**base, "rest.ssl.certificate": files[0], "rest.ssl.key": files[1], "rest.ssl.ca": str(text)})


def test_a_key_with_a_password(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "locked", b"hunter2")
    base = {"rest.ssl.enabled": "true", "rest.ssl.certificate": certificate, "rest.ssl.key": key}
    assert given({**base, "rest.ssl.key-password": "hunter2"}) is not None
    for wrong in ({}, {"rest.ssl.key-password": "hunter3"}):
        with pytest.raises(ConfigurationError, match="in PEM") as raised:
            given({**base, **wrong})
        assert "hunter" not in str(raised.value)


def test_the_port_is_named_as_its_certificate_has_it(files: tuple[str, str]) -> None:
    base = {"rest.ssl.enabled": "true", "rest.ssl.certificate": files[0], "rest.ssl.key": files[1]}
    urls = {}
    for name, more in (("bind", {"rest.bind-address": "::1"}), ("all", {"rest.bind-address": "0.0.0.0"})):
        found, named = given({**base, **more}), given({**base, **more, "rest.address": "jobs.example.org"})
        assert found is not None
        assert named is not None
        assert named.url(7) == "https://jobs.example.org:7"
        urls[name] = found.url(7)
    assert urls == {"bind": "https://[::1]:7", "all": f"https://{socket.gethostname()}:7"}


def test_a_command_speaks_https_and_checks_the_certificate(
    port: JobPort, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = running_jobs()
    assert record.url.startswith("https://localhost:")
    assert view_of(record).job_id == JOB
    assert call(record, "POST", "/savepoint", {"directory": "/d"}) == {"path": "/d/savepoint-1"}
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["job_id"] == JOB
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    another = make_certificate(tmp_path, "another")[0]
    for change in ({"authority": another}, {"authority": ""}, {"url": record.url.replace("localhost", "127.0.0.2")}):
        with pytest.raises(RemoteJobError, match="CERTIFICATE_VERIFY_FAILED"):
            view_of(type(record)(**{**fields, **change}))
    with pytest.raises(RemoteJobError, match=r"rest\.ssl\.ca"):
        view_of(type(record)(**{**fields, "authority": "/nowhere"}))


def test_the_tokens_hold_over_https_and_the_cookie_never_leaves_it(port: JobPort, files: tuple[str, str]) -> None:
    (record,) = running_jobs()
    trusted = ssl.create_default_context(cafile=files[0])

    def ask(method: str, path: str, token: str, body: Any = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection("localhost", urlsplit(record.url).port, timeout=10, context=trusted)
        connection.request(method, path, body and json.dumps(body), {"Authorization": f"Bearer {token}"})
        return connection.getresponse()

    assert ask("GET", f"/v1/jobs/{JOB}", "wrong").status == 401
    assert ask("GET", f"/v1/jobs/{JOB}", record.read_token).status == 200
    assert ask("POST", f"/v1/jobs/{JOB}/cancel", record.read_token).status == 403
    assert "; Secure" in ask("POST", "/v1/login", "", {"token": record.token}).headers["Set-Cookie"]


def test_callers_that_speak_no_tls_harm_nobody(port: JobPort) -> None:
    (record,) = running_jobs()
    address = "127.0.0.1", urlsplit(record.url).port or 0
    silent = socket.create_connection(address, timeout=10)
    plain = socket.create_connection(address, timeout=10)
    plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with contextlib.suppress(ConnectionError):  # cut off, or told by an alert of TLS
        assert b"HTTP" not in plain.recv(4096)
    assert view_of(record).job_id == JOB  # while one hangs in its handshake
    silent.close()
    plain.close()


def test_the_page_of_all_jobs_beyond_the_loopback_needs_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["ui", "--bind-address", "0.0.0.0"]) == 1
    assert "rest.ssl" in capsys.readouterr().err
    assert main(["ui", "--bind-address", "0.0.0.0", "--certificate", "x"]) == 1
    assert "--key" in capsys.readouterr().err
