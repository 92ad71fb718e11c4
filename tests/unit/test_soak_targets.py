"""No long test is forgotten: each file with tests that are marked `soak` is run by a target of `make soak-…`."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MARKS = re.compile(r"\bpytest\.mark\.soak\b")


def named_by_targets() -> set[str]:
    """Files and folders that the Makefile gives to pytest for tests that are long."""
    makefile = (REPOSITORY / "Makefile").read_text().replace("\\\n", " ")
    targets = re.findall(r"^(soak[a-z-]*):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert len(targets) >= 5
    return {path for _, recipe in targets for path in re.findall(r"\btests/\S+", recipe)}


def test_every_long_test_is_run_by_a_target() -> None:
    named = [REPOSITORY / path for path in named_by_targets()]
    assert all(path.exists() for path in named)
    marked = {
        path
        for path in (REPOSITORY / "tests").rglob("*.py")
        if path != Path(__file__) and MARKS.search(path.read_text())
    }
    assert len(marked) >= 10
    left_out = {path for path in marked if not any(path.is_relative_to(given) for given in named)}
    assert not left_out, f"in no target of make: {sorted(str(p.relative_to(REPOSITORY)) for p in left_out)}"
