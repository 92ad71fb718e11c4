"""Files and archives on their way to the workers, by Spark's own means."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidegate.common.worker_files import WorkerFiles
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.requirements import install_requirements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def distribute(session: SparkSession, files: WorkerFiles) -> None:
    """On the driver, before the gang starts."""
    sc = session.sparkContext
    if files.python_executable is not None:
        sc.pythonExec = files.python_executable
    if not _workers_are_here(session):
        for path in files.cached.values():
            sc.addFile(path, recursive=os.path.isdir(path))
    for name, path in files.archives.items():
        sc.addArchive(f"{path}#{name}")


def code_for(session: SparkSession, files: WorkerFiles) -> CodeBundle:
    """On the driver: the program's modules, and the packages of its requirements, which are installed here."""
    bundle = CodeBundle.collect(files.modules)
    if files.requirements is None:
        return bundle
    folder = install_requirements(*files.requirements, python=files.python_executable or sys.executable)
    if _workers_are_here(session):
        return dataclasses.replace(bundle, packages=(folder,))
    name = os.path.basename(folder)
    session.sparkContext.addArchive(f"{shutil.make_archive(folder, 'zip', folder)}#{name}")
    return dataclasses.replace(bundle, archives=(name,))


def _workers_are_here(session: SparkSession) -> bool:
    """On this machine, where they see the files where they are."""
    return re.match(r"local($|\[)", session.sparkContext.master or "") is not None


@contextmanager
def own_working_directory() -> Iterator[None]:
    """In a worker: what `enter_archives` changes holds inside. The process may run another job next."""
    before = os.getcwd()
    try:
        yield
    finally:
        os.chdir(before)


def enter_archives(paths: dict[str, str]) -> None:
    """In a worker: archives are folders of the working directory, as in Flink, so that `open("words/list.txt")` reads
    from the archive that was unpacked as `words`. Without archives the working directory stays what it is."""
    if any(not os.path.isabs(path) for path in paths.values()):
        from pyspark import SparkFiles

        os.chdir(SparkFiles.getRootDirectory())


def local_paths(paths: dict[str, str]) -> dict[str, str]:
    """In a worker: name -> path on this machine."""
    if not paths:
        return {}
    from pyspark import SparkFiles

    return {
        name: path if os.path.isabs(path) and os.path.exists(path) else SparkFiles.get(os.path.basename(path))
        for name, path in paths.items()
    }
