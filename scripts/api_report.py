"""How much of PyFlink's DataStream API is there, by importing it: `python scripts/api_report.py`, or `make api-report`.

The names to compare with are in `pyflink_names.txt` beside this file: per module the classes, per class the methods. A
name counts as there when `tidegate.<module>` has it; what it does is another question, which
`docs/pyflink-differences.md` answers. `--update PAGE` rewrites the generated part of that page.

The coverage never falls: `api_floor.json` beside this file holds how many classes and methods there were, the report
ends with an error when there are fewer now, and `--raise-floor` writes the present numbers (never lower ones).
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

NAMES = Path(__file__).with_name("pyflink_names.txt")
FLOOR = Path(__file__).with_name("api_floor.json")
BEGIN, END = "<!-- api-report: begin -->", "<!-- api-report: end -->"


@dataclass
class ModuleReport:
    """What one module of PyFlink has, and what of it is missing here."""

    name: str
    classes: int = 0
    methods: int = 0
    missing_classes: list[str] = field(default_factory=list)
    missing_methods: list[str] = field(default_factory=list)  # "Class.method", of classes that are there
    hidden_methods: int = 0  # methods of missing classes

    @property
    def classes_there(self) -> int:
        return self.classes - len(self.missing_classes)

    @property
    def methods_there(self) -> int:
        return self.methods - len(self.missing_methods) - self.hidden_methods

    @property
    def missing(self) -> list[str]:
        return self.missing_classes + self.missing_methods


def read_names(path: Path = NAMES) -> dict[str, dict[str, list[str]]]:
    """Module -> class -> methods."""
    modules: dict[str, dict[str, list[str]]] = {}
    current: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if header := re.fullmatch(r"\[(.+)\]", line):
            current = modules.setdefault(header[1], {})
            continue
        name, _, methods = line.partition(":")
        current[name.strip()] = [method.strip() for method in methods.split(",") if method.strip()]
    return modules


def report_module(name: str, classes: dict[str, list[str]]) -> ModuleReport:
    report = ModuleReport(name)
    try:
        module: object = importlib.import_module(f"tidegate.{name}")
    except ModuleNotFoundError as error:
        if not f"tidegate.{name}".startswith(error.name or "?"):
            raise
        module = None
    for class_name, methods in classes.items():
        report.classes += 1
        report.methods += len(methods)
        cls = getattr(module, class_name, None)
        if cls is None:
            report.missing_classes.append(class_name)
            report.hidden_methods += len(methods)
        else:
            report.missing_methods += [f"{class_name}.{method}" for method in methods if not hasattr(cls, method)]
    return report


def reports() -> list[ModuleReport]:
    return [report_module(name, classes) for name, classes in read_names().items()]


def markdown(found: list[ModuleReport]) -> str:
    """The table of the page, and the missing names."""
    lines = ["| module | classes | methods |", "|---|---|---|"]
    for r in found:
        lines.append(f"| `{r.name}` | {r.classes_there} of {r.classes} | {r.methods_there} of {r.methods} |")
    classes, methods = sum(r.classes for r in found), sum(r.methods for r in found)
    there, methods_there = sum(r.classes_there for r in found), sum(r.methods_there for r in found)
    lines.append(f"| **all** | **{there} of {classes}** | **{methods_there} of {methods}** |")
    if any(r.missing for r in found):
        lines += ["", "Not there yet:", ""]
    for r in found:
        if r.missing:
            lines.append(f"- `{r.name}`: {', '.join(f'`{name}`' for name in r.missing)}")
    return "\n".join(lines) + "\n"


def update_page(page: Path, text: str) -> None:
    """Replace what stands between the two marks."""
    old = page.read_text(encoding="utf-8")
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no lines '{BEGIN}' and '{END}'")
    page.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


def coverage(found: list[ModuleReport]) -> dict[str, int]:
    return {"classes": sum(r.classes_there for r in found), "methods": sum(r.methods_there for r in found)}


def below_floor(now: dict[str, int], floor: Path = FLOOR) -> list[str]:
    """What there is less of than there was."""
    before: dict[str, int] = json.loads(floor.read_text(encoding="utf-8"))
    return [f"{kind}: {now[kind]}, there were {n}" for kind, n in before.items() if now[kind] < n]


def raise_floor(now: dict[str, int], floor: Path = FLOOR) -> None:
    before: dict[str, int] = json.loads(floor.read_text(encoding="utf-8")) if floor.exists() else {}
    higher = {kind: max(n, before.get(kind, 0)) for kind, n in now.items()}
    floor.write_text(json.dumps(higher) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="How much of PyFlink's DataStream API is there.")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write the table into this page")
    parser.add_argument("--raise-floor", action="store_true", help="from now on there are at least as many names")
    arguments = parser.parse_args()
    found = reports()
    text = markdown(found)
    if arguments.raise_floor:
        raise_floor(coverage(found))
    elif arguments.update is None:
        sys.stdout.write(text)
    else:
        update_page(arguments.update, text)
    if missing := below_floor(coverage(found)):
        raise SystemExit(f"names of PyFlink's API have gone: {'; '.join(missing)}. See scripts/api_floor.json")


if __name__ == "__main__":
    main()
