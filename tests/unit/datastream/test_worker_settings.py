"""What the environment sends to the workers, and settings that exist for programs that come from PyFlink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.jobmanager.preparation import prepare_job
from tidegate.spark.worker_files import local_paths
from tidegate.testing.in_process_job import graph_of


def test_cached_files_reach_the_settings_of_the_workers(tmp_path: Path) -> None:
    file = tmp_path / "rules.txt"
    file.write_text("x")
    env = environment()
    env.register_cached_file(str(file), "rules")
    env.from_collection([1]).print()
    job = prepare_job(graph_of(env), Configuration(), env._worker_files)
    assert job.settings.cached_files == {"rules": str(file)}
    assert local_paths(job.settings.cached_files) == {"rules": str(file)}


def test_bad_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    file.write_text("x")
    env = environment()
    with pytest.raises(ConfigurationError, match="register_cached_file: there is no file or folder"):
        env.register_cached_file(str(tmp_path / "none"), "x")
    with pytest.raises(ConfigurationError, match="is not executable"):
        env.register_cached_file(str(file), "x", executable=True)
    env.register_cached_file(str(file), "x")
    with pytest.raises(ConfigurationError, match="of the name 'x' already"):
        env.add_python_archive(str(file), "x")
    with pytest.raises(ConfigurationError, match="target_dir has to be a plain name"):
        env.add_python_archive(str(file), "a/b")
    env.add_python_archive(str(file))
    assert env._worker_files.paths() == {"x": str(file), "a.zip": "a.zip"}


def test_the_python_of_the_workers(tmp_path: Path) -> None:
    env = environment()
    env.set_python_executable("/opt/python/bin/python")
    assert env._worker_files.python_executable == "/opt/python/bin/python"
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("numpy\n")
    with pytest.warns(UserWarning, match="installs nothing"):
        env.set_python_requirements(str(requirements))
    with pytest.raises(ConfigurationError, match="there is no file"):
        env.set_python_requirements(str(tmp_path / "none"))


@pytest.fixture
def _restored() -> Iterator[None]:
    yield
    StreamExecutionEnvironment._default_local_parallelism = None


@pytest.mark.usefixtures("_restored")
def test_the_default_parallelism_of_new_environments() -> None:
    make: Any = StreamExecutionEnvironment.get_execution_environment
    assert make().get_default_local_parallelism() == 1
    StreamExecutionEnvironment.set_default_local_parallelism(3)
    assert make().get_parallelism() == 3
    assert make().get_default_local_parallelism() == 3
    assert make(Configuration.from_dict({"parallelism.default": 2})).get_parallelism() == 2
    with pytest.raises(ConfigurationError, match="at least 1"):
        StreamExecutionEnvironment.set_default_local_parallelism(0)


def test_the_changelog_backend_is_accepted() -> None:
    env = environment()
    assert env.is_changelog_state_backend_enabled() is None
    assert env.enable_changelog_state_backend(True).is_changelog_state_backend_enabled() is True
