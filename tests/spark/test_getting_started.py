"""docs/getting-started.md shows what is really printed: of the first job, and of programs with a mistake in each."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.spark.programs import running
from tests.unit.test_docs import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "word_count.py"
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BEFORE_A_SAMPLE = """import threading; from tidegate.common import Configuration
from tidegate.datastream import MapFunction, StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
"""
TOO_WIDE = "env.set_parallelism(8).from_collection([1]).map(abs).print()\nenv.execute()\n"

# Runs the samples one after the other, since starting Spark takes longer than all of them.
PROGRAM = """
import json, os, runpy, sys
for number, sample in enumerate(json.load(open("samples.json"))):
    open("my_job.py", "w").write(sample)
    try:
        exec(compile(sample, os.path.abspath("my_job.py"), "exec"))  # as if it were this script
    except Exception as error:
        shown = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
        print("REPORT " + json.dumps(shown), flush=True)
    else:
        print("REPORT " + json.dumps("no error"), flush=True)
runpy.run_path(sys.argv[1], run_name="__main__")
print("REPORT 0", flush=True)
"""


def fences(text: str) -> list[tuple[str, str]]:
    return [(fence["info"], fence["text"]) for fence in _FENCE.finditer(text)]


def samples() -> list[tuple[str, str]]:
    """Program and error."""
    texts = [text for info, text in fences(PAGE) if info == "" and text.startswith("tidegate.common.errors.")]
    found = fences(PAGE.partition("## Errors you may meet")[2])
    assert len(found) % 2 == 0
    pairs = [(code, error) for (_, code), (_, error) in zip(found[::2], found[1::2], strict=True)]
    (too_wide,) = [text for text in texts if "ResourceError" in text]
    assert {error for _, error in pairs} | {too_wide} == set(texts)
    return [*pairs, (TOO_WIDE, too_wide)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The errors of the samples, and the output of the example."""
    folder = tmp_path_factory.mktemp("getting_started")
    script = folder / "all.py"
    script.write_text(PROGRAM)
    (folder / "samples.json").write_text(json.dumps([BEFORE_A_SAMPLE + code for code, _ in samples()]))
    with running(script, folder, str(EXAMPLE), SPARK_MASTER="local[2]") as program:
        program.wait_for_report(len(samples()) + 1)
        *errors, _ = program.reports()
        return [error.replace(f"{folder}/", "") for error in errors], program.output


@pytest.mark.parametrize("number", range(len(samples())))
def test_the_errors_are_what_the_page_says(shown: Any, number: int) -> None:
    assert shown[0][number].strip() == samples()[number][1].strip()


def test_the_first_job_prints_what_the_page_says(shown: Any) -> None:
    (block,) = [text for info, text in fences(PAGE) if info == "" and text.startswith("word count:")]
    counts, _, summary = block.partition("...\n\n")
    printed = shown[1].splitlines()
    for subtask in ("1", "2"):  # each in its order
        mine = [line for line in printed if line.startswith(f"word count:{subtask}> ")]
        expected = [line for line in counts.splitlines() if line.startswith(f"word count:{subtask}> ")]
        kept = [line for line in mine if line in expected]
        assert expected
        assert kept == expected
    assert summary in shown[1]
