"""Sinks that chaos puts into a job: recorders in the place of the program's own sinks, and probes behind operators.

Both use nothing but the contract of sinks, so what they say of a job is what any sink could see of it. A recorder in
the place of an exactly-once sink has two phases (a file is renamed when its checkpoint is complete); one in the place
of an at-least-once sink writes at once. A probe counts the records of one operator, with a digest of them all; both are
state of the job, so at the end of an exactly-once job they are exact, whatever happened on the way.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from tidegate.chaos.canonical import digest, order_key, shown
from tidegate.chaos.segment import damaged
from tidegate.common.decoding import UNREADABLE
from tidegate.contracts.connectors import Committer, DeliveryGuarantee, Sink, SinkContext, SinkWriter

_MODULUS = 1 << 64
T = TypeVar("T")


class Recorded(NamedTuple):
    """One record that came out of a sink."""

    digest: bytes
    key: bytes  # of what has an order; b"": nothing
    text: str


class RecordingSink(Sink[Any, tuple[str, str]]):
    """Writes to `<folder>/sinks/<name>`. Records of one subtask come back in their order, segment after segment."""

    def __init__(self, folder: str, name: str, guarantee: DeliveryGuarantee, order_by: str, segment: int) -> None:
        self._folder = os.path.join(folder, "sinks", name)
        self._guarantee = guarantee
        self._order_by = order_by
        self._segment = segment

    def create_writer(self, context: SinkContext) -> SinkWriter[Any, tuple[str, str]]:
        os.makedirs(self._folder, exist_ok=True)
        prefix = f"{self._segment:04}"
        if self._guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            return _TwoPhaseRecorder(self._folder, prefix, context, self._order_by)
        return _OnePhaseRecorder(self._folder, prefix, context, self._order_by)

    def create_committer(self) -> Committer[tuple[str, str]] | None:
        return _Renaming() if self._guarantee is DeliveryGuarantee.EXACTLY_ONCE else None


class _TwoPhaseRecorder(SinkWriter[Any, tuple[str, str]]):
    def __init__(self, folder: str, prefix: str, context: SinkContext, order_by: str) -> None:
        self._folder, self._prefix, self._subtask = folder, prefix, context.subtask
        self._order_by = order_by
        self._next = max((number for number in context.restored_state), default=0)
        self._records: list[tuple[bytes, bytes, str]] = []
        self._prepared: list[tuple[str, str]] = []

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._records += [_record(value, self._order_by) for value in values]

    def flush(self, end_of_input: bool) -> None:
        if not self._records:
            return
        # A name that nobody else has: what comes again stands beside what was committed before, and never replaces it.
        unique = uuid.uuid4().hex
        final = os.path.join(self._folder, f"{self._prefix}-{self._next:08}-{self._subtask:04}-{unique}.records")
        pending = os.path.join(self._folder, f".{unique}.pending")
        _write(pending, self._records)
        self._prepared.append((pending, final))
        self._records = []
        self._next += 1

    def prepare_commit(self) -> list[tuple[str, str]]:
        prepared, self._prepared = self._prepared, []
        return prepared

    def snapshot_state(self, checkpoint_id: int) -> list[Any]:
        return [self._next]


class _OnePhaseRecorder(SinkWriter[Any, tuple[str, str]]):
    """Every batch is written when it comes: what is processed again after a recovery is written again."""

    def __init__(self, folder: str, prefix: str, context: SinkContext, order_by: str) -> None:
        self._order_by = order_by
        self._path = os.path.join(folder, f"{prefix}-{context.attempt:08}-{context.subtask:04}")
        self._written = 0

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        _write(f"{self._path}-{self._written:08}.records", [_record(value, self._order_by) for value in values])
        self._written += 1


class _Renaming(Committer[tuple[str, str]]):
    def commit(self, committables: list[tuple[str, str]]) -> list[tuple[str, str]]:
        for pending, final in committables:
            try:
                os.rename(pending, final)
            except FileNotFoundError:
                if not os.path.exists(final):  # otherwise an earlier try has done it
                    raise
        return []


def _record(value: Any, order_by: str) -> tuple[bytes, bytes, str]:
    return digest(value), order_key(value, order_by), shown(value)


def _write(path: str, records: list[tuple[bytes, bytes, str]]) -> None:
    unfinished = path + ".part"
    Path(unfinished).write_bytes(msgspec.msgpack.encode(records))
    os.rename(unfinished, path)


def recorded(folder: str, name: str) -> Iterator[Recorded]:
    """What a sink has made visible. Records of one key come in their order when the sink is exactly once."""
    directory = Path(folder) / "sinks" / name
    files = sorted(directory.glob("*.records")) if directory.exists() else []
    for file in files:
        for one in _read(file, list[tuple[bytes, bytes, str]]):
            yield Recorded(*one)


def _read(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(file.read_bytes(), type=kind)
    except UNREADABLE as error:
        raise damaged(file)(str(error)) from error


# ---------------------------------------------------------------- probes


@dataclass(frozen=True)
class Total:
    """All records that an operator has emitted: how many, and a digest that no order changes."""

    count: int = 0
    digest: int = 0

    def plus(self, count: int, digest: int) -> Total:
        return Total(self.count + count, (self.digest + digest) % _MODULUS)


class ProbeSink(Sink[Any, tuple[str, int, int]]):
    """Its total stands in `<folder>/totals` when the job has ended."""

    def __init__(self, folder: str, operator_id: str) -> None:
        self._folder = os.path.join(folder, "totals")
        self._operator_id = operator_id

    def create_writer(self, context: SinkContext) -> SinkWriter[Any, tuple[str, int, int]]:
        return _Probe(os.path.join(self._folder, f"{self._operator_id}-{context.subtask:04}"), context)

    def create_committer(self) -> Committer[tuple[str, int, int]]:
        return _WriteTotals()


class _Probe(SinkWriter[Any, tuple[str, int, int]]):
    def __init__(self, path: str, context: SinkContext) -> None:
        self._path = path
        self._total = Total()
        for count, added in context.restored_state:
            self._total = self._total.plus(count, added)
        self._ended = False

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        added = sum(int.from_bytes(digest(value)[:8], "little") for value in values) % _MODULUS
        self._total = self._total.plus(len(values), added)

    def flush(self, end_of_input: bool) -> None:
        self._ended = self._ended or end_of_input

    def prepare_commit(self) -> list[tuple[str, int, int]]:
        return [(self._path, self._total.count, self._total.digest)] if self._ended else []

    def snapshot_state(self, checkpoint_id: int) -> list[Any]:
        return [(self._total.count, self._total.digest)]


class _WriteTotals(Committer[tuple[str, int, int]]):
    def commit(self, committables: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        for path, count, added in committables:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_bytes(msgspec.msgpack.encode((count, added)))
        return []


def totals(folder: str) -> dict[str, Total]:
    """By operator id. Only of operators whose subtasks have all come to their end."""
    found: dict[str, Total] = {}
    directory = Path(folder) / "totals"
    for file in directory.iterdir() if directory.exists() else ():
        operator_id = file.name.rpartition("-")[0]
        found[operator_id] = found.get(operator_id, Total()).plus(*_read(file, tuple[int, int]))
    return found
