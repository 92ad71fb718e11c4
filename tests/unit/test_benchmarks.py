"""The benchmarks follow the code that they measure: every module can be imported, and the one without Spark runs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import benchmarks
from benchmarks import control_plane, copies

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
