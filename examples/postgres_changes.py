"""Keeps the totals of a table of PostgreSQL up to date while the table changes: change capture, effectively once.

Start one (`make postgres` in a checkout), make two tables, and let changes carry the row as it was:

    CREATE TABLE orders (id int8 PRIMARY KEY, customer text, amount int8);
    ALTER TABLE orders REPLICA IDENTITY FULL;
    CREATE TABLE totals (customer text PRIMARY KEY, total int8);

    python examples/postgres_changes.py --url postgresql://... --from orders --to totals --slot totals_of_orders

Insert, update and delete orders and look at the totals; Ctrl-C ends it. The slot stays and makes the database keep its
log for the next run: `SELECT pg_drop_replication_slot('totals_of_orders')` when there is none.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tidegate.common import Row, Types, WatermarkStrategy
from tidegate.common.types import RowKind
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors.postgres import PostgresChangeSource, PostgresSink
from tidegate.datastream.state import ValueStateDescriptor

_REMOVED = (RowKind.DELETE, RowKind.UPDATE_BEFORE)


class Totals(KeyedProcessFunction):
    """How many orders a customer has, and their sum. A customer without orders is deleted."""

    def open(self, runtime_context: RuntimeContext) -> None:
        counted = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.total = runtime_context.get_state(ValueStateDescriptor("total", counted))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        orders, total = self.total.value() or (0, 0)
        sign = -1 if value.get_row_kind() in _REMOVED else 1
        orders, total = orders + sign, total + sign * value.amount
        self.total.update((orders, total))
        kind = RowKind.INSERT if orders else RowKind.DELETE
        yield Row.of_kind(kind, customer=value.customer, total=total)


def build(env: StreamExecutionEnvironment, url: str, source: str, target: str, slot: str) -> None:
    changes = PostgresChangeSource.builder().set_url(url).set_table(source).set_slot(slot).build()
    totals = PostgresSink.builder().set_url(url).set_table(target).upsert("customer").build()
    orders = env.from_source(changes, WatermarkStrategy.no_watermarks(), "changes").uid("changes")
    orders.key_by(lambda row: row.customer).process(Totals()).uid("totals").sink_to(totals).uid("out")


def main() -> None:
    parser = argparse.ArgumentParser(description="The totals of a table, kept up to date.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--from", dest="source", required=True, metavar="TABLE")
    parser.add_argument("--to", required=True, metavar="TABLE")
    parser.add_argument("--slot", required=True)
    arguments = parser.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1000)
    build(env, arguments.url, arguments.source, arguments.to, arguments.slot)
    env.execute("totals that follow a table")


if __name__ == "__main__":
    main()
