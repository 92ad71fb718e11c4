"""The program's job made into one that can be compared and disturbed: graph and settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from tidegate.chaos.instrument import ChaosInstrument
from tidegate.chaos.recording import ProbeSink, RecordingSink
from tidegate.chaos.segment import OperatorSeen, Segment
from tidegate.chaos.sources import QUIET_S, LimitedSource
from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import TidegateError
from tidegate.common.ids import OperatorId
from tidegate.connectors.record_cache import CacheSink
from tidegate.contracts.collect_sink import CollectSink
from tidegate.contracts.connectors import Boundedness, DeliveryGuarantee, Sink
from tidegate.contracts.functions import CheckpointedFunction
from tidegate.graph.boundedness import unbounded_sources
from tidegate.graph.job_graph import ChainLink, JobGraph, JobVertex, OperatorNode
from tidegate.graph.operator_specs import BroadcastProcessSpec, MapSpec, SinkFunctionSpec, SinkSpec, SourceSpec
from tidegate.jobmanager.runtime import Submission

_INTERVAL_MS = 250
_LONGEST_INTERVAL_MS = 1000
_UNDISTURBED_RESTARTS = 10  # a busy machine may need some
_NOT_STREAMING = {
    "BATCH": "since Spark itself repeats batch tasks",
    "AUTOMATIC": "also where all input is bounded and it would be BATCH",
    "MICRO_BATCH": "since the faults are those of such a job: how micro-batches recover is not shown",
}
_HEARTBEAT_MS = {options.HEARTBEAT_INTERVAL: 300, options.HEARTBEAT_TIMEOUT: 3000}
_GUARANTEES = {
    DeliveryGuarantee.EXACTLY_ONCE: "exactly once",
    DeliveryGuarantee.AT_LEAST_ONCE: "at least once",
    DeliveryGuarantee.NONE: "none",
}


class ChaosError(TidegateError):
    """The program cannot be put under chaos; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Rewritten:
    submission: Submission
    operators: tuple[OperatorSeen, ...]
    notes: tuple[str, ...]
    scalable: int  # the parallelism of what runs in parallel; 0: nothing does
    checkpoints: str  # the folder in which they are
    at_least_once: bool  # state may count records twice after a recovery


def rewrite(submission: Submission, segment: Segment) -> Rewritten:
    """Raises ChaosError for a job that cannot be compared."""
    graph = submission.graph
    _check(graph, segment)
    notes: list[str] = []
    configuration = _settings(submission.configuration, segment, notes)
    exactly_once = options.read(configuration, options.CHECKPOINT_MODE) == "EXACTLY_ONCE"
    operators = _operators(graph, segment, exactly_once)
    notes += _short_sources(graph, segment)
    scalable = max((v.parallelism for v in graph.vertices), default=1)
    vertices = tuple(_vertex(vertex, segment, scalable, exactly_once) for vertex in graph.vertices)
    graph = dataclasses.replace(graph, vertices=vertices)
    targets = tuple(o.operator_id for o in operators)
    timeout_s = options.read(configuration, options.HEARTBEAT_TIMEOUT) / 1000
    instrument = ChaosInstrument(segment, graph.num_slots, timeout_s, targets)
    rewritten = dataclasses.replace(submission, graph=graph, configuration=configuration, instrument=instrument)
    checkpoints = options.read(configuration, options.CHECKPOINT_DIR) or ""
    parallel = scalable if scalable > 1 else 0
    return Rewritten(rewritten, operators, tuple(notes), parallel, checkpoints, not exactly_once)


def _check(graph: JobGraph, segment: Segment) -> None:
    unbounded = unbounded_sources(graph)
    if unbounded and segment.records is None and segment.duration_s is None and not segment.limits:
        names = ", ".join(f"'{name}'" for name in unbounded)
        raise ChaosError(
            f"the job never ends: {names} is unbounded. Say how much of it is to be read: --records N, or --duration S "
            "(then the first run is measured and the others read the same records)"
        )
    sinks = [n for v in graph.vertices for n in v.operators if isinstance(n.spec, (SinkSpec, SinkFunctionSpec))]
    if not sinks:
        raise ChaosError("the job has no sink, so there is nothing to compare: add one, print() will do")
    collected = any(isinstance(getattr(node.spec, "sink", None), CollectSink) for node in sinks)
    if segment.keep_sinks and not segment.looked_at and not collected:
        raise ChaosError(
            "with --keep-sinks nobody looks at what the sinks have written: say what does: --verify CMD (run after "
            "each run and round, 0 means it is right), or leave --keep-sinks out, and recorders take their place"
        )
    for node in sinks:
        if isinstance(getattr(node.spec, "sink", None), CacheSink) and not segment.keep_sinks:
            raise ChaosError(
                f"the sink '{node.name}' cannot be replaced by a recorder: it is what cache() stores, and the program "
                "reads it again. Leave cache() out, or use --keep-sinks"
            )


