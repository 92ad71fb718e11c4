"""One Spark for all tests of this folder: starting it costs seconds, a job on it a fraction of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment

SLOTS = 4


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session with the settings that Tidegate gives its own, on `local[4]`."""
    from tidegate.spark.session import obtain_session

    session = obtain_session(Configuration.from_dict({"spark.master": f"local[{SLOTS}]"}), None, SLOTS)
    yield session
    session.stop()


@pytest.fixture
def make_env(spark: Any) -> Callable[..., StreamExecutionEnvironment]:
    def make(parallelism: int = 1, config: dict[str, Any] | None = None) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config or {}), spark=spark)
        return env.set_parallelism(parallelism)

    return make
