"""The calls over HTTP: paths, what each needs, and its answer. No sockets here (`rest.py`), no HTML (`static/`).

`ROUTES` is the whole list; `/openapi.json` is made of it. Errors are {"error": sentence}: 400 for a wrong request, 401
without a token, 403 when the token or the request may not change anything, 404 and 405 for what there is not, 409 when
the job cannot do it.
"""

from __future__ import annotations

import importlib.resources
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import unquote

import msgspec

from tidegate.common.errors import (
    ConfigurationError,
    StateHiddenError,
    StateNotReadableError,
    TidegateError,
    UnknownStateError,
    WrongKeyError,
)
from tidegate.web import documents, live_state
from tidegate.web.access import CSRF_HEADER, Access, Gate
from tidegate.web.jobs import Jobs, NotThereError
from tidegate.web.openapi import Route, describe
from tidegate.web.remote import RemoteJobError

log = logging.getLogger("tidegate.rest")

_MAX_LOOKS = 8
"""Looks at state under way at once: a look may wait, and the calls that anybody may make at once (`rest.py`) are four
times as many. So whoever may only look at the job does not keep others from it."""

_EVENT_S = 1.0
_KEEP_ALIVE_S = 10.0
_SCRIPT = "text/javascript; charset=utf-8"
_STATIC = {  # the page: path -> file, content type
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    **{
        f"/{name}.js": (f"{name}.js", _SCRIPT)
        for name in ("app", "checkpoints", "dom", "figures", "graph", "metrics", "plot", "state", "views")
    },
}
JSON = "application/json"

_DIRECTORY = {"type": ["string", "null"], "description": "The folder that gets the savepoint; else the job's setting."}
_DRAIN = {"type": "boolean", "description": "Bring event time to its end first."}
_STATE_QUERY = {
    "key": {
        "schema": {"type": "array", "items": {"type": "string"}},
        "description": "A key, as JSON or, where keys are strings, as text; repeat it for several. Without: a scan.",
    },
    "level": {
        "schema": {"type": "string", "enum": ["live", "committed"], "default": "live"},
        "description": "live: what the operator would see now. committed: as of the last completed checkpoint.",
    },
    "window": {
        "schema": {"type": "string"},
        "description": "Of a state per window: one window, as JSON: [0, 1000].",
    },
    "limit": {
        "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
        "description": "Of a scan: how many entries.",
    },
}

ROUTES = (
    Route("GET", "/v1/jobs", "jobs", "All jobs, with status, duration, restarts, last checkpoint and rates."),
    Route("GET", "/v1/jobs/{job}", "job", "One job: its graph, workers, stages and the history of its status."),
    Route("GET", "/v1/jobs/{job}/view", "view", "The whole published view of the job, as the job's client has it."),
    Route("GET", "/v1/jobs/{job}/vertices", "vertices", "The vertices, with figures over their subtasks."),
    Route("GET", "/v1/jobs/{job}/vertices/{vertex}", "vertex", "One vertex with its subtasks and their metrics."),
    Route("GET", "/v1/jobs/{job}/checkpoints", "checkpoints", "Counts, spreads, restores, history of checkpoints."),
    Route(
        "GET",
        "/v1/jobs/{job}/checkpoints/{checkpoint}",
        "checkpoint",
        "One checkpoint by vertex and subtask, with those that did not answer.",
    ),
    Route("GET", "/v1/jobs/{job}/state", "states", "The keyed states, with their kinds and sizes."),
    Route(
        "GET",
        "/v1/jobs/{job}/state/{operator}/{state}",
        "state",
        "What some keys have in a state, or some of its entries; each with the checkpoint or watermark it belongs to.",
        query=_STATE_QUERY,
    ),
    Route("GET", "/v1/jobs/{job}/exceptions", "exceptions", "Failures: cause, traceback, verdict, downtime, catch-up."),
    Route("GET", "/v1/jobs/{job}/metrics", "metrics", "Every metric with its type."),
    Route("GET", "/v1/jobs/{job}/config", "config", "The settings in force, and where each came from."),
    Route("GET", "/v1/jobs/{job}/events", "events",
          "The job as server-sent events: `job` when it changes, `silent` when it does not answer, `end`.", {},
          "text/event-stream"),
    Route("POST", "/v1/jobs/{job}/savepoint", "savepoint", "Take a savepoint; answers when it is complete.",
          {"directory": _DIRECTORY}),
    Route("POST", "/v1/jobs/{job}/stop", "stop", "End the job with a savepoint; answers when it has ended.",
          {"directory": _DIRECTORY, "drain": _DRAIN}),
    Route("POST", "/v1/jobs/{job}/cancel", "cancel", "End the job at once; answers when it has ended."),
    Route("GET", "/v1/session", "session", "What the caller may do: {\"access\": \"read\" or \"full\"}."),
    Route("POST", "/v1/login", "login", "For browsers: a session in a cookie in exchange for a token.",
          {"token": {"type": "string"}}, required=("token",), public=True, sets_cookie=True),
    Route("POST", "/v1/logout", "logout", "The end of the session of the cookie.", public=True, sets_cookie=True),
    Route("GET", "/metrics", "prometheus", "The jobs that have not ended, as Prometheus text.", {}, "text/plain"),
)  # fmt: skip

