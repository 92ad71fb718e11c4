"""The published view of a job: an immutable value that everything which shows a job reads, and nothing else.

The thread that runs a job replaces the view (`job_publisher.py`), at most some times a second and at every change of
the job's status; readers take it from any thread. A view is JSON by `to_json` and comes back by `from_json`, so a job
that has ended can still be shown. Times are milliseconds since the epoch, durations milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tidegate.common import options
from tidegate.common.configuration import DEFAULT, Configuration
from tidegate.common.ids import AttemptNumber, OperatorId
from tidegate.common.job_status import JobStatus
from tidegate.common.metric_values import NUM_RECORDS_IN, CounterValue, MetricReport
from tidegate.common.secrets import shown
from tidegate.fault_tolerance.checkpoint_view import CheckpointsView
from tidegate.graph.boundedness import unbounded_sources
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.catch_up import RecoveryView
from tidegate.jobmanager.query_settings import QuerySettings
from tidegate.jobmanager.recent_warnings import WarningView
from tidegate.protocol.instructions import AttemptFailure
from tidegate.protocol.messages import StateReport
from tidegate.state.reading import WINDOW_CONTENTS, WINDOW_LAYOUTS


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a view."""


class OperatorView(View, frozen=True):
    operator_id: str
    name: str
    uid: str | None


class VertexView(View, frozen=True):
    vertex: int
    name: str
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    operators: tuple[OperatorView, ...]  # the head first


class EdgeView(View, frozen=True):
    source: int  # a vertex, as the target
    target: int
    target_input: int  # 0, or 1 for the second input of an operator
    side_output: str | None  # None: the main output
    partitioning: str  # a value of PartitionKind


class WorkerInfo(View, frozen=True):
    """A worker process of the current attempt."""

    slot: int
    host: str
    pid: int
    attempt: AttemptNumber
    records_in: int  # by all its tasks, as of its latest heartbeat


class SubtaskView(View, frozen=True):
    """Where one subtask runs."""

    vertex: int
    subtask: int
    slot: int | None  # None in BATCH mode, where Spark gives each task a place of its own
    host: str = ""  # "" while its worker has not registered, as the pid then is 0
    pid: int = 0


class StateView(View, frozen=True):
    """One keyed state, over all subtasks, as of the latest heartbeats."""

    operator_id: str
    operator: str  # its uid, or its name when it has none
    state: str
    kind: str  # value, list, map, reducing, aggregating
    per_window: bool
    type: str  # as declared; "": not declared
    key_type: str  # likewise
    key_types: tuple[str, ...]  # what some of the keys are, as classes of Python; () when the state is hidden
    entries: int  # keys, or keys and windows
    exact: bool  # the number of entries is; False: estimated by RocksDB
    bytes: int  # estimated
    hidden: bool  # nobody can look into it


class StageView(View, frozen=True):
    """A stage of Spark, in BATCH mode."""

    stage: int
    name: str
    tasks: int
    completed: int
    active: int
    failed: int


class StatusChange(View, frozen=True):
    status_name: str = msgspec.field(name="status")
    at_ms: float
    attempt: AttemptNumber  # the latest that was submitted: for RESTARTING the one that has failed

    @property
    def status(self) -> JobStatus:
        return JobStatus[self.status_name]


class SettingView(View, frozen=True):
    """One setting of the configuration as it is in force."""

    key: str
    value: str  # as one would write it, but for secrets: of such a key it is hidden, within a value they are
    given: bool  # False: it is the default
    source: str = ""  # where it came from: `common.configuration` has the list; "": of a view before there was one


