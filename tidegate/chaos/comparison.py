"""A round held against an undisturbed run: what was lost, doubled, out of order; other state; and who it may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.chaos.attributes import changing_attributes
from tidegate.chaos.differences import (
    SinkVerdict,
    compare_records,
    differing_states,
    example,
    keyed_states,
    lasting_states,
    lost_keys,
    orders,
    unreadable_states,
)
from tidegate.chaos.recording import Total, recorded, totals
from tidegate.chaos.rounds import Run, checkpoints_of, latest_state
from tidegate.chaos.segment import OperatorSeen
from tidegate.common.errors import TidegateError
from tidegate.snapshots import stand_ins
from tidegate.state import serialization


@dataclass
class Verdict:
    """What a round has shown."""

    run: Run
    sinks: list[SinkVerdict] = field(default_factory=list)
    state: list[str] = field(default_factory=list)  # differences that the guarantee does not allow, one sentence each
    recounted: list[str] = field(default_factory=list)  # those that at least once allows, likewise
    suspects: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)  # state that could not be looked at, and why

    @property
    def same(self) -> bool:
        """Nothing was found that differs from the undisturbed run by more than the sinks promise."""
        return not self.state and all(s.held for s in self.sinks)

    @property
    def held(self) -> bool:
        """The user's command decides where there is one: output and state may then differ from run to run."""
        return self.run.ended and (self.run.verified is None if self.run.decided else self.same)


def compare(expected: Run, run: Run, ordered: frozenset[str] = frozenset(), *, undisturbed: bool = False) -> Verdict:
    """`ordered`: the ids of the sinks whose records of one key have an order that must be kept. `undisturbed`: no fault
    was to come in `run` either.

    With checkpoints of at least once a recovery may count records into state twice, as the guarantee says, and what
    comes out of that state has other values then. So, in rounds: values behind state and values of state may differ,
    and that is only said; but no key may have fewer records than undisturbed, no state may have lost a key, and no
    source may have given less. Sinks with no state before them have every record of the undisturbed run and no other.
    """
    verdict = Verdict(run)
    if not run.ended or not run.segments:
        return verdict
    recounts = run.segments[-1].at_least_once and not undisturbed
    behind_state = _behind_state(run) if recounts else set()
    for operator in run.segments[-1].operators:
        recounted = operator.operator_id in behind_state
        if operator.kind == "sink" and operator.recorded:
            wanted, found = (list(recorded(one.folder, operator.operator_id)) for one in (expected, run))
            in_order = operator.operator_id in ordered
            verdict.sinks.append(compare_records(operator.name, operator.guarantee, wanted, found, in_order, recounted))
        elif operator.kind == "sink":
            verdict.sinks.append(_compare_handed(operator, expected, run, recounted))
    states = compare_state(expected, run)
    verdict.uncompared = states.uncompared
    if recounts:
        verdict.state, verdict.recounted = states.lost + _sources_with_less(expected, run), states.differences
    else:
        verdict.state = states.differences
    if not verdict.same:
        verdict.suspects = suspects(expected, run, recounts)
    return verdict


def _behind_state(run: Run) -> set[str]:
    """The operators that have state, or one before them."""
    found: set[str] = set()
    for operator in run.segments[-1].operators:  # in topological order
        if operator.stateful or found.intersection(operator.inputs):
            found.add(operator.operator_id)
    return found


def _sources_with_less(expected: Run, run: Run) -> list[str]:
    """A source and what counts it stand in one chain, so its total is exact with every kind of checkpoint."""
    want, have = totals(expected.folder), totals(run.folder)
    found = []
    for operator in run.segments[-1].operators:
        one, other = want.get(operator.operator_id), have.get(operator.operator_id)
        if operator.kind == "source" and one is not None and other is not None and other.count < one.count:
            found.append(f"'{operator.name}' has given {other.count} records instead of {one.count}")
    return found


def _compare_handed(operator: OperatorSeen, expected: Run, run: Run, recounted: bool) -> SinkVerdict:
    """Of a sink that was kept: what it was handed. What it has made of that is for a command of the user to tell."""
    wanted, found = (_handed(operator, totals(one.folder)) for one in (expected, run))
    verdict = SinkVerdict(f"into {operator.name}", operator.guarantee, found.count, recounted=recounted)
    verdict.lost, verdict.doubled = max(0, wanted.count - found.count), max(0, found.count - wanted.count)
    if wanted.count != found.count:
        example(verdict, f"it was handed {found.count} records instead of {wanted.count}")
    elif wanted != found:
        verdict.changed = 1  # at least: a total does not tell
        example(verdict, "it was handed as many records, but with other values")
    return verdict


