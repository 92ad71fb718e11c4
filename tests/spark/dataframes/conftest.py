from __future__ import annotations

from tidegate.spark.versions import has_python_data_sources

collect_ignore = [] if has_python_data_sources() else ["test_python_data_sources.py"]
