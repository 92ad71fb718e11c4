"""A DataFrame goes into a job with keyed state and comes out as a DataFrame.

Run it:  python examples/spark_dataframes.py
The same function runs as Spark stages (BATCH) and as a gang of workers with checkpoints (STREAMING); the results are
the same. docs/spark.md tells the rest: streaming DataFrames, Python data sources, Delta tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from tidegate.common import Row, Types
from tidegate.datastream import (
    KeyedProcessFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ValueStateDescriptor

RESULT = Types.ROW_NAMED(["customer", "number", "amount"], [Types.STRING(), Types.LONG(), Types.LONG()])


class NumberOrders(KeyedProcessFunction):
    """Gives the orders of each customer consecutive numbers: what SQL needs a window over everything for."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, order: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield Row(customer=order.customer, number=number, amount=order.amount)


def numbered(spark: SparkSession, orders: Any, mode: RuntimeExecutionMode) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(spark=spark)
    env.set_parallelism(2).set_runtime_mode(mode)
    return env.from_spark(orders).key_by(lambda order: order.customer).process(NumberOrders(), RESULT).to_spark()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("dataframes")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    orders = spark.range(1000).selectExpr("concat('customer ', id % 5) customer", "id * 7 % 100 amount")
    for mode in (RuntimeExecutionMode.BATCH, RuntimeExecutionMode.STREAMING):
        result = numbered(spark, orders, mode)
        print(f"{mode.name}:")
        for row in result.groupBy("customer").agg({"number": "max", "amount": "sum"}).orderBy("customer").collect():
            print(f"  {row.customer}: {row['max(number)']} orders, {row['sum(amount)']} in all")
    spark.stop()


if __name__ == "__main__":
    main()
