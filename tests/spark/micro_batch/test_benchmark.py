"""The benchmark of this mode, with next to nothing to do: each part gives its figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.micro_batch import BUCKETS, PARTS, TINY, measure
from tests.spark.micro_batch.needed import needs_micro_batch

pytestmark = [needs_micro_batch, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]
FIGURES = {"w1": 7, "empty": 1, "latency": 3, "recovery": 1, "few": 2 * len(BUCKETS)}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_gives_its_figures(part: str, spark: Any) -> None:
    figures = measure(TINY, [part])
    assert len(figures) == FIGURES[part]
    assert not [figure for figure in figures if "left out" in figure.value]
