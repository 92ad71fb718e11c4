"""One real broker and one real database for all tests of this folder."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.connectors.broker import Broker, running_broker
from tests.connectors.components import provided
from tests.connectors.database import Database, running_database
from tests.connectors.on_processes import processes_for_spark


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with provided(), running_broker() as running:
        yield running


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    with provided(), running_database() as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name that no other test has: topics, prefixes, tables."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def on_processes() -> Iterator[None]:
    """Jobs that are started with `on_processes.start_job` have processes of their own for Spark's."""
    with processes_for_spark():
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session with the settings that Tidegate gives its own, on `local[4]`."""
    from tidegate.common import Configuration
    from tidegate.spark.session import obtain_session

    session = obtain_session(Configuration.from_dict({"spark.master": "local[4]"}), None, 4)
    yield session
    session.stop()


@pytest.fixture
def make_env(spark: Any) -> Callable[..., Any]:
    from tidegate.common import Configuration
    from tidegate.datastream import StreamExecutionEnvironment

    def make(parallelism: int = 1, config: dict[str, Any] | None = None) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config or {}), spark=spark)
        return env.set_parallelism(parallelism)

    return make
