"""DataFrames in and out, in both modes: every type, exact replay, Delta and Parquet under kills, bad input."""

from __future__ import annotations

import datetime
import signal
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.recovery_kit import completed, kill, until, with_checkpoints
from tidegate.common import Row, Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError, JobExecutionError
from tidegate.datastream import MapFunction, RuntimeExecutionMode, StreamExecutionEnvironment
from tidegate.datastream.connectors import BucketAssigner, DataGeneratorSource, DeltaSink, FileSink
from tidegate.datastream.formats.parquet import ParquetBulkWriters
from tidegate.spark.versions import has_python_data_sources

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
Env = Callable[..., StreamExecutionEnvironment]

MOMENT = datetime.datetime(2024, 5, 6, 7, 8, 9, 10)
COLUMNS = {  # SQL -> the value in the stream
    "cast(null as void)": None,
    "true": True,
    "-1Y": -1,
    "2S": 2,
    "3": 3,
    "4L": 4,
    "1.5F": 1.5,
    "2.5D": 2.5,
    "cast('1.20' as decimal(10, 2))": Decimal("1.20"),
    "'text'": "text",
    "X'00FF'": b"\x00\xff",
    "date'2024-05-06'": datetime.date(2024, 5, 6),
    "timestamp'2024-05-06 09:08:09.00001 +02:00'": MOMENT,
    "timestamp_ntz'2024-05-06 07:08:09.00001'": MOMENT,
    "interval '1 02:03:04.5' day to second": datetime.timedelta(days=1, hours=2, minutes=3, seconds=4.5),
    "array(1, null)": [1, None],
    "map('a', 1.5D, 'b', null)": {"a": 1.5, "b": None},
    "named_struct('x', 1, 'y', array(named_struct('z', timestamp'2024-05-06 07:08:09.00001 +00:00'), null))": Row(
        x=1, y=[Row(z=MOMENT), None]
    ),
    "map(named_struct('k', array(1, 2)), array(map(1, 'v')))": {Row(k=(1, 2)): [{1: "v"}]},
}
NAMES = [f"c.{i} `" for i in range(len(COLUMNS))]  # what Spark takes for syntax when nobody quotes it
EXPECTED = [Row(**dict(zip(NAMES, COLUMNS.values(), strict=True))), Row(**dict.fromkeys(NAMES))]


def every_type(spark: Any) -> Any:
    full = spark.range(1).selectExpr(*[f"{sql} c{i}" for i, sql in enumerate(COLUMNS)])
    nulls = [f"cast(null as {field.dataType.simpleString()}) {field.name}" for field in full.schema.fields]
    return full.unionAll(spark.range(1).selectExpr(*nulls)).toDF(*NAMES)


def texts(df: Any) -> list[str]:
    plain = df.toDF(*[f"c{i}" for i in range(len(df.columns))])
    return sorted(str(r) for r in plain.selectExpr(*[f"cast({name} as string)" for name in plain.columns]).collect())


def is_expected(row: Any) -> bool:
    if row not in EXPECTED or [type(v) for v in row] != [type(v) for v in EXPECTED[EXPECTED.index(row)]]:
        raise AssertionError(f"unexpected: {row!r}")
    return True


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_every_type_makes_the_round_trip(spark: Any, make_env: Env, mode: RuntimeExecutionMode) -> None:
    df = every_type(spark)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")  # has no effect on what a stream holds
    try:
        stream = make_env(2).set_runtime_mode(mode).from_spark(df)
        names = NAMES
        assert stream.get_type() == Types.ROW_NAMED(names, stream.get_type().get_field_types())
        back = stream.filter(is_expected).to_spark()
        assert [(f.name, f.dataType) for f in back.schema] == [(f.name, f.dataType) for f in df.schema]
        assert texts(back) == texts(df)
        # A schema of one's own, and one from declared types.
        env = make_env(1).set_runtime_mode(mode)
        tuples = env.from_collection([(1, [MOMENT]), (2, None)])
        given = tuples.to_spark("n tinyint, at array<timestamp>")
        assert given.schema.simpleString() == "struct<n:tinyint,at:array<timestamp>>"
        assert texts(given.selectExpr("n", "at[0] = timestamp'2024-05-06 07:08:09.00001 +00:00' at")) == texts(
            spark.createDataFrame([(1, True), (2, None)], "n tinyint, at boolean")
        )
        declared = env.from_collection([1, 2]).map(lambda n: Decimal(n) / 4, Types.BIG_DEC()).to_spark()
        assert declared.schema.simpleString() == "struct<value:decimal(38,18)>"
        assert sorted(row.value for row in declared.collect()) == [Decimal("0.25"), Decimal("0.5")]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


