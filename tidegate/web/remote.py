"""Calls to the ports of running jobs."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidegate.common.errors import TidegateError, present
from tidegate.jobmanager.job_view import JobView
from tidegate.web.registry import JobRecord

_CONNECT_TIMEOUT_S = 5.0


class RemoteJobError(TidegateError):
    """The job does not answer, or refuses. `status`: of its answer, 0 without one."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def call(job: JobRecord, method: str, path: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON answer to a path below the job's own. Waits as long as the job takes. Raises RemoteJobError."""
    return dict(json.loads(_ask(job, method, path, arguments) or b"{}"))


def view_of(job: JobRecord) -> JobView:
    """What the job has published. Raises RemoteJobError."""
    try:
        return JobView.from_json(_ask(job, "GET", "/view", None))
    except msgspec.DecodeError as error:
        raise RemoteJobError(f"{_name(job)}: it runs another version of Tidegate ({error})") from error


def _ask(job: JobRecord, method: str, path: str, arguments: dict[str, Any] | None) -> bytes:
    connection = connect(job.url, job.authority)
    body = None if arguments is None else json.dumps(arguments)
    headers = {"Authorization": f"Bearer {job.token}", "Content-Type": "application/json"}
    try:
        connection.connect()
        present(connection.sock, "the socket of an open connection").settimeout(None)
        connection.request(method, f"/v1/jobs/{job.job_id}{path}", body, headers)
        response = connection.getresponse()
        answer = response.read()
        refusal = "" if response.status == 200 else str(json.loads(answer or b"{}").get("error", response.reason))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = "it ended meanwhile" if isinstance(error, ConnectionError | http.client.HTTPException) else str(error)
        raise RemoteJobError(f"{_name(job)} does not answer: {reason}") from error
    finally:
        connection.close()
    if refusal:
        raise RemoteJobError(f"{_name(job)}: {refusal}", response.status)
    return answer


def connect(url: str, authority: str = "") -> http.client.HTTPConnection:
    """A connection that is not open yet. `authority`: what an https port is checked against, besides its name in the
    URL; "": the authorities of the system. Raises RemoteJobError."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECT_TIMEOUT_S)
    import ssl

    try:
        trusted = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise RemoteJobError(f"rest.ssl.ca {authority} cannot be used: {error}") from error
    return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=_CONNECT_TIMEOUT_S, context=trusted)


def _name(job: JobRecord) -> str:
    return f"job {job.job_id} ({job.job_name})"
