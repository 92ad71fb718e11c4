"""What a program is told when it does what many try first."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

from tidegate.common.errors import ConfigurationError, SerializationError
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.picklability import check_picklable
from tidegate.testing import Harness, InProcessJob


def environment(**arguments: Any) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(**arguments)


def foreign(name: str, module: str) -> Any:
    """An object of a class of another package, which cannot be pickled."""

    def refuse(self: object) -> None:
        raise RuntimeError("only on the driver")

    return type(name, (), {"__module__": module, "__reduce__": refuse, "__iter__": lambda self: iter("ab")})()


def test_a_master_in_place_of_a_session() -> None:
    with pytest.raises(TypeError, match=r'SparkSession, got the string \'local\[2\]\'.*"spark.master": "local\[2\]"'):
        environment(spark="local[2]")
    with pytest.raises(TypeError, match="takes a SparkSession, got int"):
        environment(spark=3)


def test_a_captured_session_says_what_to_use_instead() -> None:
    session = foreign("SparkSession", "pyspark.sql.session")
    env = environment()
    env.from_collection([1]).map(lambda v: session.sql("select 1")).name("query").print()
    graph = build_job_graph(env._operators, env._graph_settings(), "job", env._job_id()).job_graph
    with pytest.raises(SerializationError) as raised:
        check_picklable(graph)
    message = str(raised.value)
    assert "operator 'query'" in message
    assert "the captured variable 'session', of type pyspark.sql.session.SparkSession" in message
    assert "env.from_spark(df)" in message
    assert "df.collect()" in message


@pytest.mark.parametrize(
    ("name", "module", "instead"),
    [
        ("DataFrame", "pyspark.sql.classic.dataframe", r"from_spark\(df\)"),
        ("DataFrame", "pandas.core.frame", r"df.to_dict\('records'\)"),
        ("DataFrame", "polars.dataframe.frame", r"df.to_dicts\(\)"),
        ("Table", "pyarrow.lib", r"table.to_pylist\(\)"),
    ],
)
def test_a_table_is_no_collection(name: str, module: str, instead: str) -> None:
    with pytest.raises(TypeError, match=f"from_collection: takes records, got a {name}; use .*{instead}"):
        environment().from_collection(foreign(name, module))


def test_the_exception_of_a_key_selector_is_shown_once() -> None:
    env = environment()
    env.set_parallelism(2)
    stream = env.from_collection([{"a": 1}]).key_by(lambda r: r["missing"]).map(lambda r: r)
    with InProcessJob.collecting(stream) as job:
        job.run_to_end()
        shown = job.master.failures[-1].failure.traceback
        assert shown.count("KeyError: 'missing'") == 1
        assert "During handling" not in shown


@pytest.mark.parametrize("timestamp", [2**63, -(2**63) - 1, 10**30, 1e30])
def test_timers_beyond_the_range_of_time(timestamp: Any) -> None:
    class Late(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
            ctx.timer_service().register_event_time_timer(timestamp)
            yield value

    with (
        Harness(lambda s: s.key_by(lambda v: v).process(Late())) as harness,
        pytest.raises(ConfigurationError, match="beyond the range of time, which is 64-bit milliseconds"),
    ):
        harness.process(1)


def test_a_stopped_session() -> None:
    session = pytest.importorskip("tidegate.spark.session")
    stopped = types.SimpleNamespace(sparkContext=types.SimpleNamespace(_jsc=None))
    with pytest.raises(ConfigurationError, match=r"has been stopped\. Make a new one"):
        session.obtain_session(environment().get_configuration(), stopped, 1)
