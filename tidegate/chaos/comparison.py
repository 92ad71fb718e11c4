"""A round held against an undisturbed run: what was lost, doubled, out of order; other state; and who it may be."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tidegate.chaos.attributes import changing_attributes
from tidegate.chaos.canonical import canonical, shown
from tidegate.chaos.recording import Recorded, Total, recorded, totals
from tidegate.chaos.rounds import Run, latest_state
from tidegate.chaos.segment import OperatorSeen
from tidegate.common.errors import TidegateError
from tidegate.snapshots import iterate_state, list_states, stand_ins
from tidegate.state import serialization

_EXAMPLES = 3
_OWN_STATES = ("tidegate.",)  # of the runtime: offsets, committables


@dataclass
class SinkVerdict:
    name: str
    guarantee: str
    records: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0  # records that no undisturbed run has
    out_of_order: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        if self.guarantee == "exactly once":
            return not (self.lost or self.doubled or self.changed or self.out_of_order)
        return not (self.lost or self.changed) if self.guarantee == "at least once" else True


@dataclass
class Verdict:
    """What a round has shown."""

    run: Run
    sinks: list[SinkVerdict] = field(default_factory=list)
    state: list[str] = field(default_factory=list)  # differences, one sentence each
    suspects: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Nothing was found that differs from the undisturbed run by more than the sinks promise."""
        return not self.state and all(s.held for s in self.sinks)

    @property
    def held(self) -> bool:
        """The user's command decides where there is one: output and state may then differ from run to run."""
        return self.run.ended and (self.run.verified is None if self.run.decided else self.same)


def compare(expected: Run, run: Run, ordered: frozenset[str] = frozenset()) -> Verdict:
    """`ordered`: the ids of the sinks whose records of one key have an order that must be kept."""
    verdict = Verdict(run)
    if not run.ended or not run.segments:
        return verdict
    for operator in run.segments[-1].operators:
        if operator.kind == "sink" and operator.recorded:
            verdict.sinks.append(_compare_sink(operator, expected, run, operator.operator_id in ordered))
        elif operator.kind == "sink":
            verdict.sinks.append(_compare_handed(operator, expected, run))
    verdict.state = compare_state(expected, run)
    if not verdict.same:
        verdict.suspects = suspects(expected, run)
    return verdict


def _compare_sink(operator: OperatorSeen, expected: Run, run: Run, ordered: bool) -> SinkVerdict:
    wanted = list(recorded(expected.folder, operator.operator_id))
    found = list(recorded(run.folder, operator.operator_id))
    verdict = SinkVerdict(operator.name, operator.guarantee, len(found))
    want, have = Counter(r.digest for r in wanted), Counter(r.digest for r in found)
    texts = {r.digest: r.text for r in (*wanted, *found)}
    for one, count in want.items():
        missing = count - have[one]
        if missing > 0:
            verdict.lost += missing
            _example(verdict, f"lost: {texts[one]}")
        elif missing < 0:
            verdict.doubled -= missing
            _example(verdict, f"doubled: {texts[one]}")
    for one, count in have.items():
        if one not in want:
            verdict.changed += count
            _example(verdict, f"in no undisturbed run: {texts[one]}")
    if ordered and operator.guarantee == "exactly once":
        orders = _orders(wanted)
        for key, order in _orders(found).items():
            if key in orders and Counter(order) == Counter(orders[key]) and order != orders[key]:
                verdict.out_of_order += sum(a != b for a, b in zip(order, orders[key], strict=True))
                _example(verdict, f"out of order among the records of one key, for example {texts[order[0]]}")
    return verdict


