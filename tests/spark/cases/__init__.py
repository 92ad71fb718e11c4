"""Every method of the DataStream API with its exact results, as data."""

from __future__ import annotations

from tests.spark.cases import connected, keyed, outside_calls, partitioning, single, sources_and_types, timed
from tests.spark.cases.case import ApiCase

ALL_CASES: list[ApiCase] = [
    *single.CASES,
    *partitioning.CASES,
    *keyed.CASES,
    *connected.CASES,
    *sources_and_types.CASES,
    *timed.CASES,
    *outside_calls.CASES,
]
