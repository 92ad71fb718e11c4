"""What every operator promises stands apart from what only a batch job asks for, and from the contexts of functions."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import tidegate.taskmanager
from tidegate.taskmanager import operators
from tidegate.taskmanager.operators import batch_mode
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.operators.final_reduce import FinalReduceOperator
from tidegate.taskmanager.operators.keyed import KeyedOperator
from tidegate.taskmanager.operators.sink import SinkOperator
from tidegate.taskmanager.operators.source import SourceOperator

MODULES = [m.name for m in pkgutil.iter_modules(operators.__path__, operators.__name__ + ".")]
INTERFACES = {
    batch_mode.ReadsByKeys: KeyedOperator,
    batch_mode.TakesCombined: FinalReduceOperator,
    batch_mode.ReadsInOrder: SourceOperator,
    batch_mode.HandsOverCommittables: SinkOperator,
    batch_mode.RemembersBatches: SourceOperator,
}


def imports(tree):
    return [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]


def source_of(module):
    return ast.parse(Path(importlib.import_module(module).__file__).read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", MODULES)
def test_operators_import_nothing_inside_functions(module):
    tree = source_of(module)
    assert [node.lineno for node in imports(tree) if node not in tree.body] == []


@pytest.mark.parametrize("name", ["runtime_context", "operator_context", "result_port", "timers"])
def test_what_operators_are_given_knows_no_operator(name):
    tree = source_of(f"{tidegate.taskmanager.__name__}.{name}")
    named = [getattr(node, "module", None) or node.names[0].name for node in imports(tree)]
    assert [n for n in named if n.startswith(operators.__name__)] == []


@pytest.mark.parametrize("interface", INTERFACES)
def test_what_only_a_batch_job_asks_for_is_no_business_of_other_operators(interface):
    assert issubclass(INTERFACES[interface], interface)
    for method in interface.__abstractmethods__:
        assert not hasattr(Operator, method), method


def test_every_interface_of_batch_jobs_has_an_operator():
    declared = {c for c in vars(batch_mode).values() if isinstance(c, type) and c.__module__ == batch_mode.__name__}
    assert declared == set(INTERFACES)
