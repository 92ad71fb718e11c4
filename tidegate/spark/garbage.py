"""Python's garbage collector while records are processed."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_THRESHOLDS = 50_000, 20, 50


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Batches and keyed state are many objects and no garbage, and looking through them again and again takes up to a
    quarter of the time. The worker process is Spark's and runs other tasks later: put back at the end."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
