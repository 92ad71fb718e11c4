"""The description of the REST calls in OpenAPI's format, made of the list of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import tidegate
from tidegate.web.answer_schemas import ANSWERS, COMPONENTS


@dataclass(frozen=True)
class Route:
    method: str
    path: str  # {name} stands for one part of it
    name: str
    summary: str
    body: dict[str, Any] = field(default_factory=dict)  # the fields that its JSON may have, as schemas
    content_type: str = "application/json"  # of the answer
    query: dict[str, Any] = field(default_factory=dict)  # what may stand behind the `?`, all optional, as schemas
    required: tuple[str, ...] = ()  # of the fields of the body, those that have to be there
    public: bool = False  # anybody may make the call: it shows and changes nothing of a job
    sets_cookie: bool = False


_PARAMETERS: dict[str, dict[str, Any]] = {
    "job": {"schema": {"type": "string"}, "description": "The job's id."},
    "vertex": {"schema": {"type": "integer", "minimum": 0}, "description": "Number of a vertex of the job."},
    "operator": {"schema": {"type": "string"}, "description": "uid, name or id of an operator with keyed state."},
    "state": {"schema": {"type": "string"}, "description": "Name of a state; `window-contents` for that of windows."},
    "checkpoint": {"schema": {"type": "integer", "minimum": 1}, "description": "Number of a checkpoint."},
}
_COOKIE = {"description": "The session, which scripts cannot read.", "schema": {"type": "string"}}
_ERRORS = {
    "400": "The request is wrong.",
    "401": "The token is missing or wrong.",
    "403": "The token allows only to look.",
    "404": "There is no such thing.",
    "405": "There is no such method.",
    "409": "The job cannot do it now.",
    "503": "Too many calls at once, or a job that does not answer at its own port: try again.",
}


def describe(routes: Iterable[Route]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in routes:
        call: dict[str, Any] = {
            "operationId": route.name,
            "summary": route.summary,
            "parameters": [
                {"name": name, "in": "path", "required": True, **_PARAMETERS[name]}
                for name in re.findall(r"\{(\w+)\}", route.path)
            ]
            + [{"name": name, "in": "query", "required": False, **what} for name, what in route.query.items()],
            "responses": {
                "200": {
                    "description": "Done.",
                    **({"headers": {"Set-Cookie": _COOKIE}} if route.sets_cookie else {}),
                    "content": {route.content_type: {"schema": _schema(route)}},
                },
                **{code: _error(code, text) for code, text in _ERRORS.items()},
            },
        }
        if route.public:
            call["security"] = []
        if route.method == "POST":
            body = {"type": "object", "properties": route.body, "additionalProperties": False}
            call["requestBody"] = {
                "required": bool(route.required),
                "content": {
                    "application/json": {
                        "schema": {**body, "required": list(route.required)} if route.required else body
                    }
                },
            }
        paths.setdefault(route.path, {})[route.method.lower()] = call
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidegate", "version": tidegate.__version__, "license": {"name": "Apache-2.0"}},
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "tidegate_<port>"},
            },
            "schemas": {
                "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
                **COMPONENTS,
            },
        },
    }


def _schema(route: Route) -> dict[str, Any]:
    if route.content_type == "text/event-stream":
        event = {"event": {"enum": ["job", "silent", "end"]}, "data": {"type": "string", "description": "JSON"}}
        return {"type": "object", "properties": event, "required": ["event", "data"]}
    return (
        ANSWERS.get(route.name, {"type": "object"}) if route.content_type == "application/json" else {"type": "string"}
    )


def _error(code: str, text: str) -> dict[str, Any]:
    seconds = {"Retry-After": {"description": "Seconds, when it is worth another try.", "schema": {"type": "integer"}}}
    return {
        "description": text,
        **({"headers": seconds} if code in ("409", "503") else {}),
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
