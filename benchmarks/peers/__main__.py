"""`make bench-peers`: the comparison, in one run; with `--write` into README.md, docs/benchmarks.md and the plot."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.chart import Panel, draw
from benchmarks.peers.measures import Latency, WrongOutputError, latency, rate, recovery
from benchmarks.peers.systems import REPOSITORY, SYSTEMS, Job, JobFailedError, System
from tests.connectors.cache import UnavailableError

PAGES = {  # each with what stands before and behind the figures
    "README.md": (
        "\n## Next to its peers\n\n",
        "\n\n[Benchmarks](docs/benchmarks.md): what the jobs do, how each system is used, what figures do not say.\n",
    ),
    "docs/benchmarks.md": ("", ""),
}
PLOT = "docs/images/peers.svg"
_BEGIN, _END = "<!-- peers: made by make bench-peers -->", "<!-- end of peers -->"


@dataclass
class Outcome:
    system: System
    version: str = ""
    figures: dict[str, Any] = field(default_factory=dict)  # by measure
    problems: list[str] = field(default_factory=list)


def jobs(scale: float) -> dict[str, tuple[Callable[[System, Job, Path], Any], Job]]:
    count = max(10_000, int(1_000_000 * scale) // 10_000 * 10_000)
    paced = max(1000, int(6000 * scale) // 1000 * 1000)
    return {
        "w1": (rate, Job("w1", count, 1000)),
        "window": (rate, Job("window", count, 100)),
        "latency": (latency, Job("latency", paced, 100, per_second=300)),
        "recovery": (recovery, Job("recovery", 3 * paced, 100, per_second=600, checkpoints_ms=500)),
    }


def shown(measure: str, value: Any) -> str:
    if isinstance(value, Latency):
        return f"{value.median_ms:.1f} / {value.p99_ms:.0f} ms"
    if measure == "recovery":
        return f"{value:.1f} s"
    return f"{value:,.0f}/s"


def measure_all(
    scale: float, only: list[str] | None, measures: list[str] | None, measured: Callable[[list[Outcome]], Any]
) -> list[Outcome]:
    """`measured` is told of every figure, in case the others never come."""
    outcomes: list[Outcome] = []
    for system in SYSTEMS:
        if only and system.name not in only:
            continue
        outcome = Outcome(system)
        outcomes.append(outcome)
        try:
            outcome.version = system.version()
        except UnavailableError as error:
            outcome.problems.append(str(error))
            print(f"{system.name}: left out: {error}", flush=True)
            continue
        for name, (measure, job) in jobs(scale).items():
            if (measures and name not in measures) or (name == "recovery" and system.threads):
                continue
            with tempfile.TemporaryDirectory(prefix="tidegate-peers-") as folder:
                try:
                    outcome.figures[name] = measure(system, job, Path(folder) / "run")
                    print(f"{system.name:9} {name:9} {shown(name, outcome.figures[name])}", flush=True)
                    measured(outcomes)
                except (JobFailedError, WrongOutputError) as error:
                    outcome.problems.append(str(error))
                    print(f"{system.name:9} {name:9} {error}", flush=True)
    return outcomes


def remembered(path: Path, outcomes: list[Outcome]) -> list[Outcome]:
    """These outcomes with those of earlier parts of the same comparison, which are kept in a file."""
    before = json.loads(path.read_text()) if path.exists() else {}
    for outcome in outcomes:
        known = before.setdefault(outcome.system.name, {"figures": {}})
        known["version"] = outcome.version
        for name, value in outcome.figures.items():
            known["figures"][name] = [value.median_ms, value.p99_ms] if isinstance(value, Latency) else value
    path.write_text(json.dumps(before, indent=1))
    found = []
    for system in SYSTEMS:
        if system.name in before:
            figures = before[system.name]["figures"]
            made = {name: Latency(*value) if isinstance(value, list) else value for name, value in figures.items()}
            found.append(Outcome(system, before[system.name]["version"], made))
    return found


def table(outcomes: list[Outcome], scale: float) -> str:
    """With its header, and what it was measured on."""
    rows = [
        "| | keyed count | tumbling window | exchange, median / p99 | after a kill |",
        "|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        cells = [
            shown(name, outcome.figures[name]) if name in outcome.figures else "not measured" for name in jobs(scale)
        ]
        name = f"**{outcome.system.name}**" if outcome.system.name == "Tidegate" else outcome.system.name
        rows.append(f"| {name} {outcome.version} | {' | '.join(cells)} |")
    return "\n".join(rows)


def conditions(scale: float) -> str:
    w1, _, age, kill = (job for _, job in jobs(scale).values())
    today = datetime.date.today().isoformat()
    load = os.getloadavg()[0]
    return (
        f"{today}, {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, load {load:.0f} "
        f"when it ended. {w1.count:,} records over {w1.keys:,} keys, two workers; the exchange at {age.per_second:.0f} "
        f"records/s from each of two sources; the kill at {kill.per_second:.0f} records/s from each, with a checkpoint "
        f"every {kill.checkpoints_ms} ms."
    )


def plot(outcomes: list[Outcome], scale: float) -> str:
    titles = {
        "w1": ("Keyed count", "records/s, more is better"),
        "window": ("Tumbling window", "records/s, more is better"),
        "latency": ("Exchange", "median ms, less is better"),
        "recovery": ("After a kill", "seconds without results, less is better"),
    }
    panels = []
    for name, (title, note) in titles.items():
        found = {o.system.name: o.figures[name] for o in outcomes if name in o.figures}
        values = {s: v.median_ms if isinstance(v, Latency) else float(v) for s, v in found.items()}
        panels.append(Panel(title, note, values, {s: shown(name, v) for s, v in found.items()}))
    return draw([o.system.name for o in outcomes], panels, conditions(scale).split(". ")[0])


def write(outcomes: list[Outcome], scale: float) -> None:
    (REPOSITORY / PLOT).write_text(plot(outcomes, scale))
    for page, (heading, footing) in PAGES.items():
        path = REPOSITORY / page
        text = path.read_text()
        picture = os.path.relpath(REPOSITORY / PLOT, path.parent)
        figures = f"{table(outcomes, scale)}\n\n![The same as bars]({picture})\n\n{conditions(scale)}"
        before, found, rest = text.partition(_BEGIN)
        if found:
            body = f"{_BEGIN}\n{heading}{figures}{footing}\n{_END}"
            path.write_text(f"{before}{body}{rest.partition(_END)[2]}")


def main() -> int:
    parser = argparse.ArgumentParser(description="The same jobs on PyFlink, bytewax, Spark and Tidegate.")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--only", action="append", metavar="SYSTEM", help="may be repeated")
    parser.add_argument("--measure", action="append", metavar="NAME", help="w1, window, latency or recovery")
    parser.add_argument("--into", type=Path, metavar="FILE", help="keeps figures: a comparison may be made in parts")
    parser.add_argument("--write", action="store_true", help="into README.md, docs/benchmarks.md and docs/images")
    options = parser.parse_args()
    keep = (lambda outcomes: outcomes) if options.into is None else partial(remembered, options.into)
    outcomes = keep(measure_all(options.scale, options.only, options.measure, keep))
    print(f"\n{table(outcomes, options.scale)}\n\n{conditions(options.scale)}")
    if options.write:
        write(outcomes, options.scale)
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