class JobView(View, frozen=True):
    job_id: str
    name: str
    mode: str  # STREAMING, MICRO_BATCH or BATCH
    status_name: str = msgspec.field(name="status")
    slots: int  # how many tasks run at once: the workers of a gang, or the width of a batch job
    vertices: tuple[VertexView, ...]
    edges: tuple[EdgeView, ...]
    subtasks: tuple[SubtaskView, ...]
    started_ms: float
    ended_ms: float | None = None
    attempt: AttemptNumber = AttemptNumber(0)  # the current or latest: how often the job was started again
    status_history: tuple[StatusChange, ...] = ()  # the latest ones, oldest first
    downtime_ms: float = 0.0  # how long it was not running, from its first start on, up to when it ran last
    down_since_ms: float | None = None  # None: it runs, has not run yet, or has ended
    workers: tuple[WorkerInfo, ...] = ()  # of the current attempt, that have registered; by slot
    metrics: tuple[MetricReport, ...] = ()  # of the current attempt
    checkpoints: CheckpointsView = CheckpointsView()
    states: tuple[StateView, ...] = ()  # STREAMING: in the order of the graph
    stages: tuple[StageView, ...] = ()  # in BATCH mode: of the current attempt, by stage
    failures: tuple[AttemptFailure, ...] = ()  # the first one and the latest ones, oldest first
    configuration: tuple[SettingView, ...] = ()
    recoveries: tuple[RecoveryView, ...] = ()  # the first one and the latest ones, oldest first
    bounded: bool = False  # it comes to an end by itself
    warnings: tuple[WarningView, ...] = ()  # STREAMING: the latest ones, oldest first; without failures of attempts

    @property
    def status(self) -> JobStatus:
        return JobStatus[self.status_name]

    def total(self, name: str, vertex: int) -> int:
        """A counter of the tasks of one vertex, over all its subtasks."""
        return sum(
            m.value.count
            for m in self.metrics
            if m.vertex == vertex and m.name == name and not m.operator and isinstance(m.value, CounterValue)
        )

    def operator_names(self) -> dict[str, str]:
        """By operator id a name that no other operator of the job has: the second `Map` is `Map#2`."""
        seen: Counter[str] = Counter()
        names: dict[str, str] = {}
        for vertex in self.vertices:
            for operator in vertex.operators:
                seen[operator.name] += 1
                count = seen[operator.name]
                names[operator.operator_id] = operator.name if count == 1 else f"{operator.name}#{count}"
        return names

    def function_metrics(self) -> Iterator[tuple[str, MetricReport]]:
        """The metrics of operators, each with its full name: operator, subtask, groups and name."""
        names = self.operator_names()
        for metric in self.metrics:
            if metric.operator:
                operator = names.get(metric.operator) or metric.scope[0]
                yield ".".join((operator, *metric.scope[1:], metric.name)), metric

    def to_json(self) -> bytes:
        return _encode(self)

    @staticmethod
    def from_json(data: bytes) -> JobView:
        """Raises one of `common.decoding.UNREADABLE` for what is no view."""
        return _decode(data)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JobView).decode


def graph_of(graph: JobGraph) -> dict[str, Any]:
    """The fields of a view that follow from the job graph."""
    vertices = tuple(
        VertexView(
            vertex=v.vertex_id,
            name=v.name,
            parallelism=v.parallelism,
            max_parallelism=v.max_parallelism,
            slot_sharing_group=v.slot_sharing_group,
            operators=tuple(OperatorView(operator_id=o.operator_id, name=o.name, uid=o.uid) for o in v.operators),
        )
        for v in graph.vertices
    )
    edges = tuple(
        EdgeView(
            source=e.source,
            target=e.target,
            target_input=e.target_input,
            side_output=e.side_output,
            partitioning=e.partition.kind.value,
        )
        for e in graph.edges
    )
    return {
        "job_id": graph.job_id,
        "name": graph.name,
        "vertices": vertices,
        "edges": edges,
        "bounded": not unbounded_sources(graph),
    }


def settings_of(configuration: Configuration) -> tuple[SettingView, ...]:
    """Every option with the value in force, then what was given besides (keys of Spark). Without secrets."""
    found = []
    for option in options.ALL_OPTIONS:
        value = shown(option.key, option.format(configuration.get(option)))
        given = configuration.contains(option)
        source = configuration.source_of(*option.keys) if given else DEFAULT
        found.append(SettingView(key=option.key, value=value, given=given, source=source))
    for key, value in sorted(configuration.to_dict().items()):
        if key not in options.KEYS:
            source = configuration.source_of(key)
            found.append(SettingView(key=key, value=shown(key, value), given=True, source=source))
    return tuple(found)


def states_of(graph: JobGraph, settings: QuerySettings, parts: Iterable[StateReport]) -> tuple[StateView, ...]:
    """What the subtasks tell of their states, put together."""
    nodes = {node.operator_id: node for vertex in graph.vertices for node in vertex.operators}
    found: dict[tuple[str, str], list[StateReport]] = {}
    for part in sorted(parts, key=lambda part: (part.vertex, part.subtask)):
        found.setdefault((part.operator_id, part.state), []).append(part)
    views = []
    for (operator_id, state), of_state in found.items():
        node, first = nodes[OperatorId(operator_id)], of_state[0]
        names = [name for name in (node.uid, node.name, operator_id) if name]
        aliases = [state, WINDOW_CONTENTS, *WINDOW_LAYOUTS] if state in WINDOW_LAYOUTS else [state]
        hidden = not settings.enabled or settings.hides(names, aliases) or any(part.hidden for part in of_state)
        views.append(
            StateView(
                operator_id=operator_id,
                operator=names[0],
                state=state,
                kind=first.kind,
                per_window=first.per_window,
                type=first.type,
                key_type="" if node.key_type is None else str(node.key_type),
                key_types=() if hidden else tuple(sorted({t for part in of_state for t in part.key_types})),
                entries=sum(part.entries for part in of_state),
                exact=all(part.exact for part in of_state),
                bytes=sum(part.bytes for part in of_state),
                hidden=hidden,
            )
        )
    return tuple(views)


def records_in(metrics: tuple[MetricReport, ...]) -> int:
    """By all tasks of one slot."""
    return sum(
        m.value.count
        for m in metrics
        if m.name == NUM_RECORDS_IN and not m.operator and isinstance(m.value, CounterValue)
    )
