"""State as DataFrames on real Spark: read from what jobs wrote, and written for jobs to resume from."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.spark.recovery_kit import completed, counted, latest_checkpoint, until, with_checkpoints
from tidegate.common import Row, Types
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.datastream import ExternalizedCheckpointRetention, KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import DiscardingSink
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.snapshots import SavepointBuilder, iterate_state, list_states, read_state
from tidegate.spark.state_tables import read
from tidegate.spark.versions import has_python_data_sources

pytestmark = pytest.mark.spark
MakeEnv = Callable[..., StreamExecutionEnvironment]
GOLDEN = str(Path(__file__).parents[2] / "golden" / "savepoint-v1")

COUNT = ValueStateDescriptor("count", Types.LONG())
SEEN = ListStateDescriptor("seen", Types.STRING())
TAGS = MapStateDescriptor("tags", Types.STRING(), Types.DOUBLE())


@pytest.fixture(scope="module")
def reader(spark: Any) -> Callable[..., Any]:
    """By the format, which Spark 3.5 cannot have."""
    if not has_python_data_sources():
        return partial(read, spark)

    def load(
        path: Any, operator: str | None = None, state: str | None = None, *, schema: Any = None, **options: Any
    ) -> Any:
        wanted = {"operator": operator, "state": state, **options} if operator else options
        source = spark.read.format("tidegate-state").options(**wanted)
        return (source if schema is None else source.schema(schema)).load(str(path))

    return load


class Recall(KeyedProcessFunction):
    """Emits what a key's state holds, and fires the timer that it was given."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(COUNT)
        self.seen = runtime_context.get_list_state(SEEN)
        self.tags = runtime_context.get_map_state(TAGS)

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value, count, tuple(self.seen.get()), tuple(sorted(self.tags.items()))

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "timer", timestamp


def test_a_savepoint_from_dataframes_is_resumed_exactly(
    make_env: MakeEnv, spark: Any, reader: Any, tmp_path: Path
) -> None:
    users = 300
    counts = spark.range(users).selectExpr("concat('u', id) AS user", "id * 10 AS n", "id")
    seen = counts.selectExpr("user", "explode(sequence(0, id % 3)) AS i").selectExpr("user", "i", "concat('s', i) AS s")
    builder = SavepointBuilder.new_savepoint(max_parallelism=16)
    builder.with_keyed_state("recall", COUNT, counts, key="user", value="n")
    builder.with_keyed_state("recall", SEEN, seen, key="user", element="s", order_by="i")
    builder.with_keyed_state(
        "recall", TAGS, counts, key=lambda row: row.user, map_key="user", map_value=lambda row: row.n / 4
    )
    builder.with_timers("recall", [(f"u{i}", i) for i in range(5)])
    path = builder.write(str(tmp_path / "sp"))
    tables = list((tmp_path / "sp").glob("recall-*/keyed-count/*.parquet"))
    assert len(tables) == spark.sparkContext.defaultParallelism  # written in parallel
    assert spark.read.parquet(str(tables[0].parent)).count() == users
    assert sorted(map(tuple, reader(path, "recall", "count").select("key", "value").collect())) == sorted(
        (f"u{i}", i * 10) for i in range(users)
    )

    found = recalled(make_env(3, {"execution.state-recovery.path": path}), users + 10, "recall")
    expected: list[Any] = [(f"u{i}", "timer", i) for i in range(5)]
    for i in range(users):
        items = tuple(f"s{n}" for n in range(i % 3 + 1))
        expected.append((f"u{i}", i * 10 + 1, items, ((f"u{i}", i * 2.5),)))
    expected += [(f"u{i}", 1, (), ()) for i in range(users, users + 10)]
    assert found == sorted(expected, key=repr)

    changed = SavepointBuilder.from_existing_savepoint(path).change_operator_identifier("recall", "remember")
    changed.with_keyed_state("remember", COUNT, [("u1", 100)]).remove_state("remember", "seen")
    path = changed.write(str(tmp_path / "changed"))
    settings = {"execution.state-recovery.path": path, "state.backend.type": "rocksdb"}
    found = recalled(make_env(2, settings), users, "remember")
    assert found == sorted(
        [(f"u{i}", "timer", i) for i in range(5)]
        + [(f"u{i}", 101 if i == 1 else 1, (), ((f"u{i}", i * 2.5),)) for i in range(users)],
        key=repr,
    )


