"""How large the keyed states of an operator are in one subtask, for those who look at the job."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

from tidegate.common.value_sizes import estimated_size

_SAMPLED = 16  # entries whose size stands for that of all


class StateFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`entries` are keys, or keys and windows. RocksDB only estimates: a list counts once per chunk, a map once per
    entry, and what was changed a moment ago may count twice."""

    entries: int
    exact: bool  # the number of entries; the bytes never are
    bytes: int  # of Python's objects on the heap, of the database's files


def size_by_sample(items: Iterable[Any], count: int) -> int:
    """About how many bytes so many items take, when the first ones stand for all."""
    sample = [estimated_size(item) for item in islice(items, _SAMPLED)]
    return sum(sample) * count // len(sample) if sample else 0
