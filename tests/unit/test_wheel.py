"""What is in the wheel that users install: the code, the files of the page, the mark that says that it has types."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("tidegate", "pyspark_tidegate", "pytest_tidegate")


def enough_setuptools() -> None:
    try:
        pytest.importorskip("setuptools", minversion="77")
    except pytest.skip.Exception:
        if os.environ.get("TIDEGATE_REQUIRE_COMPONENTS"):
            pytest.fail("setuptools is older than 77, which pyproject.toml wants: make setup")
        raise


def test_the_wheel_has_the_page_the_types_and_all_modules(tmp_path: Path) -> None:
    enough_setuptools()
    source = tmp_path / "source"  # a build leaves folders beside what it builds
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(tmp_path), str(source)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False)
    files = tracked.stdout.split() or [str(f.relative_to(ROOT)) for f in ROOT.glob("tidegate/**/*.py")]
    assert "tidegate/py.typed" in packed
    assert "tidegate/web/static/index.html" in packed
    assert {str(file.relative_to(ROOT)) for file in (ROOT / "tidegate" / "web" / "static").iterdir()} <= packed
    assert set(files) <= packed, "everything of the packages is shipped"