def _handed(operator: OperatorSeen, emitted: dict[str, Total]) -> Total:
    handed = Total()
    for upstream in operator.inputs:
        one = emitted.get(upstream, Total())
        handed = handed.plus(one.count, one.digest)
    return handed


def ordered_sinks(first: Run, second: Run) -> frozenset[str]:
    """The sinks that have the records of each key in the same order in two undisturbed runs: rounds must too."""
    sinks = [o.operator_id for o in second.segments[-1].operators if o.kind == "sink" and o.recorded]
    return frozenset(
        one for one in sinks if orders(list(recorded(first.folder, one))) == orders(list(recorded(second.folder, one)))
    )


def order_remarks(first: Run, second: Run, ordered: frozenset[str], order_by: str) -> list[str]:
    """For each sink whose records are not held to their order: why not. `ordered` is what `ordered_sinks` says."""
    found = []
    for operator in second.segments[-1].operators:
        if operator.kind != "sink":
            continue
        reason = None
        if order_by == "none":
            reason = "--order-by none"
        elif not operator.recorded:
            reason = "it is the program's own, and what it was handed is compared as a total"
        elif operator.guarantee != "exactly once":
            reason = f"it is {operator.guarantee}: records that come again come late"
        elif operator.operator_id not in ordered:
            reason = "two undisturbed runs have records of one key in different orders"
        elif not orders(list(recorded(second.folder, operator.operator_id))):
            reason = "no record has " + ("a first field" if order_by == "auto" else f"a field '{order_by}'")
            reason += ", and --order-by names no other one"
        if reason is not None:
            found.append(f"the order of the records of '{operator.name}' is not compared: {reason}")
    return found


class StateComparison(NamedTuple):
    """One sentence each."""

    differences: list[str]
    lost: list[str]  # lasting states without keys that they have undisturbed; in `differences` as well
    uncompared: list[str]


def compare_state(expected: Run, run: Run) -> StateComparison:
    """Keyed state at the end, by operator, state, key and window: what differs, and what could not be compared."""
    paths = latest_state(expected), latest_state(run)
    missing = [one for one, path in zip((expected, run), paths, strict=True) if path is None]
    if missing:
        where = ", ".join(
            f"{one.name} has left no checkpoint that could be read in {checkpoints_of(one)}" for one in missing
        )
        return StateComparison([], [], [f"keyed state at the end is not compared: {where}"])
    unpickle, serialization.unpickle = serialization.unpickle, stand_ins.loads  # classes of a script are not here
    try:
        before, after = (keyed_states(path) for path in paths if path is not None)
        lasting = lasting_states(str(paths[0]))
    except TidegateError as error:
        return StateComparison([], [], [f"keyed state at the end is not compared: {error}"])
    finally:
        serialization.unpickle = unpickle
    return StateComparison(
        differing_states(before, after), lost_keys(before, after, lasting), unreadable_states(before, after)
    )


# ---------------------------------------------------------------- who it was


def suspects(expected: Run, run: Run, recounts: bool = False) -> list[str]:
    """The operators whose output differs although that of all operators before them is the same. `recounts`: records
    may count twice, so none but a source is suspected that has not emitted less."""
    want, have = totals(expected.folder), totals(run.folder)
    found: list[str] = []
    tainted: set[str] = set()
    for operator in run.segments[-1].operators:
        one, other = want.get(operator.operator_id), have.get(operator.operator_id)
        below = any(upstream in tainted for upstream in operator.inputs)
        differs = one is not None and other is not None and one != other
        if recounts and one is not None and other is not None and operator.kind != "source":
            differs = other.count < one.count
        if below or differs:
            tainted.add(operator.operator_id)
            if not below and one is not None and other is not None:
                attributes = changing_attributes(expected.folder, operator.operator_id)
                found.append(_suspicion(operator, one.count, other.count, attributes))
    return found


def _suspicion(operator: OperatorSeen, wanted: int, found: int, attributes: list[str]) -> str:
    counts = f"{found} records instead of {wanted}" if wanted != found else "as many records, but with other values"
    if operator.kind == "source":
        return (
            f"'{operator.name}' gave {counts}: is the source replayable? A reader that is opened at an offset has to "
            "give the records after it, the same ones every time"
        )
    beginning = f"'{operator.name}' emitted {counts}, though all that it read was the same"
    if attributes:
        names = ", ".join(attributes)
        return (
            f"{beginning}: its attributes ({names}) change while it runs, and are no state, so a recovery forgets them"
        )
    return f"{beginning}: does it depend on time, on chance, on the order of its inputs, or on something outside?"
