"""The plot of the comparison: bars per system, a panel per measure, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_COLOURS = {
    "Tidegate": "#0b6e4f",
    "PyFlink": "#c8553d",
    "PyFlink threads": "#e08d79",
    "bytewax": "#d9a441",
    "Spark": "#5b7db1",
}
_PANEL, _BAR, _GAP, _LEFT, _TOP = 250, 26, 10, 112, 54


@dataclass(frozen=True)
class Panel:
    title: str
    note: str  # what is better, and the unit
    values: Mapping[str, float]  # by system; one that is missing was not measured
    shown: Mapping[str, str]


def draw(systems: Sequence[str], panels: Sequence[Panel], caption: str) -> str:
    height = _TOP + len(systems) * (_BAR + _GAP) + 34
    width = _LEFT + len(panels) * (_PANEL + 20)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for row, system in enumerate(systems):
        y = _TOP + row * (_BAR + _GAP) + _BAR * 0.68
        parts.append(f'<text x="{_LEFT - 8}" y="{y:.0f}" text-anchor="end">{escape(system)}</text>')
    for column, panel in enumerate(panels):
        x = _LEFT + column * (_PANEL + 20)
        parts.append(f'<text x="{x}" y="20" font-weight="bold">{escape(panel.title)}</text>')
        parts.append(f'<text x="{x}" y="38" fill="#666">{escape(panel.note)}</text>')
        highest = max(panel.values.values(), default=1.0)
        for row, system in enumerate(systems):
            y = _TOP + row * (_BAR + _GAP)
            if system not in panel.values:
                parts.append(f'<text x="{x}" y="{y + _BAR * 0.68:.0f}" fill="#666">not measured</text>')
                continue
            length = max(2.0, (_PANEL - 112) * panel.values[system] / highest)
            parts.append(
                f'<rect x="{x}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2" '
                f'fill="{_COLOURS.get(system, "#888")}"/>'
            )
            parts.append(
                f'<text x="{x + length + 6:.1f}" y="{y + _BAR * 0.68:.0f}">{escape(panel.shown[system])}</text>'
            )
    parts.append(f'<text x="{_LEFT}" y="{height - 10}" fill="#666">{escape(caption)}</text>')
    return "\n".join([*parts, "</svg>", ""])