class Gate(MapFunction):
    """Lets records through slowly until the file exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_open = False

    def map(self, value: Any) -> Any:
        if not self.is_open:
            time.sleep(0.005)
            self.is_open = self.path.exists()
        return value


def test_a_dataframe_to_delta_and_parquet_is_exact_under_kills(spark: Any, make_env: Env, tmp_path: Path) -> None:
    """The DataFrame gives other values every time it is computed: only the same splits replay to the same rows."""
    records = 10_000
    df = spark.range(records).selectExpr("id", "uuid() u").repartition(5)
    env = with_checkpoints(make_env(2), tmp_path / "checkpoints", interval_ms=200)
    stream = env.from_spark(df).uid("df")
    row_type = stream.get_type()
    gate = tmp_path / "gate"
    rows = stream.map(Gate(gate), row_type).uid("gate")
    delta, parquet = tmp_path / "delta", tmp_path / "parquet"
    rows.sink_to(DeltaSink(str(delta), row_type)).uid("delta")
    files = FileSink.for_bulk_format(str(parquet), ParquetBulkWriters.for_row_type(row_type))
    rows.sink_to(files.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()).uid("parquet")
    client: Any = env.execute_async("exact")
    (staging,) = (tmp_path / "checkpoints").glob("dataframe-*")

    seen = 0
    for attempt in range(2):
        until(lambda a=attempt: len(completed(client, a)) >= 2, "two checkpoints")
        # Readable while the job runs, and only what is committed.
        in_delta = DeltaTable(str(delta)).to_pyarrow_table()["id"].to_pylist()
        in_parquet = [row.id for row in spark.read.parquet(str(parquet)).select("id").collect()]
        for found in (in_delta, in_parquet):
            assert len(found) == len(set(found)) >= seen
        seen = len(in_delta)
        kill(client.workers()[attempt].pid, signal.SIGKILL)
        until(lambda a=attempt: client.attempt() > a, "a restart")
    gate.touch()
    client.get_job_execution_result().result()

    table = DeltaTable(str(delta)).to_pyarrow_table().to_pydict()
    assert sorted(table["id"]) == list(range(records))
    assert len(set(table["u"])) == records
    both = {(row.id, row.u) for row in spark.read.parquet(str(parquet)).collect()}
    assert both == set(
        zip(table["id"], table["u"], strict=True)
    )  # both sinks saw the same rows: nothing was recomputed
    assert client.attempt() >= 2
    until(lambda: not staging.exists(), "the staging folder is deleted")


def test_batch_writes_a_delta_table_once(spark: Any, make_env: Env, tmp_path: Path) -> None:
    env = make_env(2).set_runtime_mode(RuntimeExecutionMode.BATCH)
    stream = env.from_spark(spark.range(1000).selectExpr("id", "id % 3 part"))
    stream.sink_to(DeltaSink(str(tmp_path), stream.get_type(), partition_by=["part"]))
    env.execute()
    table = DeltaTable(str(tmp_path))
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(1000))
    assert table.version() == 1  # made, and one commit for all tasks


def test_bad_input(spark: Any, make_env: Env) -> None:
    env = make_env(1)
    if has_python_data_sources():  # Spark 4
        for sql, kind in {
            "interval '1' month": "interval month",
            "make_interval(1, 1)": "interval",
            "parse_json('1')": "variant",
        }.items():
            with pytest.raises(ConfigurationError, match=f"column 'bad' has the type {kind}"):
                env.from_spark(spark.range(1).selectExpr("id", f"{sql} bad"))
        with pytest.raises(ConfigurationError, match=r"column 'a\.b\[\]' has the type variant"):
            env.from_spark(spark.range(1).selectExpr("named_struct('b', array(parse_json('1'))) a"))
        with pytest.raises(ConfigurationError, match=r"column 'a\.b' is a struct without fields"):  # 3.5 has no such
            env.from_spark(spark.range(1).select().selectExpr("named_struct('b', struct()) a"))
    else:
        with pytest.raises(ConfigurationError, match="cannot say which columns the DataFrame has"):
            env.from_spark(spark.range(1).selectExpr("make_interval(1, 1) bad"))
    with pytest.raises(ConfigurationError, match="several columns of the name 'a'"):
        env.from_spark(spark.range(1).selectExpr("1 a", "2 a"))
    with pytest.raises(ConfigurationError, match="from_spark: there are no columns"):
        env.from_spark(spark.range(3).select())  # neither files nor Arrow count rows without columns
    with pytest.raises(ConfigurationError, match=r"has no end; use from_spark_stream\(\)"):
        env.from_spark(spark.readStream.format("rate").load())
    with pytest.raises(ConfigurationError, match=r"not a streaming one; use from_spark\(\)"):
        env.from_spark_stream(spark.range(1))
    with pytest.raises(TypeError, match="takes a DataFrame of pyspark"):
        env.from_spark([1, 2])
    endless = env.from_source(DataGeneratorSource(lambda i: i), WatermarkStrategy.no_watermarks(), "endless")
    with pytest.raises(ConfigurationError, match="the source 'endless' has no end"):
        endless.to_spark("bigint")
    env = make_env(1)
    with pytest.raises(ConfigurationError, match="the type of the records is not known"):
        env.from_collection([1]).to_spark()
    with pytest.raises(ConfigurationError, match="'n strong' is no schema that Spark understands"):
        env.from_collection([1]).to_spark("n strong")
    if has_python_data_sources():  # Spark 3.5 does not know the word
        with pytest.raises(ConfigurationError, match="column 'v' has the type variant"):
            env.from_collection([1]).to_spark("v variant")
    env = make_env(1)
    mixed = env.from_collection([Row(a=1, b="x"), Row(a=2, b="y" * 500), Row(a="three", b="z")])
    with pytest.raises(
        JobExecutionError, match=r"column 'a' of type int32 cannot hold 'three' .*Row\(a='three', b='z'\)"
    ):
        mixed.to_spark("a int, b string")


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.STREAMING])
def test_the_example_numbers_orders_in_both_modes(spark: Any, mode: RuntimeExecutionMode) -> None:
    from examples.spark_dataframes import numbered

    orders = spark.range(40).selectExpr("concat('customer ', id % 5) customer", "id amount")
    rows = numbered(spark, orders, mode).collect()
    assert sorted((row.customer, row.number) for row in rows) == [
        (f"customer {c}", n) for c in range(5) for n in range(1, 9)
    ]
    assert sorted(row.amount for row in rows) == list(range(40))
