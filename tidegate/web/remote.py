"""Calls to the ports of running jobs.

A look is answered at once or not at all. A change may take as long as the job takes (a savepoint of a large state), so
whoever waits for one looks from time to time whether the process still answers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidegate.common.errors import TidegateError, present
from tidegate.jobmanager.job_view import JobView
from tidegate.web.registry import JobRecord, jobs_directory

_CONNECT_TIMEOUT_S = 5.0
_LOOK_S = 3.0  # a job answers from its published view, at once: one that is silent for longer is frozen
_PROBE_EVERY_S = 5.0
_PROBES_MISSED = 4  # one after the other, until a change is waited for no more
_STATE_S = 90.0  # looks at state wait for the workers, in MICRO_BATCH mode for the next batch


class RemoteJobError(TidegateError):
    """The job does not answer, or refuses. `status`: of its answer, 0 without one. `retry_after`: as it said it."""

    def __init__(self, text: str, status: int = 0, retry_after: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after


def call(job: JobRecord, method: str, path: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON answer to a path below the job's own. A change is waited for as long as the job takes and its process
    answers, a look for some seconds. Raises RemoteJobError."""
    if method == "GET":
        return dict(json.loads(_ask(job, method, _path(job, path), arguments) or b"{}"))
    return dict(json.loads(_change(job, method, _path(job, path), arguments) or b"{}"))


def document(job: JobRecord, path: str) -> bytes:
    """What a look at a path below the job's own answers, as it comes. Raises RemoteJobError."""
    return _ask(job, "GET", _path(job, path), None)


def summary(job: JobRecord) -> dict[str, Any]:
    """What the list of jobs says of it; any version of Tidegate has that call. Raises RemoteJobError."""
    try:
        (found,) = json.loads(_ask(job, "GET", "/v1/jobs", None))["jobs"]
        return dict(found)
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteJobError(f"{_name(job)}: it runs another version of Tidegate ({error!r})") from error


def view_of(job: JobRecord) -> JobView:
    """What the job has published. Raises RemoteJobError."""
    try:
        return JobView.from_json(document(job, "/view"))
    except msgspec.DecodeError as error:
        raise RemoteJobError(f"{_name(job)}: it runs another version of Tidegate ({error})") from error


def _path(job: JobRecord, below: str) -> str:
    return f"/v1/jobs/{job.job_id}{below}"


def _change(job: JobRecord, method: str, path: str, arguments: dict[str, Any] | None) -> bytes:
    _probe(job)  # nothing is asked of a process that does not answer
    opened: list[http.client.HTTPConnection] = []
    answer: Future[bytes] = Future()

    def ask() -> None:
        try:
            answer.set_result(_ask(job, method, path, arguments, opened.append))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name=f"tidegate-ask-{job.job_id[:8]}", daemon=True).start()
    missed = 0
    while not wait([answer], _PROBE_EVERY_S).done:
        try:
            _probe(job)
            missed = 0
        except RemoteJobError as error:
            missed += 1
            if missed >= _PROBES_MISSED and not answer.done():
                for connection in opened:
                    _cut(connection)
                raise RemoteJobError(
                    f"{error}; it did so when it was asked, so what was asked for may be done all the same"
                ) from error
    return answer.result()


def _probe(job: JobRecord) -> None:
    _ask(job, "GET", "/v1/jobs", None)


def _cut(connection: http.client.HTTPConnection) -> None:
    """Its thread gets an error."""
    with contextlib.suppress(OSError):
        present(connection.sock, "the socket of an open connection").shutdown(socket.SHUT_RDWR)


def _patience(method: str, path: str) -> float | None:
    """None: whoever asks looks himself whether the job still answers."""
    if method != "GET":
        return None
    return _STATE_S if "/state/" in path else _LOOK_S


def _ask(
    job: JobRecord,
    method: str,
    path: str,
    arguments: dict[str, Any] | None,
    opened: Callable[[http.client.HTTPConnection], None] = lambda connection: None,
) -> bytes:
    connection = connect(job.url, job.authority)
    body = None if arguments is None else json.dumps(arguments)
    headers = {"Authorization": f"Bearer {job.token}", "Content-Type": "application/json"}
    try:
        connection.connect()
        opened(connection)
        present(connection.sock, "the socket of an open connection").settimeout(_patience(method, path))
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        refusal = "" if response.status == 200 else str(json.loads(answer or b"{}").get("error", response.reason))
    except TimeoutError as error:
        raise RemoteJobError(
            f"{_name(job)} does not answer: its process {job.pid} is there, but stopped or overloaded"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = "it ended meanwhile" if isinstance(error, ConnectionError | http.client.HTTPException) else str(error)
        raise RemoteJobError(f"{_name(job)} does not answer: {reason}") from error
    finally:
        connection.close()
    if response.status == 401:  # of the job, not of whoever asks us: that has been looked at before
        raise RemoteJobError(f"{_name(job)}: its port does not take the token of its file in {jobs_directory()}", 409)
    if refusal:
        raise RemoteJobError(f"{_name(job)}: {refusal}", response.status, response.headers.get("Retry-After"))
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
