"""One start of the program: what the process that runs it is told, and what it leaves for the one that started it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tidegate.common.decoding import from_json
from tidegate.common.errors import TidegateError

VARIABLE = "TIDEGATE_CHAOS_SEGMENT"
"""Environment variable of the child: the file with its `Segment`."""
FOLDER = "TIDEGATE_CHAOS_FOLDER"
"""Environment variable of the program and of `--verify`: the folder of this run or round, the same for both, and for a
program that is started again."""


STOPPED = "stopped with a savepoint, to run at another parallelism"
"""In the journal of faults."""


class DamagedRunError(TidegateError):
    """A file that a run has left is not what was written: nothing can be said of the run."""


def damaged(path: str | Path) -> Callable[[str], DamagedRunError]:
    """The error for a cause. A disk that was full, or somebody who changed the folder: a run leaves whole files."""
    return lambda why: DamagedRunError(
        f"{path} is damaged ({why}), so its run cannot be judged: run `tidegate chaos` again, in a folder that nothing "
        "else writes to and with room on its disk"
    )


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A round has several when its driver is killed or its job is rescaled. All paths are absolute."""

    folder: str  # of the round
    number: int = 0  # in its round
    seed: str = ""  # of the round; () of kinds: nothing is drawn from it
    kinds: tuple[str, ...] = ()  # of faults
    every_s: float = 2.0  # mean time between two faults
    faults_left: int = 0  # that this segment may still have
    job_since: int = 0  # the segment in which the job began that this one goes on with: a rescale begins another
    restore: str | None = None  # the savepoint that the job began from
    parallelism: int | None = None  # of what runs in parallel; None: as the program has it
    keep_sinks: bool = False
    looked_at: bool = False  # somebody looks at what the sinks have written that are kept
    order_by: str = "auto"  # the field whose records have an order; "none": nothing has
    records: int | None = None  # at most, of each unbounded source, when `limits` are not known yet
    duration_s: float | None = None  # of each unbounded source, when `limits` are not known yet
    limits: dict[str, dict[str, int]] = {}  # operator id -> split id -> records
    rates: dict[str, float] = {}  # operator id -> records a second of each subtask of a source
    settings: dict[str, str] = {}  # that the user gave; they win

    @property
    def leases(self) -> str:
        """The folder from which a driver that is started again knows how far its job had come."""
        return os.path.join(self.folder, "leases")

    @property
    def cluster_id(self) -> str:
        """Of the job: the same for all segments that go on with it."""
        return f"from-segment-{self.job_since}"

    def write(self) -> Path:
        path = Path(self.folder) / f"segment-{self.number}.json"
        path.write_bytes(msgspec.json.encode(self))
        return path


def read_segment(path: str) -> Segment:
    return from_json(Path(path).read_bytes(), Segment, damaged(path))


class OperatorSeen(msgspec.Struct, frozen=True, kw_only=True):
    """An operator of the job as the program built it."""

    operator_id: str
    name: str
    kind: str  # source, operator, sink
    inputs: tuple[str, ...]  # operator ids
    guarantee: str = ""  # of a sink: exactly once, at least once, none
    recorded: bool = False  # its records are compared
    stateful: bool = False  # what it emits may depend on what it has counted before
    parallelism: int = 1


class FailureSeen(msgspec.Struct, frozen=True, kw_only=True):
    attempt: int
    at_ms: float
    summary: str


class SegmentResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the job of a segment went, as far as its driver lived to tell."""

    job_id: str
    operators: tuple[OperatorSeen, ...]
    notes: tuple[str, ...]  # what was set differently from the program
    status: str = "RUNNING"
    started_ms: float = 0.0
    ended_ms: float = 0.0
    statuses: tuple[tuple[str, float], ...] = ()
    restarts: int = 0
    failures: tuple[FailureSeen, ...] = ()
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    records: int = 0  # that tasks have taken in, in all attempts, about
    savepoint: str | None = None  # the job was stopped with it, to be rescaled
    scalable: int = 0  # the parallelism of what runs in parallel; 0: nothing does
    at_least_once: bool = False  # the job's checkpoints: state may count records twice after a recovery
    checkpoints: str = ""  # the folder in which they are; "": the one of the round


def result_file(folder: str, number: int) -> Path:
    return Path(folder) / f"result-{number}.json"


def write_result(folder: str, number: int, result: SegmentResult) -> None:
    path = result_file(folder, number)
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(msgspec.json.encode(result))
    unfinished.replace(path)


def read_result(folder: str, number: int) -> SegmentResult | None:
    path = result_file(folder, number)
    return from_json(path.read_bytes(), SegmentResult, damaged(path)) if path.exists() else None


# ---------------------------------------------------------------- the journal of faults


def note_fault(folder: str, kind: str, **details: Any) -> None:
    """One line, written at once: the process may be gone a moment later."""
    line = json.dumps({"kind": kind, "at_ms": time.time() * 1000, **details}) + "\n"
    file = os.open(os.path.join(folder, "faults.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def faults_of(folder: str) -> Iterator[dict[str, Any]]:
    path = Path(folder) / "faults.jsonl"
    for line in path.read_bytes().splitlines() if path.exists() else ():
        yield from_json(line, dict[str, Any], damaged(path))


def say_problem(folder: str, text: str) -> None:
    """Why the program cannot be put under chaos: a sentence for the user."""
    (Path(folder) / "problem.txt").write_text(text)


def problem_of(folder: str) -> str | None:
    path = Path(folder) / "problem.txt"
    return path.read_text() if path.exists() else None
