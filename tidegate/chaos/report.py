"""The report on the terminal. `html_report.py` has the same as one file to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidegate.chaos.comparison import Verdict
from tidegate.chaos.draws import KINDS
from tidegate.chaos.figures import Figures, figures
from tidegate.chaos.rounds import Run
from tidegate.chaos.wishes import Wishes


@dataclass
class Report:
    """All that `tidegate chaos` has found out. `undisturbed` is the comparison of the two runs without faults."""

    wishes: Wishes
    expected: Run
    undisturbed: Verdict
    rounds: list[Verdict] = field(default_factory=list)

    @property
    def deterministic(self) -> bool:
        return self.undisturbed.run.ended and self.undisturbed.same

    @property
    def comparable(self) -> bool:
        """Whether rounds can be judged: by the user's command, or by what they have in common with the undisturbed."""
        return self.expected.ended and (self.deterministic or self.wishes.verify is not None)

    @property
    def held(self) -> bool:
        return self.comparable and all(verdict.held for verdict in self.rounds)

    @property
    def figures(self) -> Figures:
        return figures(self.expected, self.rounds)

    @property
    def findings(self) -> list[str]:
        """What the user may want to change, the weightiest first."""
        found: list[str] = []
        failed = self.expected.failed_job
        if failed is not None:
            found.append(f"the job fails without any fault: {failed.failures[-1].summary}")
        elif not self.comparable:
            found.append("two runs without any fault differ, so no round can be held against them")
        elif not self.deterministic:
            found.append("two runs without any fault differ: what the command says decides, and nothing else")
        for verdict in [self.undisturbed, *self.rounds]:
            found += [one for one in (*verdict.suspects, *verdict.state) if one not in found]
        for operator in self.expected.segments[-1].operators:
            if operator.kind == "sink" and operator.guarantee != "exactly once":
                doubled = sum(s.doubled for v in self.rounds for s in v.sinks if s.name == operator.name)
                found.append(
                    f"'{operator.name}' is not transactional ({operator.guarantee}): "
                    + (f"{doubled} records came twice" if doubled else "records may come twice after a recovery")
                )
        return found


def text(report: Report) -> Iterator[str]:
    """Line by line."""
    numbers = report.figures
    yield ""
    yield f"{report.wishes.program}, seed {report.wishes.seed}"
    for note in report.expected.segments[-1].notes:
        yield f"  note: {note}"
    if report.comparable:
        yield from _figures(numbers)
        yield from _sinks(report)
    for finding in report.findings:
        yield f"  finding: {finding}"
    for verdict in report.rounds:
        if not verdict.held:
            yield from _failed(report, verdict)
    yield ""
    if report.held:
        yield f"HELD: the guarantee held in all {numbers.rounds} rounds under {numbers.faults.total()} faults."
    elif not report.expected.ended:
        yield "FAILS BY ITSELF: the program does not come to its end without any fault, so there is nothing to compare."
    elif not report.comparable:
        yield "NOT DETERMINISTIC: make the output of the program the same in every run, or use --keep-sinks --verify."
    else:
        yield f"BROKEN: the guarantee did not hold in {numbers.rounds - numbers.held} of {numbers.rounds} rounds."


def _figures(numbers: Figures) -> Iterator[str]:
    by_kind = ", ".join(f"{kind} {numbers.faults[kind]}" for kind in KINDS if numbers.faults[kind]) or "none"
    yield f"  faults injected      {numbers.faults.total()} ({by_kind})"
    yield (
        f"  recoveries           {numbers.restarts}, downtime median {numbers.median_downtime_s:.1f} s, "
        f"worst {numbers.worst_downtime_s:.1f} s"
    )
    yield f"  records again        about {numbers.processed_again}"
    yield f"  checkpoints          {numbers.checkpoints_completed} completed, {numbers.checkpoints_failed} failed"


def _sinks(report: Report) -> Iterator[str]:
    names = dict.fromkeys(sink.name for verdict in report.rounds for sink in verdict.sinks)
    for name in names:
        sinks = [sink for verdict in report.rounds for sink in verdict.sinks if sink.name == name]
        yield (
            f"  {name} ({sinks[0].guarantee}): {sum(s.records for s in sinks)} records, "
            f"lost {sum(s.lost for s in sinks)}, doubled {sum(s.doubled for s in sinks)}, "
            f"changed {sum(s.changed for s in sinks)}, out of order {sum(s.out_of_order for s in sinks)}"
        )


def _failed(report: Report, verdict: Verdict) -> Iterator[str]:
    yield f"  {verdict.run.name} did not hold:"
    for line in (verdict.run.problem or "").splitlines():
        yield f"    {line}"
    if verdict.run.verified is not None:
        yield f"    {verdict.run.verified}"
    for sink in verdict.sinks:
        for example in sink.examples if not sink.held else ():
            yield f"    {sink.name}: {example}"
    yield f"    again: {report.wishes.command(int(verdict.run.name.removeprefix('round ')))}"
