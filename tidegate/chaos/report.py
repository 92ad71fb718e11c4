"""The report on the terminal. `html_report.py` has the same as one file to keep."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidegate.chaos.comparison import Verdict
from tidegate.chaos.draws import KINDS
from tidegate.chaos.figures import Figures, figures
from tidegate.chaos.rounds import Run
from tidegate.chaos.wishes import Wishes


class Outcome(enum.Enum):
    """What all of it comes to. Only the first one is a success."""

    HELD = "HELD"  # there were faults, and records to compare, and the guarantee held in all rounds
    BROKEN = "BROKEN"  # in some round it did not
    CUT_SHORT = "CUT SHORT"  # it held in those rounds that were run, but not all were
    NOT_TESTED = "NOT TESTED"  # nothing was found, because nothing happened or nothing came out
    NOT_DETERMINISTIC = "NOT DETERMINISTIC"  # no round was run: there is nothing to hold one against
    FAILS_BY_ITSELF = "FAILS BY ITSELF"  # likewise


@dataclass
class Report:
    """All that `tidegate chaos` has found out. `undisturbed` is the comparison of the two runs without faults,
    `remarks` what is not compared in any round, and why."""

    wishes: Wishes
    expected: Run
    undisturbed: Verdict
    rounds: list[Verdict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    cut_short: str | None = None  # why not all rounds were run

    @property
    def deterministic(self) -> bool:
        return self.undisturbed.run.ended and self.undisturbed.same

    @property
    def comparable(self) -> bool:
        """Whether rounds can be judged: by the user's command, or by what they have in common with the undisturbed."""
        return self.expected.ended and (self.deterministic or self.wishes.verify is not None)

    @property
    def held(self) -> bool:
        return self.outcome is Outcome.HELD

    @property
    def outcome(self) -> Outcome:
        if not self.expected.ended:
            return Outcome.FAILS_BY_ITSELF
        if not self.comparable:
            return Outcome.NOT_DETERMINISTIC
        if not all(verdict.held for verdict in self.rounds):
            return Outcome.BROKEN
        if self.cut_short is not None:
            return Outcome.CUT_SHORT
        return Outcome.NOT_TESTED if self._untested else Outcome.HELD

    @property
    def _untested(self) -> str | None:
        """Why rounds in which nothing was found show nothing, and what to do."""
        if not self.figures.faults.total():
            return (
                "no fault was injected. Give them time with a longer job or a higher --stretch, let them come sooner "
                f"with a lower --every, or allow more kinds than --faults {','.join(self.wishes.kinds)} (a rescale "
                "needs something that runs in parallel)"
            )
        if self.wishes.verify is None and not sum(sink.records for sink in self.undisturbed.sinks):
            return (
                "no record came out of any sink, so there was nothing to compare. Give the job more input: a longer "
                "one, or more --records or --duration of a source that never ends"
            )
        return None

    @property
    def conclusion(self) -> str:
        """The outcome as a sentence."""
        outcome, numbers = self.outcome, self.figures
        if outcome is Outcome.HELD:
            said = f"the guarantee held in all {numbers.rounds} rounds under {numbers.faults.total()} faults."
        elif outcome is Outcome.BROKEN:
            said = f"the guarantee did not hold in {numbers.rounds - numbers.held} of {numbers.rounds} rounds."
        elif outcome is Outcome.CUT_SHORT:
            said = (
                f"{self.cut_short}. The guarantee held in the {numbers.rounds} rounds that were run, under "
                f"{numbers.faults.total()} faults; {self.wishes.asked_rounds} were asked for."
            )
        elif outcome is Outcome.NOT_TESTED:
            said = f"this shows nothing, since {self._untested}."
        elif outcome is Outcome.NOT_DETERMINISTIC:
            said = "make the output of the program the same in every run, or use --keep-sinks --verify."
        else:
            said = "the program does not come to its end without any fault, so there is nothing to compare."
        return f"{outcome.value}: {said}"

    @property
    def notes(self) -> list[str]:
        """What was set differently from the program, and what was not compared."""
        found = [*self.expected.segments[-1].notes, *self.remarks] if self.expected.segments else [*self.remarks]
        if self.cut_short is not None and self.outcome is not Outcome.CUT_SHORT:
            found.append(f"{self.cut_short}: {len(self.rounds)} of {self.wishes.asked_rounds} rounds were run")
        for verdict in [self.undisturbed, *self.rounds]:
            found += [one for one in verdict.uncompared if one not in found]
        if self.figures.faults.total():
            calm = [v.run.name for v in self.rounds if v.run.ended and not v.run.faults]
            if calm:
                found.append(f"no fault came in {', '.join(calm)}: the job had ended before")
        return found

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
        for verdict in self.rounds:
            recounted = [f"at least once has counted records twice: {one}" for one in verdict.recounted]
            found += [one for one in recounted if one not in found]
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
    for note in report.notes:
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
    yield report.conclusion


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
    for line in failure(report, verdict):
        yield f"    {line}"


def failure(report: Report, verdict: Verdict) -> Iterator[str]:
    """Why a round did not hold, line by line, and the command that repeats it."""
    yield from (verdict.run.problem or "").splitlines()
    if verdict.run.verified is not None:
        yield verdict.run.verified
    for sink in verdict.sinks:
        for example in sink.examples if not sink.held else ():
            yield f"{sink.name}: {example}"
    yield f"again: {report.wishes.command(int(verdict.run.name.removeprefix('round ')))}"
