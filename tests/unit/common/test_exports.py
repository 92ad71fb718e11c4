from __future__ import annotations

import subprocess
import sys

import pytest

import tidegate.common


@pytest.mark.parametrize("name", tidegate.common.__all__)
def test_every_exported_name_is_there(name: str) -> None:
    assert getattr(tidegate.common, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = tidegate.common.nothing_like_it


def test_importing_everything_stays_cheap() -> None:
    heavy = ("pyspark", "pyarrow", "pandas", "numpy", "zmq", "msgspec", "cloudpickle")
    program = f"from tidegate.common import *; import sys; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
