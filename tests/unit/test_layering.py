"""Who may import what: the table of docs/architecture.md, as a test over the import statements of every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tidegate"

# Modules of the API that are only definitions: they import `common` and each other, and the layers below may use them.
VOCABULARY = frozenset(
    f"tidegate.datastream.{name}"
    for name in (
        "functions",
        "state",
        "state_ttl",
        "output_tag",
        "arguments",
        "async_retry_strategies",
        "time_domain",
        "timerservice",
        "window",
        "connectors.base",
        "connectors.collect",
    )
)

# What each part of the package may import besides itself. A name allows the module and everything below it.
ALLOWED: dict[str, tuple[str, ...]] = {
    "common": (),
    "metrics": ("common",),
    "storage": ("common",),
    "network": ("common",),
    "protocol": ("common", "network.elements", "storage.handles"),
    "graph": ("common", "<vocabulary>"),
    "state": ("common", "storage", "<vocabulary>"),
    # Snapshots as data, for people and tools: above the state layer, and it forms operator ids from uids.
    "snapshots": ("common", "storage", "state", "graph.operator_ids", "<vocabulary>"),
    "datastream": ("common", "graph"),
    "taskmanager": ("common", "graph", "state", "storage", "network", "protocol", "<vocabulary>"),
    # The coordinator makes the barriers that the sources inject, so it knows that one class of the network layer.
    "jobmanager": ("common", "graph", "storage", "protocol", "network.elements"),
    "cli": ("common", "jobmanager", "storage", "state", "snapshots", "web"),
    "web": ("common", "jobmanager", "storage"),
    "spark": ("",),
}

# The bridge: the environment hands the job over to Spark, but importing the API must not load it. And connectors that
# read and write files do so through the storage layer, in the workers.
ALLOWED_INSIDE_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "datastream": ("spark", "storage"),
    "cli": ("spark",),
    "snapshots": ("spark",),
}


class Import(NamedTuple):
    importer: str  # dotted name of the module with the statement
    target: str  # dotted name that is imported (of `from a import b`: a.b)
    line: int
    late: bool  # inside a function, or only for the type checker


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, source: str | None = None) -> Iterator[Import]:
    importer = module_name(path)
    package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8") if source is None else source, str(path))

    def walk(node: ast.AST, late: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(importer, alias.name, child.lineno, late)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parents = package.split(".")[: len(package.split(".")) - child.level + 1]
                    base = ".".join([*parents, base] if base else parents)
                for alias in child.names:
                    yield Import(importer, f"{base}.{alias.name}", child.lineno, late)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _only_for_types(
                    child
                )
                yield from walk(child, late or inside)

    yield from walk(tree, False)


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def in_vocabulary(name: str) -> bool:
    return any(is_under(name, module) for module in VOCABULARY)


def allowed(statement: Import) -> bool:
    importer, target = statement.importer, statement.target
    if not is_under(target, "tidegate") or target in ("tidegate", "tidegate.__version__"):
        return True
    if importer in VOCABULARY:
        return is_under(target, "tidegate.common") or in_vocabulary(target)
    layer = importer.split(".")[1] if "." in importer else ""
    if layer == "" or is_under(target, f"tidegate.{layer}"):
        return True
    names = ALLOWED[layer] + (ALLOWED_INSIDE_FUNCTIONS.get(layer, ()) if statement.late else ())
    if "<vocabulary>" in names and in_vocabulary(target):
        return True
    return any(name == "" or is_under(target, f"tidegate.{name}") for name in names)


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    wrong = [f"line {i.line}: imports {i.target}" for i in imports_of(path) if not allowed(i)]
    assert not wrong, f"{module_name(path)} breaks the layering: {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_only_the_spark_layer_imports_pyspark(path: Path) -> None:
    if not is_under(module_name(path), "tidegate.spark"):
        found = [i.line for i in imports_of(path) if is_under(i.target, "pyspark") or is_under(i.target, "py4j")]
        assert not found, f"{module_name(path)} imports pyspark in lines {found}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_heavy_libraries_are_imported_late(path: Path) -> None:
    heavy = ("pyarrow", "pandas", "rocksdict")
    found = [
        (i.line, i.target) for i in imports_of(path) if not i.late and any(is_under(i.target, name) for name in heavy)
    ]
    assert not found, f"{module_name(path)} imports heavy libraries at module level: {found}"


def test_every_part_of_the_package_has_a_rule() -> None:
    parts = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert parts <= set(ALLOWED)


@pytest.mark.parametrize(
    ("module", "source", "verdict"),
    [
        ("common/x.py", "from tidegate.graph import job_graph", False),
        ("common/x.py", "from tidegate import graph", False),
        ("common/x.py", "from ..graph import job_graph", False),
        ("common/x.py", "from .types import Row", True),
        ("common/x.py", "def f():\n    import tidegate.spark.gang", False),
        ("datastream/x.py", "def f():\n    from tidegate.spark.gang import run", True),
        ("datastream/x.py", "from tidegate.spark.gang import run", False),
        ("datastream/functions.py", "from tidegate.datastream.data_stream import DataStream", False),
        ("datastream/functions.py", "from tidegate.datastream.state import ValueState", True),
        ("taskmanager/x.py", "from tidegate.datastream.functions import MapFunction", True),
        ("taskmanager/x.py", "from tidegate.datastream.data_stream import DataStream", False),
        ("protocol/x.py", "from tidegate.network.elements import Watermark", True),
        ("protocol/x.py", "from tidegate.network.transport import Transport", False),
        ("jobmanager/x.py", "from tidegate.taskmanager.task import Task", False),
    ],
)
def test_the_rules_tell_right_from_wrong(module: str, source: str, verdict: bool) -> None:
    assert all(allowed(i) for i in imports_of(PACKAGE / module, source)) is verdict