def test_keys_and_values_are_those_that_from_spark_gives(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments in UTC without a zone, whatever the session's zone is; columns of any name; keys of maps hashable. And a
    session that says nothing of Python uses the driver's."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "there-is-no-such-python")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        data = spark.sql("SELECT timestamp'2024-05-06 07:08:09Z' AS t, map(array(1), struct(t)) AS m, 5 AS n")
        data = data.toDF("the.time", "m `", "n")
        builder = SavepointBuilder.new_savepoint(max_parallelism=4)
        builder.with_keyed_state("op", ValueStateDescriptor("v"), data, key="the.time", value="m `")
        builder.with_keyed_state(
            "op", ListStateDescriptor("l"), data, key=lambda r: (r[0],), element="the.time", order_by="n"
        )
        path = builder.write(str(tmp_path / "savepoint"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9)
    assert [tuple(e) for e in iterate_state(path, "op", "v")] == [(moment, None, {(1,): Row(t=moment)})]
    assert [tuple(e) for e in iterate_state(path, "op", "l")] == [((moment,), None, [moment])]


def recalled(env: StreamExecutionEnvironment, users: int, uid: str) -> list[Any]:
    stream = env.from_collection([f"u{i}" for i in range(users)], Types.STRING())
    stream = stream.key_by(lambda user: user, Types.STRING()).process(Recall()).name("recall").uid(uid)
    with stream.execute_and_collect("resumed") as results:
        return sorted(results, key=repr)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_checkpoints_of_a_running_job_are_read(make_env: MakeEnv, reader: Any, tmp_path: Path, backend: str) -> None:
    """Incremental ones, on the heap with unaligned checkpoints enabled; compared with the plain reader."""
    env = with_checkpoints(make_env(2, {"state.backend.type": backend}), tmp_path / "chk", 100)
    config = env.get_checkpoint_config()
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    if backend == "hashmap":
        config.enable_unaligned_checkpoints()
    counted(env, None, 3000.0).sink_to(DiscardingSink())
    client = env.execute_async("counting")
    until(lambda: len(completed(client)) > 3, "checkpoints")
    client.cancel()
    until(lambda: client.get_job_execution_result().done(), "the end")
    path = latest_checkpoint(tmp_path / "chk")
    frame = reader(path.parent, "count", "count", numPartitions=4)  # the job's folder: its newest checkpoint
    assert frame.schema.simpleString().startswith("struct<key_group:int,key:string,value:struct<f0:bigint,f1:binary>,")
    rows = frame.selectExpr("key", "value.f0").collect()
    assert sorted(r["key"] for r in rows) == sorted(f"k{i}" for i in range(50))
    plain = read_state(str(path), "count", "count").to_pylist()
    assert sorted((r["key"], r["f0"]) for r in rows) == sorted((r["key"], r["value"]["f0"]) for r in plain)
    listed = reader(path).where("uid = 'count'").collect()
    assert [tuple(r) for r in listed] == [tuple(s) for s in list_states(str(path)) if s.uid == "count"]


@pytest.mark.skipif(not has_python_data_sources(), reason="Spark has data sources in Python since 4.0")
def test_the_function_reads_what_the_format_reads(spark: Any, reader: Any) -> None:
    for state in (None, "row"):
        place = (GOLDEN, "everything", state) if state is not None else (GOLDEN,)
        ours, theirs = read(spark, *place), reader(*place)
        assert ours.schema == theirs.schema
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.collect()))
    with pytest.raises(ConfigurationError, match="unknown option speed"):
        read(spark, GOLDEN, speed=1)


def test_what_is_wrong_is_said(spark: Any, reader: Any, tmp_path: Path) -> None:
    for arguments, message in (
        ((GOLDEN, "x", "count"), "it has: 'ticks', 'everything', 'out'"),
        ((GOLDEN, "everything", "x"), "no state 'x'"),
        ((tmp_path / "none",), "no snapshot at"),
    ):
        with pytest.raises(Exception, match=message):
            reader(*arguments)
    with pytest.raises(Exception, match="unknown option speed"):
        reader(GOLDEN, speed=1)
    with pytest.raises(Exception, match="has no column wrong; it has key_group, key, value"):
        reader(GOLDEN, "everything", "row", schema="wrong int").collect()
    frame = reader(GOLDEN, "everything", "row", schema="value struct<tags:array<string>,id:int>, key string")
    assert {(r["key"], r["value"]["id"]) for r in frame.collect()} == {(str(i), 50 + i) for i in range(10)}

    pairs = spark.createDataFrame([("a", 1, "x"), ("a", 2, "y")], "user string, n int, s string")
    for arguments, message in (
        ({"key": "user", "value": "n"}, "key 'a': it comes more than once"),
        ({"key": "user", "value": "s"}, "the value does not fit its declared type: .*'x'"),
        ({"key": "who", "value": "n"}, "no column who; it has user, n, s"),
        ({"value": "n"}, "needs key="),
        ({"key": "user"}, "needs value="),
    ):
        builder = SavepointBuilder.new_savepoint()
        with pytest.raises((ConfigurationError, SnapshotError), match=message):
            builder.with_keyed_state("u", COUNT, pairs.limit(1 if "fit" in message else 2), **arguments).write(
                str(tmp_path / "sp")
            )
        assert not (tmp_path / "sp").exists()
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match="got a streaming one"):
        SavepointBuilder.new_savepoint().with_keyed_state("u", COUNT, stream, key="value", value="value")
