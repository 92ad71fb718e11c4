"""The Python in README.md and docs/ works.

A fence says what is done with its block: `python run` is executed here (the blocks of a page share one namespace, in
order; none needs Spark), `python spark` is a whole program that is run on local Spark, and its output compared with the
`text` block that follows; plain `python` is only compiled.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(#[^)]*)?\)")


class Block(NamedTuple):
    page: str  # relative to the repository
    line: int
    info: str  # "python run"
    code: str
    output: str | None  # the `text` block that follows at once, if there is one

    @property
    def kind(self) -> str:
        """`run`, `spark` or `` of a Python block."""
        return self.info.removeprefix("python").strip()


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    blocks = []
    for number, fence in enumerate(fences):
        following = fences[number + 1] if number + 1 < len(fences) else None
        output = None
        if following is not None and following["info"] == "text" and not text[fence.end() : following.start()].strip():
            output = following["code"]
        line = text.count("\n", 0, fence.start()) + 1
        blocks.append(Block(str(page.relative_to(ROOT)), line, fence["info"].strip(), fence["code"], output))
    return blocks


BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.info.split(" ")[0] == "python"]
RUN = sorted({block.page for block in BLOCKS if block.kind == "run"})
SPARK = [block for block in BLOCKS if block.kind == "spark"]


def _name(block: Block) -> str:
    return f"{block.page}:{block.line}"


def _code(block: Block) -> object:
    """Compiled so that a traceback shows the line of the page."""
    return compile("\n" * block.line + block.code, block.page, "exec")


@pytest.mark.parametrize("block", BLOCKS, ids=_name)
def test_a_python_block_compiles_and_is_marked_rightly(block: Block) -> None:
    assert block.kind in ("", "run", "spark")
    _code(block)


@pytest.mark.parametrize("page", RUN)
def test_the_runnable_blocks_of_a_page_run_and_print_what_the_page_says(page: str) -> None:
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in BLOCKS:
        if block.page == page and block.kind == "run":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(_code(block), namespace)
            if block.output is not None:
                assert printed.getvalue() == block.output, _name(block)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_programs_of_the_docs_run_on_spark(tmp_path: Path) -> None:
    """One after the other in one process: starting Spark takes longer than all of them. Lines may come in any order:
    they are made by several workers."""
    names = []
    for number, block in enumerate(SPARK):
        names.append(f"program{number}.py")
        (tmp_path / names[-1]).write_text(block.code, encoding="utf-8")
    (tmp_path / "all.py").write_text(
        f"import runpy\nfor name in {names}:\n    runpy.run_path(name, run_name='__main__')\n    print(name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "all.py"], capture_output=True, text=True, timeout=220, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rest = done.stdout
    for name, block in zip(names, SPARK, strict=True):
        assert block.output is not None, f"{_name(block)}: a text block with its output has to follow"
        printed, _, rest = rest.partition(f"{name}\n")
        assert sorted(printed.splitlines()) == sorted(block.output.splitlines()), _name(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [match[1] for match in _LINK.finditer(text) if "://" not in match[1]]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    """Those of the repository by their path, those of the package also without `tidegate/` in front."""
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8")))
    assert {path for path in named if not (ROOT / path).exists() and not (ROOT / "tidegate" / path).exists()} == set()


def test_the_table_of_contents_has_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {match[1] for match in _LINK.finditer(index)}
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]} - {"index.md"}
    assert pages - linked == set()


def test_the_comparison_with_pyflink_is_up_to_date() -> None:
    """`make docs` writes it anew."""
    report = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "api_report.py")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    page = (ROOT / "docs" / "pyflink-differences.md").read_text(encoding="utf-8")
    begin, end = "<!-- api-report: begin -->", "<!-- api-report: end -->"
    assert page.partition(begin)[2].partition(end)[0].strip() == report.strip()
