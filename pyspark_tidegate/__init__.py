"""Found by Spark itself: it looks for modules named `pyspark_...` and registers their `DefaultSource`."""

from tidegate.spark.state_tables.data_source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
