from __future__ import annotations

from tidegate.spark.versions import has_python_data_sources

# They import what Spark 3.5 does not have.
collect_ignore = [] if has_python_data_sources() else ["test_ends.py", "test_jobs.py", "test_looks.py", "test_stage.py"]