_PATTERNS = [(re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path)), route) for route in ROUTES]
_PUBLIC = {(route.method, route.path) for route in ROUTES if route.public}


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Iterator[bytes] | None = None  # after the body, until it ends


def as_json(status: int, document: Any, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, msgspec.json.encode(document), headers=headers or {})


def problem(status: int, sentence: str) -> Answer:
    return as_json(status, {"error": sentence}, {"WWW-Authenticate": "Bearer"} if status == 401 else None)


class Api:
    """Thread-safe. `admit` looks at the head of a request, before its body is read; `answer` at the whole."""

    def __init__(self, jobs: Jobs, gate: Gate, closing: threading.Event) -> None:
        self._jobs = jobs
        self._gate = gate
        self._closing = closing  # the port is about to close: streams end
        self._looks = threading.BoundedSemaphore(_MAX_LOOKS)

    @staticmethod
    def is_public(method: str, path: str) -> bool:
        """Whether anybody may make the call: it shows nothing of a job."""
        return (method == "GET" and path in _STATIC) or (method, path) in _PUBLIC

    def admit(self, method: str, path: str, headers: Mapping[str, str]) -> Answer | None:
        """Why the request gets nothing; None when it is let in."""
        if self.is_public(method, path):
            return None
        changes = method != "GET"
        access = self._gate.access(headers, changes)
        if access is Access.NONE:
            return problem(401, "this call needs the job's token (Authorization: Bearer ...)")
        if changes and access is not Access.FULL:
            return problem(403, f"this needs the full token, and from a browser the header {CSRF_HEADER}")
        return None

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes, query: str = "") -> Answer:
        """To a request that was admitted. `query`: what stands behind the `?` of its address."""
        try:
            return self._dispatch(method, path, headers, body, query)
        except StateNotReadableError as error:
            return as_json(409, {"error": str(error)}, {"Retry-After": str(math.ceil(error.retry_after_s))})
        except (NotThereError, UnknownStateError) as error:
            return problem(404, str(error))
        except WrongKeyError as error:
            return problem(400, str(error))
        except StateHiddenError as error:
            return problem(403, str(error))
        except RemoteJobError as error:
            again = {} if error.retry_after is None else {"Retry-After": error.retry_after}
            return as_json(error.status or 503, {"error": str(error)}, again)
        except TidegateError as error:
            return problem(409, str(error))
        except Exception as error:
            log.exception("%s %s failed", method, path)
            return problem(500, f"{type(error).__name__}: {error}")

    def _dispatch(self, method: str, path: str, headers: Mapping[str, str], body: bytes, query: str) -> Answer:
        try:
            arguments = msgspec.json.decode(body) if body else {}
        except (ValueError, RecursionError):
            return problem(400, "the body is not JSON")
        if not isinstance(arguments, dict):
            return problem(400, "the body has to be a JSON object")
        if path in _STATIC and method == "GET":
            return _static(path)
        match (method, path):
            case ("GET", "/openapi.json"):
                return as_json(200, describe(ROUTES))
            case ("GET", "/v1/session"):
                return as_json(200, {"access": self._gate.access(headers, False).name.lower()})
        others = set()
        for pattern, route in _PATTERNS:
            found = pattern.fullmatch(path)
            if found is not None and route.method == method:
                if route.name == "state":
                    return self._state(found.groupdict(), query)
                if unknown := set(arguments) - set(route.body):
                    return problem(400, f"{route.path} does not take {', '.join(sorted(map(repr, unknown)))}")
                if route.name == "login":
                    return self._login(arguments)
                if route.name == "logout":
                    return as_json(200, {}, {"Set-Cookie": self._gate.logout(headers)})
                return self._call(route, path, found.groupdict(), arguments)
            if found is not None:
                others.add(route.method)
        if others:
            allowed = sorted(others)
            sentence = f"{path} takes {' or '.join(allowed)}, not {method}"
            return as_json(405, {"error": sentence}, {"Allow": ", ".join(allowed)})
        return problem(404, f"there is no {method} {path}: see /openapi.json")

    def _login(self, arguments: dict[str, Any]) -> Answer:
        token = arguments.get("token")
        if not isinstance(token, str):
            return problem(400, "'token' has to be a string")
        access, cookie = self._gate.login(token)
        if access is Access.NONE:
            return problem(401, "this is not the token of this port")
        return as_json(200, {"access": access.name.lower()}, {"Set-Cookie": cookie})

    def _state(self, parts: dict[str, str], query: str) -> Answer:
        try:
            operator, state = (unquote(parts[name], errors="strict") for name in ("operator", "state"))
            question = live_state.StateQuestion.parse(query)
        except ConfigurationError as error:
            return problem(400, str(error))
        except UnicodeDecodeError:
            return problem(400, "the address is not UTF-8")
        if not self._looks.acquire(blocking=False):
            raise StateNotReadableError(
                f"{_MAX_LOOKS} looks at state are under way, which is the most at once: try again"
            )
        try:
            return as_json(200, self._jobs.read_state(parts["job"], operator, state, question))
        except ConfigurationError as error:
            return problem(400, str(error))
        finally:
            self._looks.release()

    def _call(self, route: Route, path: str, parts: dict[str, str], arguments: dict[str, Any]) -> Answer:
        jobs, now = self._jobs, time.time() * 1000
        directory, drain = arguments.get("directory"), arguments.get("drain", False)
        if not isinstance(directory, str | None) or not isinstance(drain, bool):
            return problem(400, "'directory' has to be a string, 'drain' true or false")
        job = parts.get("job", "")
        match route.name:
            case "jobs":
                return as_json(200, {"jobs": jobs.summaries()})
            case "prometheus":
                from tidegate.web.prometheus import CONTENT_TYPE, text  # late: few jobs are scraped

                return Answer(200, text(jobs.running(), now), CONTENT_TYPE)
            case "savepoint":
                return as_json(200, {"path": jobs.savepoint(job, directory)})
            case "stop":
                return as_json(200, {"path": jobs.stop(job, drain, directory)})
            case "cancel":
                return as_json(200, {"status": jobs.cancel(job)})
            case "events":
                self._job_document(job)
                return Answer(200, b"", "text/event-stream", stream=self._events(job))
        proxied = jobs.document(job, path.removeprefix(f"/v1/jobs/{job}"))
        if proxied is not None:
            return Answer(200, proxied)
        view = jobs.view(job)
        if route.name == "view":
            return Answer(200, view.to_json())
        numbers = {}
        for name in parts.keys() & {"vertex", "checkpoint"}:
            if not parts[name].isascii() or not parts[name].isdigit() or len(parts[name]) > 18:
                return problem(400, f"a {name} is a number, not '{parts[name]}'")
            numbers[name] = int(parts[name])
        documents_by_name: dict[str, Callable[[], Any]] = {
            "job": lambda: documents.job(view, now),
            "vertices": lambda: documents.vertices(view),
            "vertex": lambda: documents.vertex(view, numbers["vertex"]),
            "checkpoints": lambda: documents.checkpoints(view),
            "checkpoint": lambda: documents.checkpoint(view, numbers["checkpoint"]),
            "exceptions": lambda: documents.exceptions(view),
            "metrics": lambda: documents.metrics(view),
            "states": lambda: live_state.states(view),
            "config": lambda: documents.configuration(view),
        }
        return as_json(200, documents_by_name[route.name]())

    def _job_document(self, job: str) -> dict[str, Any]:
        proxied = self._jobs.document(job, "")
        if proxied is not None:
            return dict(msgspec.json.decode(proxied))
        return documents.job(self._jobs.view(job), time.time() * 1000)

    def _events(self, job: str) -> Iterator[bytes]:
        """At most one a second; a line without meaning when nothing changes, which tells whether anybody listens."""
        last: Any = None  # what was told
        silent = 0.0
        while True:
            closing = self._closing.is_set()  # looked at first: the last view is sent too
            ended = False
            try:
                document = self._job_document(job)
                ended = document["ended_ms"] is not None
                # Durations move on by themselves: that is no event.
                told: Any = {**document, "duration_ms": None, "downtime_ms": None, "uptime_ms": None}
                event = b"event: job\ndata: " + msgspec.json.encode(document) + b"\n\n"
            except RemoteJobError as error:  # it may answer again
                told = str(error)
                event = b"event: silent\ndata: " + msgspec.json.encode({"error": told}) + b"\n\n"
            except TidegateError:
                break
            if told != last:
                last, silent = told, 0.0
                yield event
            elif silent >= _KEEP_ALIVE_S:
                silent = 0.0
                yield b": still here\n\n"
            if ended or closing:
                break
            self._closing.wait(_EVENT_S)
            silent += _EVENT_S
        yield b"event: end\ndata: {}\n\n"


@cache
def _file(name: str) -> bytes:
    return (importlib.resources.files("tidegate.web") / "static" / name).read_bytes()


def _static(path: str) -> Answer:
    name, content_type = _STATIC[path]
    return Answer(200, _file(name), content_type)
