from __future__ import annotations

from tidegate.spark.versions import has_python_data_sources

# They import what Spark 3.5 does not have.
_NEED_SOURCES = (
    "test_ending.py",
    "test_ends.py",
    "test_jobs.py",
    "test_looks.py",
    "test_results.py",
    "test_slow_savepoints.py",
    "test_stage.py",
)
collect_ignore = [] if has_python_data_sources() else list(_NEED_SOURCES)
