"""What the environment sends to the workers, or asks of them, besides the program's own modules."""

from __future__ import annotations

import dataclasses
import os
import warnings

from tidegate.common.errors import ConfigurationError
from tidegate.common.worker_files import WorkerFiles
from tidegate.datastream.arguments import checked_text


class WorkerSettings:
    """A part of StreamExecutionEnvironment."""

    def __init__(self) -> None:
        self._worker_files = WorkerFiles()

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:
        """A file or folder that functions find under `RuntimeContext.get_cached_file(name)`. On local masters that is
        the file itself, on a cluster a copy that Spark has brought to the worker, which keeps its permissions."""
        checked_text("register_cached_file", name, "the name")
        path = _existing("register_cached_file", file_path)
        if executable and not os.path.isdir(path) and not os.access(path, os.X_OK):
            raise ConfigurationError(f"register_cached_file: '{path}' is not executable; change its permissions")
        self._check_new("register_cached_file", name)
        self._worker_files.cached[name] = path

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """A zip, tar or tar.gz that is unpacked for the workers: in a folder `target_dir` (by default the archive's own
        name) of their working directory, as in Flink: `open("target_dir/file")`. Its path is also
        `RuntimeContext.get_cached_file(target_dir)`."""
        path = _existing("add_python_archive", archive_path)
        name = target_dir or os.path.basename(path)
        if os.path.isabs(name) or os.sep in name or name in (".", ".."):
            raise ConfigurationError(f"add_python_archive: target_dir has to be a plain name, got '{name}'")
        self._check_new("add_python_archive", name)
        self._worker_files.archives[name] = path

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """What the workers need besides what Spark gives them. With `requirements_cache_dir`, a folder of packages
        (`pip download -d`), the driver installs them from there when the job is submitted, into a folder of the job,
        and the workers import them from it; what they have already wins. Without it nothing is installed, which is
        warned about: a worker would have to reach a package index."""
        path = _existing("set_python_requirements", requirements_file_path)
        if requirements_cache_dir is not None:
            packages = _existing("set_python_requirements", requirements_cache_dir)
            if not os.path.isdir(packages):
                raise ConfigurationError(f"set_python_requirements: '{packages}' is not a folder")
            self._worker_files = dataclasses.replace(self._worker_files, requirements=(path, packages))
            return
        self._worker_files = dataclasses.replace(self._worker_files, requirements=None)
        warnings.warn(
            "set_python_requirements without a folder of packages (requirements_cache_dir) installs nothing: install "
            "the requirements where Spark's workers run, or ship an environment with Spark "
            "(spark.archives) and choose it with set_python_executable()",
            UserWarning,
            stacklevel=2,
        )

    def set_python_executable(self, python_exec: str) -> None:
        """The Python that Spark starts for the workers: a path there. Holds for the whole Spark session."""
        executable = checked_text("set_python_executable", python_exec, "the path")
        self._worker_files = dataclasses.replace(self._worker_files, python_executable=executable)

    def _check_new(self, method: str, name: str) -> None:
        if name in self._worker_files.paths():
            raise ConfigurationError(f"{method}: there is a file or archive of the name '{name}' already")


def _existing(method: str, path: str) -> str:
    path = os.path.abspath(os.fspath(path))
    if not os.path.exists(path):
        raise ConfigurationError(f"{method}: there is no file or folder '{path}'")
    return path
