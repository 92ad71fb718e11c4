"""pytest finds this by itself once tidegate is installed: the fixture `job_under_faults`.

::

    def test_totals(job_under_faults):
        assert ("ann", 400) in job_under_faults(totals, [FailAt("totals", record=25), KillWorker(after_ms=150)])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from tidegate.datastream.stream import DataStream
    from tidegate.testing.faults import Fault


class JobUnderFaults(Protocol):
    """See `tidegate.testing.assert_same_under_faults`."""

    def __call__(
        self, build: Callable[[], DataStream], faults: Sequence[Fault], *, order_by: str = "auto", state: bool = True
    ) -> list[Any]: ...


@pytest.fixture
def job_under_faults() -> JobUnderFaults:
    """Call it with a function that builds the job and a plan of faults: it runs the job undisturbed and under the plan,
    in this process, and returns its records; see `assert_same_under_faults`."""
    from tidegate.testing.comparison import assert_same_under_faults  # only for tests that use it

    return assert_same_under_faults
