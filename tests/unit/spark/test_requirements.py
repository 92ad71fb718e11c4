"""Requirements of a job: installed from a folder of packages, importable in a worker."""

from __future__ import annotations

import subprocess
import sys
import types
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from tidegate.common.errors import ConfigurationError
from tidegate.common.worker_files import WorkerFiles
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.spark.code_bundle import CodeBundle, install
from tidegate.spark.worker_files import code_for

WHEEL = "tide_tables-1.2-py3-none-any.whl"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with one wheel, made by hand."""
    folder = tmp_path / "packages"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("tide_tables/__init__.py", "HIGH = 42\n")
        info = "tide_tables-1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tide-tables\nVersion: 1.2\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return folder


def requirements(folder: Path, text: str) -> str:
    path = folder / "requirements.txt"
    path.write_text(text)
    return str(path)


def session(master: str, archives: list[str]) -> Any:
    return types.SimpleNamespace(sparkContext=types.SimpleNamespace(master=master, addArchive=archives.append))


def worker_files(file: str, packages: Path) -> WorkerFiles:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_python_requirements(file, str(packages))
    return env._worker_files


def test_a_worker_on_this_machine_imports_what_was_installed(tmp_path: Path, packages: Path) -> None:
    bundle = code_for(session("local[2]", []), worker_files(requirements(tmp_path, "tide-tables==1.2\n"), packages))
    (tmp_path / "bundle").write_bytes(cloudpickle.dumps(bundle))
    worker = (
        "import pickle, sys; from tidegate.spark.code_bundle import install; "
        "install(pickle.load(open(sys.argv[1], 'rb'))); import tide_tables; print(tide_tables.HIGH)"
    )
    command = [sys.executable, "-c", worker, str(tmp_path / "bundle")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "42\n"


def test_a_worker_that_runs_another_job_imports_what_that_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reused worker forgets the packages, and the folders, of the job before."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for job in ("one", "two"):
        for kind in ("packages", "beside"):
            folder = tmp_path / job / kind / f"tide_{kind}"
            folder.mkdir(parents=True)
            (folder / "__init__.py").write_text("from .where import JOB\n")
            (folder / "where.py").write_text(f"JOB = {job!r}\n")
    bundles = {
        job: CodeBundle(paths=(str(tmp_path / job / "beside"),), packages=(str(tmp_path / job / "packages"),))
        for job in ("one", "two")
    }
    try:
        for job in ("one", "two", "one"):
            install(bundles[job])
            assert import_module("tide_packages").JOB == import_module("tide_beside").JOB == job
            install(bundles[job])  # of the next attempt
            assert "tide_packages" in sys.modules
    finally:
        install(CodeBundle())
    assert not [path for path in sys.path if path.startswith(str(tmp_path))]
    with pytest.raises(ModuleNotFoundError):
        import_module("tide_packages")


def test_packages_of_a_job_win_over_those_that_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed, brought = tmp_path / "installed", tmp_path / "brought"
    for folder in (installed, brought):
        folder.mkdir()
        (folder / "tide_both.py").write_text(f"WHERE = {folder.name!r}\n")
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    try:
        install(CodeBundle(packages=(str(brought),)))
        assert import_module("tide_both").WHERE == "brought"
    finally:
        install(CodeBundle())


def test_to_workers_elsewhere_it_is_shipped(tmp_path: Path, packages: Path) -> None:
    archives: list[str] = []
    files = worker_files(requirements(tmp_path, "tide-tables\n"), packages)
    bundle = code_for(session("spark://far:7077", archives), files)
    path, _, name = archives[0].partition("#")
    assert bundle.archives == (name,)
    assert "tide_tables/__init__.py" in zipfile.ZipFile(path).namelist()


def test_what_is_not_in_the_folder_is_said_before_the_job_starts(tmp_path: Path, packages: Path) -> None:
    files = worker_files(requirements(tmp_path, "no-such-package\n"), packages)
    with pytest.raises(ConfigurationError, match=r"(?s)cannot be installed from.*pip says.*no-such-package"):
        code_for(session("local[2]", []), files)


def test_the_folder_has_to_be_one(tmp_path: Path) -> None:
    file = requirements(tmp_path, "")
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ConfigurationError, match="is not a folder"):
        env.set_python_requirements(file, file)
    with pytest.warns(UserWarning, match="installs nothing"):
        env.set_python_requirements(file)
