"""A job with failures against the same job without: what exactly once means, as an assertion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.common.job_status import JobStatus
from tidegate.datastream.stream import DataStream
from tidegate.testing.faults import Fault
from tidegate.testing.in_process_job import InProcessJob


def assert_same_under_faults(build: Callable[[], DataStream], faults: Sequence[Fault]) -> list[Any]:
    """Run the job that `build` makes (a new environment each time, bounded input, checkpointing on) once undisturbed
    and once with the faults. Both have to finish with the same records, in any order; the records are returned.

    Raises AssertionError that says what was lost and what was doubled."""
    expected = _run(build, ())
    found = _run(build, faults)
    lost = _less(expected, found)
    doubled = _less(found, expected)
    if lost or doubled:
        raise AssertionError(
            f"with {list(faults)} the job gives other results: {len(lost)} records are lost {_some(lost)} and "
            f"{len(doubled)} are there too many {_some(doubled)}. State that is kept in attributes of a function "
            "instead of in state, functions that are not deterministic and state that is changed without update() do "
            "that."
        )
    return expected


def _run(build: Callable[[], DataStream], faults: Sequence[Fault]) -> list[Any]:
    with InProcessJob.collecting(build(), faults) as job:
        status = job.run_to_end()
        if status is not JobStatus.FINISHED:
            raise AssertionError(f"the job ended as {status.name}: {job.failure}") from job.error
        return job.results


def _less(records: list[Any], others: list[Any]) -> list[Any]:
    """The records that are missing among the others; they need not be hashable."""
    left = Counter(repr(other) for other in others)
    missing = []
    for record in records:
        left[repr(record)] -= 1
        if left[repr(record)] < 0:
            missing.append(record)
    return missing


def _some(records: list[Any]) -> str:
    return f"({', '.join(repr(r) for r in records[:5])}{', ...' if len(records) > 5 else ''})" if records else ""