def _short_sources(graph: JobGraph, segment: Segment) -> list[str]:
    """What the first run has said of sources that had fewer records than were asked for."""
    found = []
    for node in (vertex.operators[0] for vertex in graph.vertices):
        limits = segment.limits.get(node.operator_id)
        if segment.records is None or limits is None or sum(limits.values()) >= segment.records:
            continue
        share = segment.records // max(1, len(limits))
        short = sorted(split for split, count in limits.items() if count < share)
        named = ", ".join(map(repr, short[:5])) + (", …" if len(short) > 5 else "")
        found.append(
            f"'{node.name}' was read for {sum(limits.values())} records, not {segment.records}: each of its "
            f"{len(limits)} splits has an equal share, and {named} had no more (nothing came for {QUIET_S:.0f} s)"
        )
    return found


def _settings(given: Configuration, segment: Segment, notes: list[str]) -> Configuration:
    configuration = Configuration(given)

    def put(option: Any, value: Any) -> bool:
        """False: the user has said otherwise, by this key or by an older name of it."""
        if any(key in segment.settings for key in option.keys):
            return False
        configuration.set(option, value)
        return True

    mode = options.read(configuration, options.RUNTIME_MODE)
    if mode in _NOT_STREAMING and put(options.RUNTIME_MODE, "STREAMING"):
        notes.append(f"the program asks for {mode}; it runs as STREAMING, {_NOT_STREAMING[mode]}")
    interval = options.read(configuration, options.CHECKPOINT_INTERVAL)
    if interval is None or interval > _LONGEST_INTERVAL_MS or interval <= 0:
        put(options.CHECKPOINT_INTERVAL, _INTERVAL_MS)
        was = f"every {interval / 1000:g} s" if interval else "never"
        notes.append(f"checkpoints every {_INTERVAL_MS} ms (the program takes them {was})")
    put(options.CHECKPOINT_STORAGE, "filesystem")
    put(options.CHECKPOINT_DIR, f"{segment.folder}/checkpoints")
    put(options.SAVEPOINT_DIR, f"{segment.folder}/savepoints")
    put(options.EXTERNALIZED_RETENTION, "RETAIN_ON_CANCELLATION")
    put(options.TOLERABLE_FAILED_CHECKPOINTS, 1000)
    put(options.RESTART_STRATEGY, "fixed-delay")
    put(options.FIXED_DELAY_ATTEMPTS, 1_000_000 if segment.kinds else _UNDISTURBED_RESTARTS)
    if not segment.kinds:  # it fails by itself: not for ever
        put(options.STOP_ON_REPEATED_FAILURE, 3)
    put(options.FIXED_DELAY_DELAY, 100)
    put(options.CHECK_MUTATIONS, True)
    put(options.REST_ENABLED, False)
    for option, value in _HEARTBEAT_MS.items():
        put(option, value)
    if segment.restore is not None:
        put(options.RECOVERY_PATH, segment.restore)
        put(options.RECOVERY_CLAIM_MODE, "NO_CLAIM")
    for key, text in segment.settings.items():
        configuration.set_string(key, text)
    _lead(configuration, segment, notes)
    return configuration


def _lead(configuration: Configuration, segment: Segment, notes: list[str]) -> None:
    """A driver that was killed is started again and goes on as the same job. The program's own cluster id, if it has
    one, is not touched: a job that runs for real may have it."""
    if options.read(configuration, options.HA_TYPE) != "NONE":
        notes.append(
            "high availability is chaos' own, in the folder of the round: the program's cluster id is not used"
        )
    configuration.set(options.HA_TYPE, "filesystem")
    configuration.set(options.HA_STORAGE_DIR, segment.leases)
    configuration.set(options.HA_CLUSTER_ID, segment.cluster_id)
    configuration.set(options.HA_STANDBY, False)


def _operators(graph: JobGraph, segment: Segment, exactly_once: bool) -> tuple[OperatorSeen, ...]:
    """In topological order."""
    inputs: dict[str, list[str]] = {}
    for vertex in graph.vertices:
        for node in vertex.operators:
            if node.link is not None:
                inputs.setdefault(node.operator_id, []).append(vertex.operators[node.link.upstream].operator_id)
    for edge in graph.edges:
        upstream = graph.vertices[edge.source].operators[edge.source_operator].operator_id
        inputs.setdefault(graph.vertices[edge.target].operators[0].operator_id, []).append(upstream)
    found = []
    for vertex in graph.vertices:
        for node in vertex.operators:
            is_sink = isinstance(node.spec, (SinkSpec, SinkFunctionSpec))
            kind = "source" if isinstance(node.spec, SourceSpec) else "sink" if is_sink else "operator"
            guarantee = _GUARANTEES[guarantee_of(node, exactly_once)] if is_sink else ""
            collects = is_sink and isinstance(getattr(node.spec, "sink", None), CollectSink)
            found.append(
                OperatorSeen(
                    operator_id=node.operator_id,
                    name=node.name,
                    kind=kind,
                    inputs=tuple(inputs.get(node.operator_id, ())),
                    guarantee=guarantee,
                    recorded=is_sink and (collects or not segment.keep_sinks),
                    stateful=_is_stateful(node),
                    parallelism=vertex.parallelism,
                )
            )
    return tuple(found)


