"""What MICRO_BATCH needs of Spark, for tests that run it."""

from __future__ import annotations

import pytest

from tidegate.common.errors import ConfigurationError
from tidegate.spark.micro_batch.query import check_spark


def _lacking() -> str | None:
    try:
        check_spark()
    except ConfigurationError as error:
        return str(error)
    return None


needs_micro_batch = pytest.mark.skipif(_lacking() is not None, reason=_lacking() or "")
