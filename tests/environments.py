"""Virtual environments beside the repository's own: another PySpark, another Python, another system to compare with.

They lie in the cache outside the repository (`TIDEGATE_CACHE`), are made once, and made anew when what they are to hold
has changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.connectors.cache import UnavailableError, cache_folder, locked

_HOLDS = "holds.txt"  # written last: what was asked for when the environment was made


def find_python(version: str) -> str:
    """A Python of this line ("3.12") on this machine: this one, one of the path, or one of pyenv's."""
    for candidate in _pythons(version):
        command = [candidate, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        if found.returncode == 0 and found.stdout.strip() == version:
            return candidate
    raise UnavailableError(
        f"Python {version} is not on this machine (looked at the path and at pyenv's versions); install it with its "
        f"venv module, for example: pyenv install {version}"
    )


def _pythons(version: str) -> Iterator[str]:
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        yield sys.executable
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield on_path
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for folder in sorted(root.glob(f"versions/{version}.*"), key=lambda f: _numbers(f.name), reverse=True):
        yield str(folder / "bin" / "python")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def environment_of(name: str, python: str, requirements: Sequence[str]) -> Path:
    """The Python of an environment called `name` that holds these requirements; made when it is not there yet."""
    folder = cache_folder("environments") / name
    wanted = "\n".join([f"python {python}", *requirements, ""])
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        holds = folder / _HOLDS
        program = folder / "env" / "bin" / "python"
        if holds.exists() and holds.read_text() == wanted:
            return program
        shutil.rmtree(folder / "env", ignore_errors=True)
        print(f"making the environment {folder} (once)", file=sys.stderr, flush=True)
        (folder / "requirements.txt").write_text("\n".join([*requirements, ""]))
        _run([find_python(python), "-m", "venv", str(folder / "env")])
        pip = [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "setuptools<81", "wheel"])  # of older packages, which are built here and may need them at run time
        _run([*pip, "-r", str(folder / "requirements.txt")])
        holds.write_text(wanted)
        return program


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-2000:]}")
