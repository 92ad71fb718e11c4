"""What is said of a job over HTTP: JSON documents made of its published view. Pure functions.

Times are milliseconds since the epoch, durations milliseconds, sizes bytes, rates per second.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypedDict

import msgspec

from tidegate.common.job_status import JobStatus
from tidegate.common.metric_values import (
    BACK_PRESSURED_MS,
    BUSY_MS,
    IDLE_MS,
    INPUT_WATERMARK,
    NUM_BYTES_IN,
    NUM_BYTES_OUT,
    NUM_RECORDS_IN,
    NUM_RECORDS_IN_RATE,
    NUM_RECORDS_OUT,
    NUM_RECORDS_OUT_RATE,
    NUM_RECORDS_SEND,
    NUM_RECORDS_SEND_RATE,
    PENDING_RECORDS,
    WATERMARK_LAG,
    GaugeValue,
    MetricReport,
    added,
    numbers_of,
)
from tidegate.fault_tolerance.checkpoint_view import CheckpointView, SubtaskCheckpoint
from tidegate.jobmanager.catch_up import lag_of
from tidegate.jobmanager.job_view import JobView, VertexView
from tidegate.protocol.instructions import AttemptFailure
from tidegate.web.jobs import NotThereError

Document = dict[str, Any]

_SUMMED = (
    NUM_RECORDS_IN,
    NUM_RECORDS_OUT,
    NUM_RECORDS_SEND,
    NUM_RECORDS_IN_RATE,
    NUM_RECORDS_OUT_RATE,
    NUM_RECORDS_SEND_RATE,
    NUM_BYTES_IN,
    NUM_BYTES_OUT,
)
_OF_CHECKPOINTS = ("execution.checkpointing.", "state.backend.type", "tidegate.checkpoint.")
_FIGURES = (
    "end_to_end_ms",
    "start_delay_ms",
    "alignment_ms",
    "sync_ms",
    "async_ms",
    "state_bytes",
    "full_bytes",
    "inflight_bytes",
    "processed_during_alignment",
)


class Summary(TypedDict):
    """What `summary` says. One that an earlier version has kept may lack something of it."""

    job_id: str
    job_name: str
    status: str
    mode: str
    parallelism: int
    started_ms: int
    ended_ms: int | None
    duration_ms: int
    attempt: int
    workers: int
    failures: list[str]
    last_checkpoint: int | None
    last_checkpoint_ms: float | None
    checkpoints_completed: int
    checkpoints_failed: int
    records_in_per_second: float | None
    records_out_per_second: float | None


_kept_summary = msgspec.json.Decoder(Summary)


def kept_summary(data: bytes) -> Document:
    """One that was kept as JSON. Raises one of `common.decoding.UNREADABLE` for what is none."""
    return dict(_kept_summary.decode(data))


def summary(view: JobView, now_ms: float) -> Document:
    """One job in the list of jobs."""
    last = view.checkpoints.latest_completed
    targets = {edge.target for edge in view.edges}
    read = [m for m in view.metrics if m.name == NUM_RECORDS_IN_RATE and not m.operator and m.vertex not in targets]
    given = [m for m in view.metrics if m.name == NUM_RECORDS_SEND_RATE and not m.operator]
    return {
        "job_id": view.job_id,
        "job_name": view.name,
        "status": view.status_name,
        "mode": view.mode,
        "parallelism": view.slots,
        "started_ms": int(view.started_ms),
        "ended_ms": None if view.ended_ms is None else int(view.ended_ms),
        "duration_ms": int((now_ms if view.ended_ms is None else view.ended_ms) - view.started_ms),
        "attempt": view.attempt,
        "workers": len(view.workers),
        "failures": [f.failure.summary for f in view.failures],
        "last_checkpoint": None if last is None else last.checkpoint_id,
        "last_checkpoint_ms": None if last is None else last.ended_ms,
        "checkpoints_completed": view.checkpoints.completed,
        "checkpoints_failed": view.checkpoints.failed,
        "records_in_per_second": _rate(read),
        "records_out_per_second": _rate(given),
    }


def _rate(metrics: list[MetricReport]) -> float | None:
    """What they are together; None when nothing is known, as in BATCH mode."""
    return round(sum(map(_number, metrics)), 1) if metrics else None


def job(view: JobView, now_ms: float) -> Document:
    """The job with its graph, its workers and its history."""
    return {
        **summary(view, now_ms),
        "vertices": vertices(view)["vertices"],
        "edges": msgspec.to_builtins(view.edges),
        "workers_at": msgspec.to_builtins(view.workers),
        "stages": msgspec.to_builtins(view.stages),
        "status_history": msgspec.to_builtins(view.status_history),
        "downtime_ms": round(downtime_ms(view, now_ms)),
        "uptime_ms": None if (up := uptime_ms(view, now_ms)) is None else round(up),
        "lag": msgspec.to_builtins(lag_of(view.metrics)),
        "bounded": view.bounded,
        "warnings": sum(warning.times for warning in view.warnings),
    }


def vertices(view: JobView) -> Document:
    """All vertices, with figures over their subtasks."""
    by_vertex: dict[int, list[MetricReport]] = defaultdict(list)
    for metric in view.metrics:
        if not metric.operator:
            by_vertex[metric.vertex].append(metric)
    state = _state_bytes(view)
    return {"vertices": [_vertex(vertex, by_vertex[vertex.vertex], state) for vertex in view.vertices]}


def vertex(view: JobView, number: int) -> Document:
    """One vertex with its subtasks. Raises NotThereError."""
    found = next((v for v in view.vertices if v.vertex == number), None)
    if found is None:
        raise NotThereError(f"the job has no vertex {number}: it has 0 to {len(view.vertices) - 1}")
    mine = [m for m in view.metrics if m.vertex == number and not m.operator]
    state = _state_bytes(view)
    metrics: dict[int, dict[str, float | None]] = defaultdict(dict)
    of_operators: dict[int, dict[str, float]] = defaultdict(dict)
    for metric in mine:
        metrics[metric.subtask][metric.name] = _number(metric)
    for full_name, metric in view.function_metrics():
        if metric.vertex == number:
            of_operators[metric.subtask].update(numbers_of(full_name, metric.value))
    return {
        **_vertex(found, mine, state),
        "subtasks": [
            {
                "subtask": place.subtask,
                "slot": place.slot,
                "host": place.host,
                "pid": place.pid,
                "state_bytes": state.get((number, place.subtask)),
                "metrics": metrics[place.subtask],
                "operator_metrics": of_operators[place.subtask],
            }
            for place in view.subtasks
            if place.vertex == number
        ],
    }


def _vertex(vertex: VertexView, metrics: Iterable[MetricReport], state: dict[tuple[int, int], int]) -> Document:
    values: dict[str, list[float]] = defaultdict(list)
    for metric in metrics:
        values[metric.name].append(_number(metric))
    figures: dict[str, float | None] = {name: round(sum(values[name]), 1) for name in _SUMMED if values[name]}
    # A vertex is as slow as its slowest subtask.
    figures |= {name: max(values[name]) for name in (BUSY_MS, BACK_PRESSURED_MS) if values[name]}
    figures |= {IDLE_MS: min(values[IDLE_MS])} if values[IDLE_MS] else {}
    figures |= {INPUT_WATERMARK: min(values[INPUT_WATERMARK])} if values[INPUT_WATERMARK] else {}
    figures |= {PENDING_RECORDS: sum(values[PENDING_RECORDS])} if values[PENDING_RECORDS] else {}
    figures |= {WATERMARK_LAG: max(values[WATERMARK_LAG])} if values[WATERMARK_LAG] else {}
    sizes = [size for (number, _), size in state.items() if number == vertex.vertex]
    return {
        **msgspec.to_builtins(vertex),
        "metrics": figures,
        "state_bytes": sum(sizes) if sizes else None,
    }


def checkpoints(view: JobView) -> Document:
    """Counts, spreads, restores and the history, the newest first; details of one are `checkpoint`."""
    found = view.checkpoints
    return {
        "counts": {
            "completed": found.completed,
            "failed": found.failed,
            "in_progress": found.in_progress,
            "restored": found.restored,
        },
        "failures_by_reason": found.failures_by_reason,
        "summary": msgspec.to_builtins(found.summary),
        "restores": _restores(view)[::-1],
        "configuration": [
            {"key": s.key, "value": s.value, "source": s.source}
            for s in view.configuration
            if s.key.startswith(_OF_CHECKPOINTS)
        ],
        "checkpoints": [_checkpoint(c) for c in reversed(_kept_in_detail(view))],
    }


def _kept_in_detail(view: JobView) -> list[CheckpointView]:
    """Oldest first; the latest completed one is among them, however many have failed since."""
    older = view.checkpoints.older_completed
    return [*([] if older is None else [older]), *view.checkpoints.history]


def _restores(view: JobView) -> list[Document]:
    """Oldest first. `fell_back_from`: the checkpoint that was tried before it and turned out to be damaged; None too
    when that failure is not kept any more."""
    found, before = [], view.checkpoints.forgotten_restore_ms
    for restore in view.checkpoints.restores:
        damaged = [
            f.failure.corrupt_checkpoint
            for f in view.failures
            if f.failure.corrupt_checkpoint and before < f.at_ms <= restore.at_ms
        ]
        found.append({**msgspec.to_builtins(restore), "fell_back_from": damaged[-1] if damaged else None})
        before = restore.at_ms
    return found


def checkpoint(view: JobView, number: int) -> Document:
    """One checkpoint with the figures of each vertex (minimum, median, maximum) and of each subtask; `missing` are the
    subtasks that have not answered. Raises NotThereError."""
    kept = _kept_in_detail(view)
    found = next((c for c in reversed(kept) if c.checkpoint_id == number), None)
    if found is None:
        raise NotThereError(
            f"checkpoint {number} is not among the latest {len(kept)}, which are kept in detail "
            "(tidegate.checkpoint.history-size)"
        )
    parts = found.subtasks
    answer = _checkpoint(found)
    answer["vertices"] = []
    for vertex in view.vertices:
        mine = [p for p in found.acknowledged if p.vertex == vertex.vertex]
        answer["vertices"].append(
            {
                "vertex": vertex.vertex,
                "name": vertex.name,
                "acknowledged": len(mine),
                "missing": [
                    p.subtask for p in view.subtasks if p.vertex == vertex.vertex and (p.vertex, p.subtask) not in parts
                ],
                "spread": {name: _spread([_figure(p, name) for p in mine]) for name in _FIGURES} if mine else {},
                "subtasks": [_subtask_checkpoint(p) for p in sorted(mine, key=lambda p: p.subtask)],
            }
        )
    return answer


def _checkpoint(found: CheckpointView) -> Document:
    return {
        "id": found.checkpoint_id,
        "kind": found.kind.value,
        "attempt": found.attempt,
        "status": found.status.name,
        "triggered_ms": int(found.triggered_ms),
        "ended_ms": None if found.ended_ms is None else int(found.ended_ms),
        "duration_ms": found.duration_ms,
        "reason": found.reason_name,
        "detail": found.detail,
        "tasks": found.tasks,
        "acknowledged": len(found.acknowledged),
        "state_bytes": found.state_bytes,
        "full_bytes": found.full_bytes,
        "inflight_bytes": found.inflight_bytes,
        "processed_during_alignment": found.processed_during_alignment,
        "start_delay_ms": max((part.metrics.start_delay_ms for part in found.acknowledged), default=0.0),
        "alignment_ms": found.alignment_ms,
        "sync_ms": found.sync_ms,
        "async_ms": found.async_ms,
        "unaligned": found.unaligned,
    }


def _subtask_checkpoint(part: SubtaskCheckpoint) -> Document:
    figures = {name: _figure(part, name) for name in _FIGURES}
    return {
        "subtask": part.subtask,
        "acknowledged_ms": int(part.acknowledged_ms),
        "end_of_data": part.end_of_data,
        "unaligned": part.metrics.unaligned,
        **figures,
    }


def _figure(part: SubtaskCheckpoint, name: str) -> float:
    return part.end_to_end_ms if name == "end_to_end_ms" else float(getattr(part.metrics, name))


def _spread(values: list[float]) -> Document:
    return {"minimum": min(values), "median": statistics.median(values), "maximum": max(values)}


def exceptions(view: JobView) -> Document:
    """The failures that are kept (the first and the latest), the newest first: each with what the restart strategy
    said, how long the job was down, and how long it took to catch up. And what the job has warned of lately."""
    return {
        "failures": [
            {
                "attempt": f.attempt,
                "at_ms": int(f.at_ms),
                "summary": f.failure.summary,
                "operator": f.failure.operator,
                "subtask": None if f.failure.subtask < 0 else f.failure.subtask,
                "traceback": f.failure.traceback,
                "permanent": f.failure.permanent,
                "verdict": f.verdict,
                "downtime_ms": _downtime_after(view, f),
                **_catch_up(view, f.attempt),
            }
            for f in reversed(view.failures)
        ],
        "restarts": view.attempt,
        "warnings": msgspec.to_builtins(view.warnings[::-1]),
    }


def _catch_up(view: JobView, attempt: int) -> Document:
    """`caught_up`: whether the job is where it was before the failure; None: its sources cannot tell."""
    found = next((r for r in view.recoveries if r.attempt == attempt), None)
    if found is None or found.lag_before is None:
        return {"caught_up": None, "catch_up_ms": None}
    took = found.catch_up_ms
    return {"caught_up": took is not None, "catch_up_ms": None if took is None else round(took, 1)}


def metrics(view: JobView) -> Document:
    """Every metric with its type; `totals` are those that can be added up, over all subtasks."""
    return {"metrics": msgspec.to_builtins(view.metrics), "totals": msgspec.to_builtins(totals(view.metrics))}


def totals(metrics: Iterable[MetricReport]) -> list[MetricReport]:
    """Counters, meters and histograms over the subtasks of their vertex or operator; `subtask` is -1."""
    found: dict[tuple[Any, ...], MetricReport] = {}
    for metric in metrics:
        scope = (*metric.scope[:1], *metric.scope[2:])  # without the subtask
        key = metric.vertex, metric.operator, scope, metric.name, type(metric.value)
        before = found.get(key)
        value = metric.value if before is None else added(before.value, metric.value)
        if value is not None and not isinstance(value, GaugeValue):
            found[key] = MetricReport(metric.vertex, -1, metric.name, value, metric.operator, scope)
    return list(found.values())


def configuration(view: JobView) -> Document:
    return {"configuration": msgspec.to_builtins(view.configuration)}


def downtime_ms(view: JobView, now_ms: float) -> float:
    """How long the job was not running so far, from its first start on."""
    since = view.down_since_ms
    return view.downtime_ms + (0.0 if since is None else max(0.0, now_ms - since))


def uptime_ms(view: JobView, now_ms: float) -> float | None:
    """How long the job has been running without interruption; None: it does not run."""
    latest = view.status_history[-1] if view.status_history else None
    if latest is None or not view.status_name == latest.status_name == JobStatus.RUNNING.name:
        return None
    return max(0.0, now_ms - latest.at_ms)


def job_figures(view: JobView, now_ms: float) -> dict[str, float]:
    """The metrics of the job as a whole, by Flink's names where Flink has one, and then they mean what Flink's mean:
    all are gauges, those of the latest completed checkpoint are there once there is one."""
    ended = view.status.is_terminal_state()
    since = view.down_since_ms
    figures: dict[str, float] = {
        "running": float(view.status_name == "RUNNING"),
        "uptime": -1.0 if ended else uptime_ms(view, now_ms) or 0.0,
        "downtime": -1.0 if ended else 0.0 if since is None else max(0.0, now_ms - since),
        "duration": (now_ms if view.ended_ms is None else view.ended_ms) - view.started_ms,
        "totalDowntime": downtime_ms(view, now_ms),
        "numRestarts": view.attempt,
        "numberOfCompletedCheckpoints": view.checkpoints.completed,
        "numberOfFailedCheckpoints": view.checkpoints.failed,
        "numberOfInProgressCheckpoints": view.checkpoints.in_progress,
    }
    last = view.checkpoints.latest_completed
    if last is not None:
        figures |= {
            "lastCompletedCheckpointId": last.checkpoint_id,
            "lastCheckpointSize": last.state_bytes,
            "lastCheckpointFullSize": last.full_bytes,
            "lastCheckpointPersistedData": last.inflight_bytes,
        }
        for name, value in (
            ("lastCheckpointDuration", last.duration_ms),
            ("lastCheckpointCompletedTimestamp", last.ended_ms),
        ):
            figures |= {} if value is None else {name: value}
    return figures


def _downtime_after(view: JobView, failure: AttemptFailure) -> float | None:
    """From a failure until the job ran again, maybe after more failures; None when it did not."""
    found = next((r for r in view.recoveries if r.attempt == failure.attempt), None)
    return None if found is None or found.running_ms is None else round(found.running_ms - failure.at_ms, 1)


def _state_bytes(view: JobView) -> dict[tuple[int, int], int]:
    """Of each subtask in the last completed checkpoint or savepoint."""
    last = view.checkpoints.latest_completed
    return {} if last is None else {(p.vertex, p.subtask): p.metrics.full_bytes for p in last.acknowledged}


def _number(metric: MetricReport) -> float:
    numbers = [number for _, number in numbers_of(metric.name, metric.value)]
    return numbers[-1] if numbers else 0.0
