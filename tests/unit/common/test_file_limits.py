from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from tidegate.common.file_limits import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 900))
print(raise_file_limit(), raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_is_raised_to_what_is_allowed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "900 900 (900, 900)\n"
