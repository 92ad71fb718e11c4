"""One line of the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    name: str
    value: str  # with its unit
    wanted: str = ""  # what the issue asks for
    reached: bool | None = None  # None: nothing was asked for


def print_table(figures: list[Figure]) -> None:
    widths = [max(len(getattr(f, column)) for f in figures) for column in ("name", "value", "wanted")]
    for f in figures:
        mark = "" if f.reached is None else "ok" if f.reached else "MISSED"
        print(f"{f.name:<{widths[0]}}  {f.value:>{widths[1]}}  {f.wanted:<{widths[2]}}  {mark}", flush=True)
