"""What the documents of the REST calls look like, as JSON schemas for the OpenAPI description.

A document has exactly the fields that stand here: a test holds what is answered against them, so that a field that is
new is described too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.common.metric_values import MetricReport
from tidegate.fault_tolerance.checkpoint_view import Range
from tidegate.jobmanager.catch_up import Lag
from tidegate.jobmanager.job_view import (
    EdgeView,
    JobView,
    OperatorView,
    SettingView,
    StageView,
    StateView,
    StatusChange,
    WorkerInfo,
)
from tidegate.jobmanager.recent_warnings import WarningView

Schema = dict[str, Any]

_PARTS = (
    EdgeView,
    JobView,
    Lag,
    MetricReport,
    OperatorView,
    Range,
    SettingView,
    StageView,
    StateView,
    StatusChange,
    WarningView,
    WorkerInfo,
)
_REFERENCES, COMPONENTS = msgspec.json.schema_components(_PARTS, ref_template="#/components/schemas/{name}")
"""COMPONENTS: of the parts of a published view, by name."""
_OF = dict(zip(_PARTS, _REFERENCES, strict=True))

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_TRUTH: Schema = {"type": "boolean"}
_MS: Schema = {"type": "number", "description": "Milliseconds, for a moment since the epoch."}


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _by_name(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _with_optional(one: Schema, **fields: Schema) -> Schema:
    return {**one, "properties": {**one["properties"], **fields}}


def _and(one: Schema, **fields: Schema) -> Schema:
    return _object(**one["properties"], **fields)


_SPREAD = _object(minimum=_NUMBER, median=_NUMBER, maximum=_NUMBER)
_FIGURES = {
    "end_to_end_ms": _NUMBER,
    "start_delay_ms": _NUMBER,
    "alignment_ms": _NUMBER,
    "sync_ms": _NUMBER,
    "async_ms": _NUMBER,
    "state_bytes": _NUMBER,
    "full_bytes": _NUMBER,
    "inflight_bytes": _NUMBER,
    "processed_during_alignment": _NUMBER,
}
_SUMMARY = _object(
    job_id=_TEXT,
    job_name=_TEXT,
    status=_TEXT,
    mode={"enum": ["STREAMING", "BATCH", "MICRO_BATCH"]},
    parallelism=_WHOLE,
    started_ms=_MS,
    ended_ms=_maybe(_MS),
    duration_ms=_MS,
    attempt=_WHOLE,
    workers=_WHOLE,
    failures=_list(_TEXT),
    last_checkpoint=_maybe(_WHOLE),
    last_checkpoint_ms=_maybe(_MS),
    checkpoints_completed=_WHOLE,
    checkpoints_failed=_WHOLE,
    records_in_per_second=_maybe(_NUMBER),
    records_out_per_second=_maybe(_NUMBER),
)
_SILENT = {
    **_object(job_id=_TEXT, job_name=_TEXT, status={"const": "?"}, started_ms=_MS, error=_TEXT),
    "description": "Of a job that does not answer, in the list of all jobs.",
}
_VERTEX = _object(
    vertex=_WHOLE,
    name=_TEXT,
    parallelism=_WHOLE,
    max_parallelism=_WHOLE,
    slot_sharing_group=_TEXT,
    operators=_list(_OF[OperatorView]),
    metrics=_by_name(_maybe(_NUMBER)),
    state_bytes=_maybe(_WHOLE),
)
_SUBTASK = _object(
    subtask=_WHOLE,
    slot=_maybe(_WHOLE),
    host=_TEXT,
    pid=_WHOLE,
    state_bytes=_maybe(_WHOLE),
    metrics=_by_name(_maybe(_NUMBER)),
    operator_metrics=_by_name(_NUMBER),
)
_CHECKPOINT = _object(
    id=_WHOLE,
    kind=_TEXT,
    attempt=_WHOLE,
    status=_TEXT,
    triggered_ms=_MS,
    ended_ms=_maybe(_MS),
    duration_ms=_maybe(_MS),
    reason=_maybe(_TEXT),
    detail=_TEXT,
    tasks=_WHOLE,
    acknowledged=_WHOLE,
    state_bytes=_WHOLE,
    full_bytes=_WHOLE,
    inflight_bytes=_WHOLE,
    processed_during_alignment=_WHOLE,
    start_delay_ms=_MS,
    alignment_ms=_MS,
    sync_ms=_MS,
    async_ms=_MS,
    unaligned=_TRUTH,
)
_SUBTASK_CHECKPOINT = _object(subtask=_WHOLE, acknowledged_ms=_MS, end_of_data=_TRUTH, unaligned=_TRUTH, **_FIGURES)
_VERTEX_CHECKPOINT = _object(
    vertex=_WHOLE,
    name=_TEXT,
    acknowledged=_WHOLE,
    missing=_list(_WHOLE),
    spread={"anyOf": [_object(**dict.fromkeys(_FIGURES, _SPREAD)), _object()]},
    subtasks=_list(_SUBTASK_CHECKPOINT),
)
_FAILURE = _object(
    attempt=_WHOLE,
    at_ms=_MS,
    summary=_TEXT,
    operator=_TEXT,
    subtask=_maybe(_WHOLE),
    traceback=_TEXT,
    permanent=_TRUTH,
    verdict=_TEXT,
    downtime_ms=_maybe(_MS),
    caught_up=_maybe(_TRUTH),
    catch_up_ms=_maybe(_MS),
)
_SHOWN = {"type": _TEXT, "text": {"type": "string", "description": "For people; long ones are cut."}}
_VALUE: Schema = {"description": "What is there, when JSON can say it."}
_ANY = _with_optional(_object(**_SHOWN), value=_VALUE)
_ANSWER = _object(
    key=_ANY,
    found=_TRUTH,
    checkpoint={**_maybe(_WHOLE), "description": "That the value belongs to; null for a live one."},
    watermark={**_maybe(_WHOLE), "description": "Of the task when it was read; null for a committed one."},
    attempt={**_maybe(_WHOLE), "description": "Of the job, for a live one."},
)
_STATE_ANSWER: Schema = {
    "anyOf": [
        {
            **_with_optional(
                _and({**_ANSWER, "properties": {**_ANSWER["properties"], "found": {"const": True}}}, **_SHOWN),
                value=_VALUE,
                window=_ANY,
            ),
            "description": "What a key has; `window` when it was asked of one window, or found by a scan.",
        },
        {
            **_and(_ANSWER, windows=_list(_with_optional(_object(window=_ANY, **_SHOWN), value=_VALUE))),
            "description": "What a key has in each of its windows.",
        },
        {
            **_with_optional(
                {**_ANSWER, "properties": {**_ANSWER["properties"], "found": {"const": False}}}, window=_ANY
            ),
            "description": "A key that has nothing.",
        },
    ]
}
_ACCESS = _object(access={"enum": ["read", "full"]})
_PATH = _object(path=_TEXT)

ANSWERS: dict[str, Schema] = {
    "jobs": _object(jobs=_list({"anyOf": [_SUMMARY, _SILENT]})),
    "job": _and(
        _SUMMARY,
        vertices=_list(_VERTEX),
        edges=_list(_OF[EdgeView]),
        workers_at=_list(_OF[WorkerInfo]),
        stages=_list(_OF[StageView]),
        status_history=_list(_OF[StatusChange]),
        downtime_ms=_MS,
        uptime_ms=_maybe(_MS),
        lag=_maybe(_OF[Lag]),
        bounded=_TRUTH,
        warnings=_WHOLE,
    ),
    "view": _OF[JobView],
    "vertices": _object(vertices=_list(_VERTEX)),
    "vertex": _and(_VERTEX, subtasks=_list(_SUBTASK)),
    "checkpoints": _object(
        counts=_object(completed=_WHOLE, failed=_WHOLE, in_progress=_WHOLE, restored=_WHOLE),
        failures_by_reason=_by_name(_WHOLE),
        summary=_by_name(_OF[Range]),
        restores=_list(_object(checkpoint_id=_WHOLE, at_ms=_MS, fell_back_from=_maybe(_WHOLE))),
        configuration=_list(_object(key=_TEXT, value=_TEXT, source=_TEXT)),
        checkpoints=_list(_CHECKPOINT),
    ),
    "checkpoint": _and(_CHECKPOINT, vertices=_list(_VERTEX_CHECKPOINT)),
    "exceptions": _object(failures=_list(_FAILURE), restarts=_WHOLE, warnings=_list(_OF[WarningView])),
    "metrics": _object(metrics=_list(_OF[MetricReport]), totals=_list(_OF[MetricReport])),
    "states": _object(states=_list(_OF[StateView])),
    "state": _object(operator=_TEXT, state=_TEXT, level={"enum": ["live", "committed"]}, answers=_list(_STATE_ANSWER)),
    "config": _object(configuration=_list(_OF[SettingView])),
    "savepoint": _PATH,
    "stop": _PATH,
    "cancel": _object(status=_TEXT),
    "session": _ACCESS,
    "login": _ACCESS,
    "logout": _object(),
}
"""By the name of a route."""
