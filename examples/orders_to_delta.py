"""Sums up the orders of each customer per day and appends the sums to a Delta table, exactly once.

Run it:  pip install tidegate[delta]; python examples/orders_to_delta.py [--table FOLDER]
Each checkpoint that completes makes the rows before it visible, with one entry in the table's log per subtask; what a
worker had written that was killed stays unseen. Read the table with Spark, DuckDB, Polars or `deltalake`.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
from pathlib import Path

from tidegate.common import Row, Time, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource, DeltaSink
from tidegate.datastream.window import TumblingEventTimeWindows

HOUR_MS = 3_600_000
FIRST_DAY_MS = 1_767_225_600_000  # 2026-01-01
ORDERS = 480
SUMS = Types.ROW_NAMED(["customer", "day", "amount"], [Types.STRING(), Types.SQL_DATE(), Types.LONG()])


def order(number: int) -> tuple[str, int, int]:
    """(customer, time, amount): one an hour, of five customers in turn."""
    return f"customer {number % 5}", FIRST_DAY_MS + number * HOUR_MS, number % 7 + 1


def day_of(time_ms: int) -> datetime.date:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).date()


def build(env: StreamExecutionEnvironment, table: str) -> None:
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda order, _: order[1])
    sums = (
        env.from_source(DataGeneratorSource(order, ORDERS), in_order, "orders")
        .key_by(lambda order: order[0])
        .window(TumblingEventTimeWindows.of(Time.days(1)))
        .reduce(lambda sum, order: (sum[0], min(sum[1], order[1]), sum[2] + order[2]))
        .uid("sums")
        .map(lambda sum: Row(customer=sum[0], day=day_of(sum[1]), amount=sum[2]), SUMS)
    )
    sums.sink_to(DeltaSink(table, SUMS, partition_by=["day"])).name("table").uid("table")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", default=str(Path(tempfile.gettempdir()) / "tidegate-orders"))
    table = parser.parse_args().table
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.enable_checkpointing(1000)
    build(env, table)
    env.execute("Orders to Delta")

    from deltalake import DeltaTable

    found = DeltaTable(table)
    rows = found.to_pyarrow_table()
    print(f"{table}: version {found.version()}, {rows.num_rows} sums of {len(found.partitions())} days, by customer:")
    for row in sorted(
        rows.group_by("customer").aggregate([("amount", "sum")]).to_pylist(), key=lambda r: r["customer"]
    ):
        print(f"  {row['customer']}: {row['amount_sum']}")


if __name__ == "__main__":
    main()
