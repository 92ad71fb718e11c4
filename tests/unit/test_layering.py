"""Who may import what: the table of docs/architecture.md, as a test over the import statements of every module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tidegate"


def layers_of_the_docs() -> list[str]:
    """The packages of the table in docs/architecture.md, from the bottom to the top."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("\n## Layers\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


LAYERS = layers_of_the_docs()


def test_the_picture_of_the_layers_shows_the_packages_of_the_table() -> None:
    """Every package is drawn, and every arrow leads to one that stands above in the table."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = text.split("\n## Layers\n")[1].split("```mermaid")[1].split("```")[0]
    arrows = re.findall(r"^ +(\w+) --> (\w+)$", picture.lower(), re.MULTILINE)  # `graph` alone is a word of Mermaid's
    assert {name for arrow in arrows for name in arrow} == set(LAYERS)
    assert [arrow for arrow in arrows if LAYERS.index(arrow[1]) >= LAYERS.index(arrow[0])] == []


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


def allowed(statement: Import) -> bool:
    importer, target = statement.importer, statement.target
    if not is_under(target, "tidegate") or target in ("tidegate", "tidegate.__version__") or importer == "tidegate":
        return True
    imported, layer = target.split(".")[1], importer.split(".")[1]
    if imported in TOP_MODULES or layer in TOP_MODULES:  # PyFlink's path for a module of `common`
        return imported in ("common", *TOP_MODULES)
    return imported in LAYERS[: LAYERS.index(layer) + 1]


TOP_MODULES = tuple(p.stem for p in PACKAGE.glob("*.py") if p.stem != "__init__")
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
    assert parts == set(LAYERS)


@pytest.mark.parametrize(
    ("module", "source", "verdict"),
    [
        ("common/x.py", "from tidegate.graph import job_graph", False),
        ("common/x.py", "from tidegate import graph", False),
        ("common/x.py", "from ..graph import job_graph", False),
        ("common/x.py", "from .types import Row", True),
        ("common/x.py", "def f():\n    import tidegate.spark.streaming.gang", False),
        ("contracts/functions/base.py", "from tidegate.contracts.state import ValueState", True),
        ("contracts/functions/base.py", "from tidegate.datastream.data_stream import DataStream", False),
        ("formats/x.py", "if TYPE_CHECKING:\n    from tidegate.connectors.files.input_files import InputFiles", False),
        ("connectors/x.py", "from tidegate.storage.location import StorageLocation", True),
        ("storage/x.py", "from tidegate.connectors.files.part_files import PartFiles", False),
        ("datastream/x.py", "def f():\n    from tidegate.spark.streaming.gang import run", False),
        ("taskmanager/x.py", "from tidegate.contracts.functions import MapFunction", True),
        ("taskmanager/x.py", "from tidegate.datastream.data_stream import DataStream", False),
        ("jobmanager/x.py", "from tidegate.datastream.stream import DataStream", False),
        ("web/x.py", "from tidegate.spark.streaming.gang import SparkGang", False),
    ],
)
def test_the_rules_tell_right_from_wrong(module: str, source: str, verdict: bool) -> None:
    assert all(allowed(i) for i in imports_of(PACKAGE / module, source)) is verdict
