"""Files and archives on their way to the workers, by Spark's own means."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from tidegate.common.worker_files import WorkerFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def distribute(session: SparkSession, files: WorkerFiles) -> None:
    """On the driver, before the gang starts."""
    sc = session.sparkContext
    if files.python_executable is not None:
        sc.pythonExec = files.python_executable
    if not re.match(r"local($|\[)", sc.master or ""):  # otherwise the workers see the files where they are
        for path in files.cached.values():
            sc.addFile(path, recursive=os.path.isdir(path))
    for name, path in files.archives.items():
        sc.addArchive(f"{path}#{name}")


def local_paths(paths: dict[str, str]) -> dict[str, str]:
    """In a worker: name -> path on this machine."""
    if not paths:
        return {}
    from pyspark import SparkFiles

    return {
        name: path if os.path.isabs(path) and os.path.exists(path) else SparkFiles.get(os.path.basename(path))
        for name, path in paths.items()
    }
