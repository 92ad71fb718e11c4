"""Totals of a table of PostgreSQL, read in parallel ranges of its key and written to another one, exactly once.

Start one (`make postgres` in a checkout), make two tables (`CREATE TABLE orders (id int8 PRIMARY KEY, customer text,
amount int8)` and `CREATE TABLE totals (customer text, total int8)`), fill the first, and run:

    python examples/postgres_totals.py --url postgresql://... --from orders --to totals

Each customer's rows are summed in a window over the whole input, so there is one row for each at the end.
"""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from tidegate.datastream.connectors.postgres import PostgresSink, PostgresSource


def amount(row: Any) -> tuple[str, int]:
    return row.customer, row.amount


def add(a: tuple[str, int], b: tuple[str, int]) -> tuple[str, int]:
    return a[0], a[1] + b[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Sum a table into another one.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--from", dest="source", required=True, metavar="TABLE")
    parser.add_argument("--to", required=True, metavar="TABLE")
    arguments = parser.parse_args()

    reading = PostgresSource.builder().set_url(arguments.url).set_table(arguments.source)
    source = reading.set_key_column("id").build()
    writing = PostgresSink.builder().set_url(arguments.url).set_table(arguments.to)
    sink = writing.set_columns("customer", "total").build()

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)  # one result per key: the input is read to its end first
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows")
    pairs = rows.map(amount, Types.TUPLE([Types.STRING(), Types.LONG()]))
    pairs.key_by(lambda pair: pair[0]).reduce(add).sink_to(sink)
    env.execute("totals")


if __name__ == "__main__":
    main()
