"""What all rounds come to: faults by kind, recoveries, downtime, records processed again."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

from tidegate.chaos.comparison import Verdict
from tidegate.chaos.rounds import Run


@dataclass(frozen=True)
class Figures:
    rounds: int
    held: int
    faults: Counter[str]
    restarts: int
    downtimes_s: list[float]  # from a failure until the job ran again
    processed_again: int  # records, about
    checkpoints_completed: int
    checkpoints_failed: int
    lost: int
    doubled: int
    out_of_order: int

    @property
    def median_downtime_s(self) -> float:
        return statistics.median(self.downtimes_s) if self.downtimes_s else 0.0

    @property
    def worst_downtime_s(self) -> float:
        return max(self.downtimes_s, default=0.0)


def figures(expected: Run, verdicts: list[Verdict]) -> Figures:
    segments = [segment for verdict in verdicts for segment in verdict.run.segments]
    undisturbed = sum(segment.records for segment in expected.segments)
    sinks = [sink for verdict in verdicts for sink in verdict.sinks]
    ended = [v for v in verdicts if v.run.ended]
    again = sum(max(0, sum(s.records for s in v.run.segments) - undisturbed) for v in ended)
    return Figures(
        rounds=len(verdicts),
        held=sum(v.held for v in verdicts),
        faults=Counter(str(fault["kind"]) for v in verdicts for fault in v.run.faults),
        restarts=sum(s.restarts for s in segments) + sum(len(v.run.segments) - 1 for v in verdicts if v.run.segments),
        downtimes_s=[seconds for v in verdicts for seconds in downtimes(v.run)],
        processed_again=again,
        checkpoints_completed=sum(s.checkpoints_completed for s in segments),
        checkpoints_failed=sum(s.checkpoints_failed for s in segments),
        lost=sum(s.lost for s in sinks),
        doubled=sum(s.doubled for s in sinks),
        out_of_order=sum(s.out_of_order for s in sinks),
    )


def downtimes(run: Run) -> list[float]:
    """In seconds: from a failure until the job runs again, and from the end of a segment until the next one runs."""
    found = []
    down_since: float | None = None
    for number, segment in enumerate(run.segments):
        for status, at_ms in segment.statuses:
            if status == "RUNNING" and down_since is not None:
                found.append((at_ms - down_since) / 1000)
                down_since = None
            elif status in ("FAILING", "RESTARTING") and down_since is None:
                down_since = at_ms
        if number + 1 < len(run.segments) and down_since is None:
            down_since = segment.ended_ms
    return found
