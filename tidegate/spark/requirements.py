"""Packages that a job's workers need: installed on the driver, into a folder of the job."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile

from tidegate.common.errors import ConfigurationError

_TIMEOUT_S = 600.0


def install_requirements(requirements: str, packages: str, python: str) -> str:
    """Installs what the file lists from the folder of packages, and from nowhere else. Returns a new folder to import
    it from, which is removed when the program ends. ConfigurationError with pip's own words when it cannot be done."""
    parent = tempfile.mkdtemp(prefix="tidegate-requirements-")
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    target = os.path.join(parent, os.path.basename(parent))  # the name is that of an archive, too: no other has it
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--find-links", packages, "--target", target, "--requirement", requirements]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"set_python_requirements: pip cannot be run as {python} -m pip: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise ConfigurationError(
            f"set_python_requirements: '{requirements}' cannot be installed from '{packages}'; put all packages that "
            f"it needs there (pip download -r {requirements} -d {packages}). pip says: {said}"
        )
    os.makedirs(target, exist_ok=True)  # an empty file installs nothing
    return target
