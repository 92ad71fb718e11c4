"""DataFrames in and out: `from_spark`, `to_spark`, `from_spark_stream` and `PySparkSource` (docs/spark.md)."""
