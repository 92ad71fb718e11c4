"""A Spark of its own that reads Delta tables with Spark's own reader, for `test_delta_by_spark`.

Delta is compiled against one Spark, which need not be the one that Tidegate is installed with: so this program runs in
an environment of its own, with the standard library and its PySpark alone. It takes a line with an expression as JSON
on its input (`spark` and the functions below are known) and gives a line with the value, or with the error, on its
output.

python delta_reader.py IVY_FOLDER
"""

from __future__ import annotations

import json
import sys
from typing import Any

DELTA = "4.4.0"


def main(ivy: str) -> None:
    import pyspark
    from pyspark.sql import SparkSession

    release = ".".join(pyspark.__version__.split(".")[:2])
    settings = {
        "spark.jars.packages": f"io.delta:delta-spark_{release}_2.13:{DELTA}",
        # Spark has these itself, and Ivy takes minutes to look for them.
        "spark.jars.excludes": "org.apache.hadoop:*,org.apache.parquet:*,com.fasterxml.jackson.core:*,"
        "com.fasterxml.jackson.datatype:*,org.apache.logging.log4j:*,org.slf4j:*",
        "spark.jars.ivy": ivy,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("delta reader")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def table(path: str, version: int | None = None) -> Any:
        reader = spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(path)

    def sql(statement: str) -> list[dict[str, Any]]:
        return [json.loads(text) for text in spark.sql(statement).toJSON().collect()]

    def numbers(path: str, version: int | None = None) -> list[int]:
        return sorted(row.n for row in table(path, version).select("n").collect())

    def differences(path: str, columns: dict[str, str], records: int) -> list[int]:
        """Rows that are missing, and rows too many, when the columns should be these expressions of `id`."""
        wanted = spark.range(records).selectExpr(*[f"{sql} as {name}" for name, sql in columns.items()])
        types = [df.select(*columns).schema.simpleString() for df in (wanted, table(path))]  # all may be null there
        if types[0] != types[1]:
            raise AssertionError(f"wanted {types[0]}, found {types[1]}")
        texts = [f"to_json(struct({', '.join(columns)})) as row"]  # maps cannot be compared
        expected, found = wanted.selectExpr(*texts), table(path).where("n >= 0").selectExpr(*texts)
        return [expected.exceptAll(found).count(), found.exceptAll(expected).count()]

    def start(path: str, name: str) -> bool:
        stream = spark.readStream.format("delta").load(path).select("n")
        stream.writeStream.format("memory").queryName(name).start()
        return True

    def streamed(name: str, to_the_end: bool = False) -> list[int]:
        (query,) = [q for q in spark.streams.active if q.name == name]
        if to_the_end:
            query.processAllAvailable()
        return sorted(row.n for row in spark.table(name).collect())

    known = {
        "spark": spark,
        "table": table,
        "sql": sql,
        "numbers": numbers,
        "differences": differences,
        "start": start,
        "streamed": streamed,
    }
    answer({"value": f"Spark {pyspark.__version__}, Delta {DELTA}"})
    for line in sys.stdin:
        try:
            answer({"value": eval(json.loads(line), dict(known))})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"[:3000]})
    spark.stop()


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