def _is_stateful(node: OperatorNode) -> bool:
    """With state of its own, or of the user's function. What a function keeps in attributes is no state."""
    spec = node.spec
    return (
        spec.keyed
        or isinstance(spec, BroadcastProcessSpec)
        or (not isinstance(spec, SourceSpec) and isinstance(spec.user_function, CheckpointedFunction))
    )


def guarantee_of(node: OperatorNode, exactly_once: bool) -> DeliveryGuarantee:
    """What the sink promises over a recovery: two phases are exactly once; the collect sink's results are, too."""
    sink = getattr(node.spec, "sink", None)
    chosen = getattr(sink, "_guarantee", None)
    if isinstance(chosen, DeliveryGuarantee) and chosen is not DeliveryGuarantee.EXACTLY_ONCE:
        return chosen
    two_phases = isinstance(sink, CollectSink) or (isinstance(sink, Sink) and _commits(sink))
    return DeliveryGuarantee.EXACTLY_ONCE if two_phases and exactly_once else DeliveryGuarantee.AT_LEAST_ONCE


def _commits(sink: Sink[Any, Any]) -> bool:
    return type(sink).create_committer is not Sink.create_committer and sink.create_committer() is not None


def _vertex(vertex: JobVertex, segment: Segment, scalable: int, exactly_once: bool) -> JobVertex:
    originals = _behind_a_head(vertex)
    nodes = [_node(node, segment, exactly_once) for node in originals]
    for index, node in enumerate(originals):
        if isinstance(node.spec, SinkSpec) and isinstance(node.spec.sink, CollectSink):
            recorder = SinkSpec(_recorder(node, segment, exactly_once))
            nodes.append(_leaf(node, "recorder", recorder, node.link))
        elif not isinstance(node.spec, (SinkSpec, SinkFunctionSpec)) and originals is vertex.operators:
            probe = SinkSpec(ProbeSink(segment.folder, node.operator_id))
            nodes.append(_leaf(node, "probe", probe, ChainLink(index)))
    parallelism = vertex.parallelism
    if segment.parallelism is not None and scalable > 1 and parallelism == scalable:
        parallelism = segment.parallelism
    most = max(vertex.max_parallelism, parallelism)
    return dataclasses.replace(vertex, operators=tuple(nodes), parallelism=parallelism, max_parallelism=most)


def _node(node: OperatorNode, segment: Segment, exactly_once: bool) -> OperatorNode:
    spec = node.spec
    if isinstance(spec, SourceSpec) and spec.source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED:
        limits = segment.limits.get(node.operator_id)
        source = LimitedSource(
            spec.source,
            node.operator_id,
            segment.folder,
            limits=limits,
            records=segment.records if limits is None else None,
            seconds=segment.duration_s if limits is None else None,
        )
        return dataclasses.replace(node, spec=dataclasses.replace(spec, source=source))
    collects = isinstance(getattr(spec, "sink", None), CollectSink)
    if isinstance(spec, (SinkSpec, SinkFunctionSpec)) and not segment.keep_sinks and not collects:
        return dataclasses.replace(node, spec=SinkSpec(_recorder(node, segment, exactly_once)))
    return node


def _recorder(node: OperatorNode, segment: Segment, exactly_once: bool) -> RecordingSink:
    guarantee = guarantee_of(node, exactly_once)
    return RecordingSink(segment.folder, node.operator_id, guarantee, segment.order_by, segment.number)


def _behind_a_head(vertex: JobVertex) -> tuple[OperatorNode, ...]:
    """The operators of the vertex. A collect sink that is the head gets a head of its own, which hands records on: only
    what has one can have another reader beside it."""
    head = vertex.operators[0]
    if not (isinstance(head.spec, SinkSpec) and isinstance(head.spec.sink, CollectSink)):
        return vertex.operators
    handing_on = OperatorNode(OperatorId(f"{head.operator_id}-head"), head.name, None, MapSpec(_same))
    return (handing_on, dataclasses.replace(head, link=ChainLink(0)))


def _same(value: Any) -> Any:
    return value


def _leaf(node: OperatorNode, role: str, spec: SinkSpec, link: ChainLink | None) -> OperatorNode:
    """Another reader beside `node`, or of it."""
    return OperatorNode(
        OperatorId(f"{node.operator_id}-{role}"), f"Sink: chaos {role} of {node.name}", None, spec, link
    )