def _compare_handed(operator: OperatorSeen, expected: Run, run: Run) -> SinkVerdict:
    """Of a sink that was kept: what it was handed. What it has made of that is for a command of the user to tell."""
    wanted, found = (_handed(operator, totals(one.folder)) for one in (expected, run))
    verdict = SinkVerdict(f"into {operator.name}", operator.guarantee, found.count)
    verdict.lost, verdict.doubled = max(0, wanted.count - found.count), max(0, found.count - wanted.count)
    if wanted.count != found.count:
        _example(verdict, f"it was handed {found.count} records instead of {wanted.count}")
    elif wanted != found:
        verdict.changed = 1  # at least: a total does not tell
        _example(verdict, "it was handed as many records, but with other values")
    return verdict


def _handed(operator: OperatorSeen, emitted: dict[str, Total]) -> Total:
    handed = Total()
    for upstream in operator.inputs:
        one = emitted.get(upstream, Total())
        handed = handed.plus(one.count, one.digest)
    return handed


def _example(verdict: SinkVerdict, text: str) -> None:
    if len(verdict.examples) < _EXAMPLES:
        verdict.examples.append(text)


def _orders(records: list[Recorded]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for record in records:
        if record.key:
            found[record.key].append(record.digest)
    return found


def ordered_sinks(first: Run, second: Run) -> frozenset[str]:
    """The sinks that have the records of each key in the same order in two undisturbed runs: rounds must too."""
    sinks = [o.operator_id for o in second.segments[-1].operators if o.kind == "sink" and o.recorded]
    return frozenset(
        one
        for one in sinks
        if _orders(list(recorded(first.folder, one))) == _orders(list(recorded(second.folder, one)))
    )


# ---------------------------------------------------------------- state


def compare_state(expected: Run, run: Run) -> list[str]:
    """Keyed state at the end, by operator, state, key and window."""
    before, after = latest_state(expected), latest_state(run)
    if before is None or after is None:
        return []
    want, have = _states(before), _states(after)
    found = []
    for name in sorted(want.keys() | have.keys()):
        one, other = want.get(name, {}), have.get(name, {})
        different = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
        if different:
            key, keys = min(different), len(one.keys() | other.keys())
            found.append(
                f"state '{name[1]}' of '{name[0]}' differs for {len(different)} of {keys} keys, "
                f"for example key {key}: {one.get(key, 'nothing')} undisturbed, {other.get(key, 'nothing')} here"
            )
    return found


def _states(path: str) -> dict[tuple[str, str], dict[str, str]]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    unpickle, serialization.unpickle = serialization.unpickle, stand_ins.loads  # classes of a script are not here
    try:
        for listing in list_states(path):
            if listing.kind in ("operator list", "union list", "broadcast", "timers"):
                continue
            if listing.state.startswith(_OWN_STATES):
                continue
            entries = found.setdefault((listing.operator, listing.state), {})
            try:
                for entry in iterate_state(path, listing.operator_id, listing.state):
                    value = _without_times(entry.value) if listing.time_to_live else entry.value
                    entries[_key_text(entry.key, entry.namespace)] = canonical(value)
            except TidegateError as error:
                entries["<unreadable>"] = str(error)
    finally:
        serialization.unpickle = unpickle
    return found


def _without_times(value: Any) -> Any:
    """Of state with a time to live: without the times of the last access, which differ from run to run."""
    if isinstance(value, dict):
        return {key: pair[0] for key, pair in value.items()}
    return [pair[0] for pair in value] if isinstance(value, list) else value[0]


def _key_text(key: Any, namespace: Any) -> str:
    return shown(key) if namespace is None else f"{shown(key)} in {shown(namespace)}"


# ---------------------------------------------------------------- who it was


def suspects(expected: Run, run: Run) -> list[str]:
    """The operators whose output differs although that of all operators before them is the same."""
    want, have = totals(expected.folder), totals(run.folder)
    found: list[str] = []
    tainted: set[str] = set()
    for operator in run.segments[-1].operators:
        one, other = want.get(operator.operator_id), have.get(operator.operator_id)
        below = any(upstream in tainted for upstream in operator.inputs)
        if below or (one is not None and other is not None and one != other):
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
