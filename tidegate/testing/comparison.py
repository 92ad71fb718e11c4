"""A job with failures against the same job without: what exactly once means, as an assertion."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.chaos.canonical import digest, order_key, shown
from tidegate.chaos.differences import (
    States,
    compare_records,
    differing_states,
    keyed_states,
    orders,
    unreadable_states,
)
from tidegate.chaos.recording import Recorded
from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import OrderNotComparedWarning
from tidegate.common.job_status import JobStatus
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream.stream import DataStream
from tidegate.storage.location import StorageLocation
from tidegate.testing.clock import EPOCH
from tidegate.testing.drivers import Drivers, KeptJob, newest_checkpoint
from tidegate.testing.faults import DriverFault, Fault, FreezeWorker
from tidegate.testing.in_process_job import InProcessJob

_PAUSES = 8  # of the workers in the run that tells which records have an order


def assert_same_under_faults(
    build: Callable[[], DataStream], faults: Sequence[Fault], *, order_by: str = "auto", state: bool = True
) -> list[Any]:
    """Run the job that `build` makes (a new environment each time, bounded input, checkpointing on) once undisturbed
    and once with the faults. Both have to finish with the same records, which are returned, and the same keyed state.

    Records that have the same `order_by` have to come in the same order as well: a field by name or index, "auto" for
    the first field of tuples, lists and rows, "none" for no order. When a job in several slots gives them in another
    order as soon as workers pause for a moment, without any failure, they have no order: an `OrderNotComparedWarning`
    says so. `state=False` leaves state out; state that cannot be read is an AssertionError, since it would be equal to
    anything. Checkpoints are written to a temporary folder, wherever the job would keep them.

    Raises AssertionError that says what was lost, doubled, out of order or different, or which of the faults have not
    happened."""
    expected = _run(build, (), order_by)
    found = _run(build, faults, order_by)
    if found.left:
        raise AssertionError(
            f"of the plan {found.left} has not happened, so this shows nothing: the job has ended before, or has no "
            "operator of that name, or nothing that the fault could strike"
        )
    ordered = order_by != "none" and _keeps_order(build, expected, order_by)
    if not ordered and order_by != "none":
        warnings.warn(
            "the order of the records was not compared: those of one key come in another order as soon as workers "
            'pause for a moment. order_by=... names another field, order_by="none" says that there is no order',
            OrderNotComparedWarning,
            stacklevel=2,
        )
    verdict = compare_records("results", "exactly once", expected.records, found.records, ordered)
    states = differing_states(expected.states, found.states) if state else []
    unreadable = unreadable_states(expected.states, found.states) if state else []
    if unreadable:
        raise AssertionError("\n".join([*unreadable, "state=False leaves keyed state out of the comparison."]))
    if verdict.held and not states:
        return expected.results
    said = (
        ""
        if verdict.held
        else (
            f"{verdict.lost} records are lost, {verdict.doubled} are there too often, {verdict.changed} are in no "
            f"undisturbed run, {verdict.out_of_order} are out of order"
        )
    )
    details = "".join(f"\n  {one}" for one in (*verdict.examples, *states))
    raise AssertionError(
        f"with {list(faults)} the job gives other {'results' if said else 'state'}{': ' if said else ''}{said}"
        f"{details}\nState that is kept in attributes of a function instead of in state, functions that are not "
        "deterministic and state that is changed without update() do that."
    )


@dataclass(frozen=True)
class _Outcome:
    results: list[Any]  # that reached the program: of a job with one driver
    records: list[Recorded]
    states: States
    left: list[Fault]  # that have not happened
    lasted_ms: float
    slots: int
    heartbeat_timeout_ms: float


def _run(build: Callable[[], DataStream], faults: Sequence[Fault], order_by: str) -> _Outcome:
    with tempfile.TemporaryDirectory(prefix="tidegate-faults-") as folder:
        if any(isinstance(fault, DriverFault) for fault in faults):
            return _run_drivers(build, faults, Path(folder), order_by)
        stream = build()
        stream.sink_to(CollectSink())
        env = stream.get_execution_environment()
        _keep_checkpoints(env._configuration, folder, "jobmanager")
        with KeptJob(env, faults) as job:
            job.run_to_end()
        return _outcome(job, job.results, _recorded(job.results, order_by), newest_checkpoint(Path(folder)))


def _run_drivers(build: Callable[[], DataStream], faults: Sequence[Fault], folder: Path, order_by: str) -> _Outcome:
    """What reaches a program is gone with its driver: so records are those of a sink, which outlives it."""
    drivers = Drivers(build, list(faults), folder, order_by)
    checkpoints = str(folder / "checkpoints")
    records = drivers.run(lambda env: _keep_checkpoints(env._configuration, checkpoints, "filesystem"))
    root = StorageLocation.parse(drivers.last.prepared.storage.root)
    newest = newest_checkpoint(Path(root.local_path)) or drivers.started_from
    return _outcome(drivers.last, [], records, newest)


def _keep_checkpoints(configuration: Configuration, folder: str, storage: str) -> None:
    kept = options.read(configuration, options.CHECKPOINT_DIR) or options.read(
        configuration, options.CHECKPOINT_STORAGE
    )
    if not kept or storage == "filesystem":
        configuration.set(options.CHECKPOINT_STORAGE, storage)
    configuration.set(options.CHECKPOINT_DIR, folder)


def _outcome(job: InProcessJob, results: list[Any], records: list[Recorded], newest: str | None) -> _Outcome:
    """`newest`: the newest complete checkpoint, which holds the end of the input; None: the job takes none."""
    status = None if job.ended is None else job.ended.status
    if status is not JobStatus.FINISHED:
        raise AssertionError(f"the job ended as {status and status.name}: {job.failure}") from job.error
    return _Outcome(
        results=results,
        records=records,
        states={} if newest is None else keyed_states(newest),
        left=job.faults.left,
        lasted_ms=job.clock.now - EPOCH,
        slots=job.graph.num_slots,
        heartbeat_timeout_ms=job.prepared.settings.heartbeat_timeout_ms,
    )


def _recorded(results: Sequence[Any], order_by: str) -> list[Recorded]:
    return [Recorded(digest(value), order_key(value, order_by), shown(value)) for value in results]


def _keeps_order(build: Callable[[], DataStream], expected: _Outcome, order_by: str) -> bool:
    """Whether the records of each key come in the same order when workers pause in turn."""
    if expected.slots == 1:
        return True
    apart = expected.lasted_ms / _PAUSES
    pause_ms = min(apart / 2, expected.heartbeat_timeout_ms / 4)
    pauses = [FreezeWorker(i * apart, for_ms=pause_ms, slot=i % expected.slots) for i in range(_PAUSES)]
    paused = _run(build, pauses, order_by)
    return orders(paused.records) == orders(expected.records)
