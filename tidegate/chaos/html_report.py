"""The report as one HTML file: no scripts, nothing from elsewhere, everything from the program escaped."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from html import escape

from tidegate.chaos.comparison import Verdict
from tidegate.chaos.draws import KINDS
from tidegate.chaos.figures import Figures
from tidegate.chaos.report import Outcome, Report, failure

_WIDTH, _ROW, _LEFT, _TOP = 1000, 34, 130, 26
_COLOURS = {"RUNNING": "#3b8f5e", "FAILING": "#c0392b", "RESTARTING": "#e0a030"}
_OTHER = "#9aa5b1"
_STYLE = """
:root{color-scheme:light dark;--ink:#1b2733;--paper:#fff;--line:#d6dde4}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#11181f;--line:#33404d}}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1060px;padding:0 1rem;color:var(--ink);
background:var(--paper)}
table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid var(--line);padding:.3rem .7rem;text-align:left}
td.n{text-align:right}.held{color:#3b8f5e}.broken{color:#c0392b}.neither{color:#b7791f}
pre{white-space:pre-wrap}svg text{fill:var(--ink)}
"""


def html(report: Report) -> str:
    return "\n".join(_document(report))


def _document(report: Report) -> Iterator[str]:
    numbers = report.figures
    outcome = report.outcome
    style = {Outcome.HELD: "held", Outcome.BROKEN: "broken"}.get(outcome, "neither")
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
    yield "<meta name='viewport' content='width=device-width'>"
    yield "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>tidegate chaos: {escape(report.wishes.program)}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{escape(report.wishes.program)} under chaos: <span class='{style}'>{outcome.value}</span></h1>"
    yield f"<p>{escape(report.conclusion)}</p>"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield f"<p>{numbers.held} of {numbers.rounds} rounds, {numbers.faults.total()} faults, seed {report.wishes.seed}; "
    yield f"{now}.</p>"
    if report.comparable:
        yield from _figures(numbers)
    for title, said in (("Findings", report.findings), ("Notes", report.notes)):
        if said:
            yield f"<h2>{title}</h2><ul>" + "".join(f"<li>{escape(one)}</li>" for one in said) + "</ul>"
    if report.rounds:
        yield "<h2>Time line</h2>" + "".join(_time_line(report.rounds))
        yield from _rounds(report)
    yield "</body></html>"


def _figures(numbers: Figures) -> Iterator[str]:
    rows = [
        ("lost", numbers.lost),
        ("doubled", numbers.doubled),
        ("out of order", numbers.out_of_order),
        ("recoveries", numbers.restarts),
        ("downtime, median", f"{numbers.median_downtime_s:.1f} s"),
        ("downtime, worst", f"{numbers.worst_downtime_s:.1f} s"),
        ("records processed again, about", numbers.processed_again),
        ("checkpoints completed", numbers.checkpoints_completed),
        ("checkpoints failed", numbers.checkpoints_failed),
    ]
    yield _table("All rounds", rows)
    yield _table("Faults", [(KINDS[kind], numbers.faults[kind]) for kind in KINDS if numbers.faults[kind]])


def _table(title: str, rows: list[tuple[str, object]]) -> str:
    cells = "".join(f"<tr><td>{escape(name)}</td><td class='n'>{escape(str(value))}</td></tr>" for name, value in rows)
    return f"<h2>{escape(title)}</h2><table>{cells}</table>"


def _rounds(report: Report) -> Iterator[str]:
    yield "<h2>Rounds</h2><table><tr><th>round</th><th>sink</th><th>guarantee</th><th>records</th><th>lost</th>"
    yield "<th>doubled</th><th>changed</th><th>out of order</th><th></th></tr>"
    for verdict in report.rounds:
        word, style = ("held", "held") if verdict.held else ("broken", "broken")
        for sink in verdict.sinks:
            figures = (sink.records, sink.lost, sink.doubled, sink.changed, sink.out_of_order)
            yield f"<tr><td>{escape(verdict.run.name)}</td><td>{escape(sink.name)}</td><td>{sink.guarantee}</td>"
            yield "".join(f"<td class='n'>{n}</td>" for n in figures) + f"<td class='{style}'>{word}</td></tr>"
    yield "</table>"
    for verdict in report.rounds:
        if not verdict.held:
            said = "\n".join(failure(report, verdict))
            yield f"<h3>{escape(verdict.run.name)} did not hold</h3><pre>{escape(said)}</pre>"


def _time_line(verdicts: list[Verdict]) -> Iterator[str]:
    """A bar per round, coloured by the job's status, with a mark for each fault."""
    spans = [_spans(verdict) for verdict in verdicts]
    longest = max((end for one in spans for _, _, end in one), default=1.0) or 1.0
    height = _TOP + _ROW * len(verdicts) + 20
    scale = (_WIDTH - _LEFT - 10) / longest
    yield f"<svg viewBox='0 0 {_WIDTH} {height}' role='img' aria-label='status of the job and faults over time'>"
    for i, (name, colour) in enumerate([*_COLOURS.items(), ("other", _OTHER)]):
        x = _LEFT + i * 150
        yield f"<rect x='{x}' y='4' width='12' height='12' fill='{colour}'/>"
        yield f"<text x='{x + 17}' y='14' font-size='12'>{name.lower()}</text>"
    yield f"<text x='{_LEFT + 4 * 150}' y='14' font-size='12'>&#9660; a fault</text>"
    for row, (verdict, one) in enumerate(zip(verdicts, spans, strict=True)):
        y = _TOP + row * _ROW
        yield f"<text x='4' y='{y + 22}' font-size='13'>{escape(verdict.run.name)}</text>"
        for status, begin, end in one:
            width = max(1.0, (end - begin) * scale)
            yield f"<rect x='{_LEFT + begin * scale:.1f}' y='{y + 12}' width='{width:.1f}' height='14' "
            yield f"fill='{_COLOURS.get(status, _OTHER)}'><title>{status.lower()} {end - begin:.1f} s</title></rect>"
        began = verdict.run.segments[0].started_ms if verdict.run.segments else 0.0
        for fault in verdict.run.faults:
            at = (float(str(fault["at_ms"])) - began) / 1000
            detail = escape(f"{fault['kind']}: {fault.get('detail', '')} ({at:.1f} s)", quote=True)
            x_at = _LEFT + at * scale
            yield f"<path d='M{x_at - 5:.1f},{y + 2} h10 l-5,9 z' fill='#c0392b'><title>{detail}</title></path>"
    yield f"<text x='{_WIDTH - 10}' y='{height - 4}' font-size='12' text-anchor='end'>{longest:.0f} s</text></svg>"


def _spans(verdict: Verdict) -> list[tuple[str, float, float]]:
    """(status, from, to) in seconds since the round's first job started."""
    segments = verdict.run.segments
    if not segments:
        return []
    began = segments[0].started_ms
    found = []
    for segment in segments:
        changes = [*segment.statuses, ("", segment.ended_ms)]
        for (status, at), (_, until) in itertools.pairwise(changes):
            if until > at:
                found.append((status, (at - began) / 1000, (until - began) / 1000))
    return found
