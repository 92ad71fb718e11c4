"""`tidegate chaos`: a program under injected faults, its output held against that of undisturbed runs."""

from __future__ import annotations

import argparse
import math
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.chaos.comparison import Verdict, compare, order_remarks, ordered_sinks
from tidegate.chaos.draws import KINDS
from tidegate.chaos.html_report import html
from tidegate.chaos.interrupts import Interrupts
from tidegate.chaos.report import Report, text
from tidegate.chaos.rewriting import ChaosError
from tidegate.chaos.rounds import Rounds, Run
from tidegate.chaos.segment import DamagedRunError
from tidegate.chaos.wishes import Wishes
from tidegate.cli.errors import CommandError
from tidegate.common.configuration import Configuration
from tidegate.common.option_validation import validate_keys, validate_values

_CHAOS_OWN = ("high-availability", "tidegate.high-availability.standby")


def add_command(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    parser = command(commands, "chaos", "run a program under injected faults and compare its output", chaos, _show)
    parser.add_argument("--rounds", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--faults", default=",".join(KINDS), metavar="KINDS", help="of: " + ", ".join(KINDS))
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="mean time between two faults")
    parser.add_argument("--faults-per-round", type=int, default=4, metavar="N", help="at most (default: 4)")
    parser.add_argument("--seed", type=int, help="otherwise a new one, which is printed")
    parser.add_argument("--round", type=int, metavar="N", help="only this round, again")
    parser.add_argument("--stretch", type=float, default=8.0, metavar="SECONDS", help="slow sources down to this long")
    parser.add_argument("--records", type=int, help="of each unbounded source, an equal share of each of its splits")
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="of each unbounded source, in the first run")
    parser.add_argument(
        "--order-by", default="auto", metavar="FIELD", help="whose records have an order; none: nothing"
    )
    parser.add_argument("--keep-sinks", action="store_true", help="write to the program's own sinks")
    parser.add_argument("--verify", metavar="CMD", help="with --keep-sinks: run after each round; 0 means it is right")
    parser.add_argument("--report", metavar="FILE", help="the HTML report (default: chaos-report.html)")
    parser.add_argument("--folder", metavar="DIR", help="keep what was recorded; on a cluster one that all hosts share")
    parser.add_argument("-D", dest="define", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    parser.add_argument("program", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def chaos(arguments: Any) -> dict[str, Any]:
    wishes = _wishes(arguments)
    file = _report_file(arguments.report or "chaos-report.html")
    folder = _folder(arguments.folder)

    def say(line: str) -> None:
        if not arguments.json:
            print(line, file=sys.stderr, flush=True)

    say(f"seed {wishes.seed}")
    with Interrupts() as interrupts:
        try:
            report = _run(wishes, folder, say, interrupts)
        finally:
            if arguments.folder is None:
                shutil.rmtree(folder, ignore_errors=True)
    problems = [] if report.held else [f"{report.conclusion} See {file}"]
    try:
        file.write_text(html(report), encoding="utf-8")
    except OSError as error:
        problems.append(f"--report {file} could not be written: {error}")
    numbers = report.figures
    return {
        "held": report.held,
        "outcome": report.outcome.value,
        "deterministic": report.deterministic,
        "seed": wishes.seed,
        "rounds": numbers.rounds,
        "faults": dict(numbers.faults),
        "recoveries": numbers.restarts,
        "lost": numbers.lost,
        "doubled": numbers.doubled,
        "out_of_order": numbers.out_of_order,
        "findings": report.findings,
        "notes": report.notes,
        "report": str(file),
        "lines": list(text(report)),
        "problems": problems,
    }


def _report_file(name: str) -> Path:
    """Looked at before anything is run: it is written when all is over, which may be after hours."""
    file = Path(name)
    if file.is_dir():
        raise CommandError(f"--report {name} is a folder: name a file")
    if not file.parent.is_dir():
        raise CommandError(f"--report {name}: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise CommandError(f"--report {name} cannot be written: name another file")
    return file


def _folder(name: str | None) -> str:
    folder = os.path.abspath(name or tempfile.mkdtemp(prefix="tidegate-chaos-"))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.listdir(folder):
            raise CommandError(f"--folder {folder} is not empty: name a new one")
    except OSError as error:
        raise CommandError(f"--folder {folder} cannot be used: {error}") from error
    return folder


def _run(wishes: Wishes, folder: str, say: Callable[[str], None], interrupts: Interrupts) -> Report:
    """What there is when the rounds are stopped, or cannot go on, is a report too."""
    rounds = Rounds(wishes, folder)
    first, *more = rounds.undisturbed()
    if not more:
        return Report(wishes, first, Verdict(first))
    second = more[0]
    say(f"undisturbed: {_seconds(first)} and, slowed down, {_seconds(second)}")
    ordered = ordered_sinks(first, second)
    report = Report(wishes, second, compare(first, second, undisturbed=True))
    if not report.comparable:
        return report
    report.remarks = order_remarks(first, second, ordered, wishes.order_by)
    try:
        for run in rounds.disturbed():
            verdict = compare(second, run, ordered) if report.deterministic else Verdict(run)
            report.rounds.append(verdict)
            word = "held" if verdict.held else "BROKEN"
            say(f"{run.name}: {word} after {len(run.faults)} faults, {_seconds(run)}")
    except KeyboardInterrupt:
        report.cut_short = f"it was stopped ({interrupts.by or 'SIGINT'})"
    except (ChaosError, DamagedRunError) as error:
        report.cut_short = str(error).rstrip(".")
    return report


def _seconds(run: Run) -> str:
    return f"{run.seconds:.0f} s"


def _show(answer: dict[str, Any]) -> None:
    for line in answer["lines"]:
        print(line)
    print(f"report: {answer['report']}")


def _wishes(arguments: Any) -> Wishes:
    if not os.path.isfile(arguments.program):
        raise CommandError(f"there is no file '{arguments.program}'")
    kinds = tuple(kind.strip() for kind in arguments.faults.split(",") if kind.strip())
    if not kinds:
        raise CommandError(f"--faults {arguments.faults!r}: name at least one of {', '.join(KINDS)}")
    for kind in kinds:
        if kind not in KINDS:
            raise CommandError(f"--faults {kind}: there is no such fault; there are {', '.join(KINDS)}")
    for name in ("rounds", "every", "faults_per_round", "stretch", "round", "records", "duration"):
        value = getattr(arguments, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise CommandError(f"--{name.replace('_', '-')}: has to be more than 0, and not {value}")
    if arguments.verify is not None and not arguments.keep_sinks:
        raise CommandError("--verify needs --keep-sinks: otherwise nothing is written for the command to look at")
    settings = []
    for pair in arguments.define:
        key, separator, value = pair.partition("=")
        if not separator:
            raise CommandError(f"-D {pair}: write key=value")
        if key.startswith(_CHAOS_OWN):
            raise CommandError(
                f"-D {key}: chaos has a high availability of its own for the drivers that it kills, and a cluster id "
                "for each round: leave it out"
            )
        settings.append((key, value))
    configuration = Configuration.from_dict(dict(settings))
    validate_keys(configuration)
    validate_values(configuration)
    return Wishes(
        program=arguments.program,
        arguments=tuple(arguments.arguments),
        rounds=arguments.rounds,
        kinds=kinds,
        seed=secrets.randbelow(2**31) if arguments.seed is None else arguments.seed,
        every_s=arguments.every,
        faults_per_round=arguments.faults_per_round,
        stretch_s=arguments.stretch,
        records=arguments.records,
        duration_s=arguments.duration,
        keep_sinks=arguments.keep_sinks,
        verify=arguments.verify,
        order_by=arguments.order_by,
        settings=tuple(settings),
        only_round=arguments.round,
    )
