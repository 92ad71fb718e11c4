"""The benchmarks follow the code that they measure: every module can be imported, and the one without Spark runs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

import benchmarks
from benchmarks import control_plane, copies, endurance, in_slot

MODULES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")


def test_every_benchmark_of_the_command_has_a_module() -> None:
    commands = importlib.import_module("benchmarks.__main__").ALL
    assert set(commands) <= set(MODULES)
    for name in commands:
        run = importlib.import_module(f"benchmarks.{name}").run
        assert list(inspect.signature(run).parameters) == ["quick"], name


@pytest.mark.parametrize("name", copies.JOBS)
def test_what_copies_cost_is_measured(name: str) -> None:
    ratio, each_ns = copies.measure(copies.JOBS[name], 2000, 1)
    assert ratio > 0.0
    assert each_ns != 0.0


@pytest.mark.parametrize("job", in_slot.JOBS)
def test_the_jobs_of_one_slot_are_measured(job: str) -> None:
    assert in_slot.nanoseconds([job], 2000, 1)[job] > 0.0


def test_what_the_job_manager_costs_is_measured() -> None:
    costs, memory = control_plane.measure(100)
    assert list(costs) == ["checkpoint", "round of heartbeats", "recovery"]
    for cost in costs.values():
        assert cost.cpu_s >= 0.0
        assert cost.bytes > 100 * 10
        assert cost.memory > 0
    assert memory > 0.0
    assert costs["recovery"].bytes > costs["checkpoint"].bytes > costs["round of heartbeats"].bytes


def test_the_growth_is_that_to_the_largest_size() -> None:
    figures = control_plane.figures_of((10, 20, 40))
    assert figures[-1].name == "CPU per subtask and checkpoint, 40 over 20"


def test_the_endurance_run_draws_memory_and_what_else_may_leak(tmp_path: Path) -> None:
    rows = ["10.0,140.0,390.0,70.0,110.0,52,46,23,21,100,0", "20.0,141.0,400.0,71.0,120.0,52,46,24,59,200,1"]
    (tmp_path / "endurance.csv").write_text("\n".join([",".join(endurance.COLUMNS), *rows]) + "\n")
    endurance.draw(tmp_path)
    for name, columns in (("endurance.svg", endurance.MEMORY), ("endurance-counts.svg", endurance.COUNTS)):
        picture = ElementTree.parse(tmp_path / name).getroot()
        texts = [part.text for part in picture if part.tag.endswith("text")]
        lines = [part for part in picture if part.tag.endswith("polyline")]
        assert set(columns) <= set(texts)
        assert [len(line.attrib["points"].split()) for line in lines] == [2] * 4
