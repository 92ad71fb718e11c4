"""Found by Spark itself: it looks for modules named `pyspark_...` and registers their `DefaultSource`.

Spark looks with a Python that need not be the program's. One that sees this package without what Tidegate needs gets
nothing from it, instead of a page of warnings with every session.
"""

import contextlib

with contextlib.suppress(ImportError):
    from tidegate.spark.state_tables.data_source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
