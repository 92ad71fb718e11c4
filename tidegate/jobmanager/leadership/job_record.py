"""The record of a job: what a driver that takes over has to know, and may trust."""

from __future__ import annotations

import msgspec

from tidegate.common.decoding import UNREADABLE
from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import CheckpointId
from tidegate.common.job_status import JobStatus
from tidegate.graph.job_graph import JobGraph

RECORD_VERSION = 1  # counts up whenever a record changes so that the version before cannot use it
_MAX_DIFFERENCES = 5  # named in a message


class SnapshotPointer(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId
    path: str  # URI of its folder: what `-s` takes
    epoch: int  # of the leader that completed it


class OperatorOutline(msgspec.Struct, frozen=True, kw_only=True):
    operator_id: str
    name: str
    parallelism: int


class GraphOutline(msgspec.Struct, frozen=True, kw_only=True):
    """The fingerprint of a graph, told so that a difference can be named."""

    operators: tuple[OperatorOutline, ...]
    edges: tuple[str, ...]  # the keys of the job graph's edges

    @staticmethod
    def of(graph: JobGraph) -> GraphOutline:
        operators = (
            OperatorOutline(operator_id=node.operator_id, name=node.name, parallelism=vertex.parallelism)
            for vertex in graph.vertices
            for node in vertex.operators
        )
        return GraphOutline(
            operators=tuple(sorted(operators, key=lambda o: o.operator_id)),
            edges=tuple(sorted(edge.key for edge in graph.edges)),
        )

    def differences(self, other: GraphOutline) -> list[str]:
        """What `other` has that this one has not, and the reverse; in words. Empty when they are the same."""
        mine, theirs = ({o.operator_id: o for o in outline.operators} for outline in (self, other))
        found = [f"operator '{theirs[i].name}' is new" for i in theirs if i not in mine]
        found += [f"operator '{mine[i].name}' is missing" for i in mine if i not in theirs]
        for i in mine.keys() & theirs.keys():
            if mine[i].parallelism != theirs[i].parallelism:
                text = f"has parallelism {theirs[i].parallelism}, not {mine[i].parallelism}"
                found.append(f"operator '{mine[i].name}' {text}")
            elif mine[i].name != theirs[i].name:
                found.append(f"operator '{mine[i].name}' is called '{theirs[i].name}'")
        return sorted(found) or self._other_edges(other)

    def _other_edges(self, other: GraphOutline) -> list[str]:
        """Of the same operators: which of them are connected in another way."""
        names = {operator.operator_id: operator.name for operator in self.operators}

        def told(key: str) -> str:
            source, _, rest = key.partition("->")
            source, _, tag = source.partition("/")
            target, _, entry = rest.partition(":")
            side = f", side output '{tag}'" if tag else ""
            return f"from '{names.get(source, source)}'{side} to '{names.get(target, target)}', input {entry},"

        found = [f"the connection {told(key)} is new" for key in sorted(set(other.edges) - set(self.edges))]
        return found + [f"the connection {told(key)} is missing" for key in sorted(set(self.edges) - set(other.edges))]


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the store, as JSON. Written only by a leader, and only over the record that it has read or written
    before: so a leader whose record was replaced never writes again."""

    version: int = RECORD_VERSION
    job_id: str  # of the job under all its leaders
    name: str
    graph: GraphOutline
    epoch: int = 0  # the fencing number: one more with every leader
    owner: str = ""  # of one claim of one process: nobody else ever has the same
    beat: int = 0  # one more with every write of the owner
    status: str = JobStatus.RUNNING.name  # or FINISHED, CANCELED, FAILED: then nobody starts it again
    reason: str = ""  # of a failure, for people
    checkpoint: SnapshotPointer | None = None  # the newest completed one: what the next leader starts from
    older: tuple[SnapshotPointer, ...] = ()  # recorded before it and retained, newest first: to fall back to
    savepoint: SnapshotPointer | None = None  # likewise; for people, unless the job is `stopped`
    stopped: bool = False  # at that savepoint: the next leader commits what it holds, and the job is finished

    @property
    def ended(self) -> bool:
        return JobStatus[self.status].is_globally_terminal_state()


class UnusableRecordError(ConfigurationError):
    """There is a record that this program cannot go on from."""


def encode(record: JobRecord) -> bytes:
    return msgspec.json.encode(record)


def decode(data: bytes, where: str) -> JobRecord:
    """UnusableRecordError when it is none, or of a version that is not known here."""
    try:
        version = msgspec.json.decode(data, type=_AnyVersion).version
        if version > RECORD_VERSION:
            raise UnusableRecordError(
                f"the record of the job in {where} has version {version}, this Tidegate reads up to {RECORD_VERSION}: "
                "run the job with the version of Tidegate that wrote it, or a newer one"
            )
        record = msgspec.json.decode(data, type=JobRecord)
        if record.status not in JobStatus.__members__:
            raise UnusableRecordError(f"the record of the job in {where} has the unknown status '{record.status}'")
        return record
    except UNREADABLE as error:
        raise UnusableRecordError(
            f"{where} is not the record of a job ({error}): restore it, or use another high-availability.cluster-id"
        ) from error


class _AnyVersion(msgspec.Struct):
    version: int


def why_not(found: JobRecord, candidate: JobRecord, where: str) -> str | None:
    """Why `candidate` cannot go on with the job that was found; None: it can."""
    if found.name != candidate.name:
        return (
            f"the cluster id of {where} belongs to the job '{found.name}' ({found.job_id}), and this is the job "
            f"'{candidate.name}': give each job its own high-availability.cluster-id"
        )
    if differences := found.graph.differences(candidate.graph):
        shown = "; ".join(differences[:_MAX_DIFFERENCES])
        more = f"; and {len(differences) - _MAX_DIFFERENCES} more" if len(differences) > _MAX_DIFFERENCES else ""
        return (
            f"this program builds another graph than the job '{found.name}' ({found.job_id}) of {where} has: {shown}"
            f"{more}. Run the same program with the same settings; to go on with a changed one, stop the job with a "
            "savepoint and start it from there (-s) under another high-availability.cluster-id"
        )
    return None
