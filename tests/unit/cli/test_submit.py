"""`tidegate submit`: spark-submit with this Python, and its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tidegate.cli.main import main

VARIABLES = ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spark-submit that writes down how it was called, and ends with 7."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"seen = [sys.argv[1:], {{k: os.environ.get(k) for k in {VARIABLES!r}}}]\n"
        f"open({str(tmp_path / 'seen.json')!r}, 'w').write(json.dumps(seen))\nsys.exit(7)\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "workers", "expected"),
    [
        ([], None, (sys.executable, None)),
        ([], "/opt/python", ("/opt/python", sys.executable)),
        (["--deploy-mode", "cluster"], "./env/bin/python", ("./env/bin/python", None)),
        (["--deploy-mode=cluster"], "./env/bin/python", ("./env/bin/python", None)),
        (["--deploy-mode", "client"], "/opt/python", ("/opt/python", sys.executable)),
    ],
)
def test_the_python_is_found(
    spark_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    workers: str | None,
    expected: tuple[str, str | None],
) -> None:
    """The workers' is what is set, else this one; a driver on this machine always runs in this one."""
    if workers is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", workers)
    assert main(["submit", *options, "job.py", "--json", "-p", "3"]) == 7
    arguments, seen = json.loads((spark_home / "seen.json").read_text())
    assert arguments == [*options, "job.py", "--json", "-p", "3"]
    assert seen == {"SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": expected[0], "PYSPARK_DRIVER_PYTHON": expected[1]}


def test_the_installed_spark_is_the_default(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert main(["submit", "--help"]) == 0
    assert "Usage: spark-submit" in capfd.readouterr().err


def test_a_folder_that_is_no_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert main(["submit", "job.py"]) == 1
    assert "SPARK_HOME has to be the folder of a Spark installation" in capsys.readouterr().err
