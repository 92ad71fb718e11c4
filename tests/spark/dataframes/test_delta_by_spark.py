"""Delta tables and Parquet folders of a running job, read by a Spark beside it: with Spark's own Delta reader.

Needs the Python of an environment with a PySpark that a release of Delta exists for, and minutes:

    python -m venv /tmp/delta && /tmp/delta/bin/pip install 'pyspark==4.2.*'
    TIDEGATE_DELTA_PYTHON=/tmp/delta/bin/python python -m pytest tests/spark/dataframes/test_delta_by_spark.py
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.dataframes.test_dataframes import Gate
from tests.spark.recovery_kit import completed, kill, until, with_checkpoints
from tidegate.common import Row, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import BucketAssigner, DataGeneratorSource, DeltaSink, FileSink
from tidegate.datastream.formats.parquet import ParquetBulkWriters

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1500)]

RECORDS = 200_000  # more than pass the gate before it opens, also on a slow machine
NUMBERS = Types.ROW_NAMED(["n"], [Types.LONG()])
PARTS = ["a/b", "x y%", "ä=ö", None]
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("part", pa.string()),
        pa.field("exact", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("inner", pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])),
        pa.field("list", pa.list_(pa.int64())),
        pa.field("map", pa.map_(pa.string(), pa.int64())),
        pa.field("maybe", pa.string()),
    ]
)
COLUMNS = {  # of the record that is made of `id`, for Spark
    "n": "id",
    "part": "element_at(array('a/b', 'x y%', 'ä=ö', null), cast(id % 4 as int) + 1)",
    "exact": "cast(id / 4 as decimal(12, 2))",
    "at": "timestamp_micros(1715000000000000 + id * 1000001)",
    "day": "date_add(date'2024-05-06', cast(id % 1000 as int))",
    "inner": "named_struct('x', cast(id % 7 as int), 'tags', array(concat('t', id), null))",
    "list": "if(id % 3 = 0, cast(array() as array<bigint>), array(id, null))",
    "map": "if(id % 5 = 0, null, map('k', id, 'none', null))",
    "maybe": "if(id % 2 = 0, null, concat('v', id))",
}


def record(i: int) -> Row:
    return Row(
        n=i,
        part=PARTS[i % 4],
        exact=Decimal(i * 25) / 100,
        at=datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=1715000000000000 + i * 1000001),
        day=datetime.date(2024, 5, 6) + datetime.timedelta(days=i % 1000),
        inner=Row(x=i % 7, tags=[f"t{i}", None]),
        list=[] if i % 3 == 0 else [i, None],
        map=None if i % 5 == 0 else {"k": i, "none": None},
        maybe=None if i % 2 == 0 else f"v{i}",
    )


class DeltaReader:
    """Spark with Delta, in a process of its own. One question at a time."""

    def __init__(self, python: str, ivy: Path, log: Path) -> None:
        program = Path(__file__).with_name("delta_reader.py")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH"))}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, str(program), str(ivy)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=clean,
            )
        self._log = log

    def answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Ivy reports there too
                message = json.loads(line)
                assert "error" not in message, message["error"]
                return message["value"]
        return pytest.fail(f"the reader has ended: {self._log.read_text()[-3000:]}")

    def __call__(self, expression: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(expression) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[DeltaReader]:
    python = os.environ.get("TIDEGATE_DELTA_PYTHON")
    if not python:
        pytest.skip("TIDEGATE_DELTA_PYTHON is not set: the Python of an environment with a PySpark that Delta supports")
    found = DeltaReader(python, tmp_path / "ivy", tmp_path / "reader.log")
    print(found.answer())
    warm = str(tmp_path / "warm")  # the first use of Delta takes the longest: not while a job makes versions
    found(f"spark.range(9).selectExpr('id n').write.format('delta').save({warm!r})")
    assert found(f"numbers({warm!r})") == list(range(9))
    yield found
    found.close()


def test_spark_reads_what_is_committed_while_the_job_runs_and_is_killed(
    reader: DeltaReader, spark: Any, make_env: Callable[..., StreamExecutionEnvironment], tmp_path: Path
) -> None:
    plain, parted, parquet = str(tmp_path / "plain"), str(tmp_path / "parted"), str(tmp_path / "parquet")
    gate = tmp_path / "gate"
    env = with_checkpoints(make_env(2), tmp_path / "checkpoints", interval_ms=200)
    source = DataGeneratorSource(record, RECORDS)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows").map(Gate(gate)).uid("gate")
    rows.sink_to(DeltaSink(plain, SCHEMA)).uid("plain")
    rows.sink_to(DeltaSink(parted, SCHEMA, partition_by=["part"])).uid("parted")
    numbers = rows.map(lambda row: Row(n=row.n), NUMBERS).uid("numbers")
    files = FileSink.for_bulk_format(parquet, ParquetBulkWriters.for_row_type(NUMBERS))
    numbers.sink_to(files.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()).uid("parquet")
    client: Any = env.execute_async("tables")
    until(lambda: len(completed(client)) >= 2, "two checkpoints")
    reader(f"start({plain!r}, 'live')")

    seen: dict[str, set[int]] = {"plain": set(), "parted": set(), "parquet": set(), "live": set()}

    def look() -> None:
        """Never a row twice, never one gone that was there before."""
        found = {
            "plain": reader(f"numbers({plain!r})"),
            "parted": reader(f"numbers({parted!r})"),
            "parquet": [row.n for row in spark.read.parquet(parquet).collect()],
            "live": reader("streamed('live')"),
        }
        for name, ns in found.items():
            assert len(ns) == len(set(ns)), name
            assert seen[name] <= set(ns), name
            seen[name] = set(ns)

    look()
    look()
    # A version that was read stays what it is, and those before it are a part of it.
    history = reader(f"sql('DESCRIBE HISTORY delta.`{plain}`')")
    newest = max(entry["version"] for entry in history)
    assert {entry["operation"] for entry in history} == {"CREATE TABLE", "WRITE"}
    late, early = (set(reader(f"numbers({plain!r}, {version})")) for version in (newest, newest // 2))
    assert early < late
    # Spark writes to the table, compacts it and changes it between the job's commits.
    reader(f"spark.range(1).selectExpr('-1L n').write.format('delta').mode('append').save({plain!r})")
    for path in (plain, parted):
        reader(f"sql('OPTIMIZE delta.`{path}`')")
    reader(f"sql('ALTER TABLE delta.`{parted}` ADD COLUMN (added INT)')")  # a stream that reads it would stop
    look()
    kill(client.workers()[0].pid, signal.SIGKILL)
    until(lambda: client.attempt() == 1, "a restart", 120)
    until(lambda: len(completed(client, 1)) >= 2, "two more checkpoints", 120)
    look()
    gate.touch()
    client.get_job_execution_result().result()

    look()
    assert client.attempt() == 1
    assert reader(f"differences({plain!r}, {COLUMNS!r}, {RECORDS})") == [0, 0]
    assert reader(f"differences({parted!r}, {COLUMNS!r}, {RECORDS})") == [0, 0]
    assert seen["parquet"] == seen["parted"] == set(range(RECORDS))
    assert reader("streamed('live', True)") == [-1, *range(RECORDS)]
    assert reader(f"[row.n for row in table({parted!r}).where(\"part = 'a/b' and n < 9\").collect()]") == [0, 4, 8]
