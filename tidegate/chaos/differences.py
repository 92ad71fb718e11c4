"""What differs between two runs of one job: the records of a sink, and the keyed state at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.chaos.canonical import canonical, shown
from tidegate.chaos.recording import Recorded
from tidegate.common.errors import TidegateError
from tidegate.snapshots import iterate_state, list_states

_EXAMPLES = 3
_OWN_STATES = ("tidegate.",)  # of the runtime: offsets, committables
_LASTING = ("value", "reducing", "aggregating")  # lists and maps are also what waits, and goes when its time has come
_UNREADABLE = "<unreadable>"  # in the place of a key, with the reason for a value

States = dict[tuple[str, str], dict[str, str]]
"""(operator, state) -> key, and window if there is one -> value; all as texts."""


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
    recounted: bool = False  # state before it may have counted records twice, so that values are others

    @property
    def held(self) -> bool:
        if self.guarantee == "exactly once":
            return not (self.lost or self.doubled or self.changed or self.out_of_order)
        if self.guarantee == "at least once":
            return not self.lost and (self.recounted or not self.changed)
        return True


def compare_records(
    name: str,
    guarantee: str,
    wanted: Sequence[Recorded],
    found: Sequence[Recorded],
    ordered: bool,
    recounted: bool = False,
) -> SinkVerdict:
    """Of one sink. `ordered`: its records of one key have an order that an exactly-once sink must keep. `recounted`:
    see `SinkVerdict`; a value that is missing is no lost record then, as long as its key has as many records."""
    verdict = SinkVerdict(name, guarantee, len(found), recounted=recounted)
    want, have = Counter(r.digest for r in wanted), Counter(r.digest for r in found)
    texts = {r.digest: r.text for r in (*wanted, *found)}
    if recounted:
        _count_fewer(verdict, wanted, found)
    for one, count in want.items():
        missing = count - have[one]
        if missing > 0 and not recounted:
            verdict.lost += missing
            example(verdict, f"lost: {texts[one]}")
        elif missing < 0:
            verdict.doubled -= missing
            example(verdict, f"doubled: {texts[one]}")
    for one, count in have.items():
        if one not in want:
            verdict.changed += count
            example(verdict, f"in no undisturbed run: {texts[one]}")
    if ordered and guarantee == "exactly once":
        expected = orders(wanted)
        for key, order in orders(found).items():
            if key in expected and Counter(order) == Counter(expected[key]) and order != expected[key]:
                verdict.out_of_order += sum(a != b for a, b in zip(order, expected[key], strict=True))
                example(verdict, f"out of order among the records of one key, for example {texts[order[0]]}")
    return verdict


def _count_fewer(verdict: SinkVerdict, wanted: Sequence[Recorded], found: Sequence[Recorded]) -> None:
    """A key that has fewer records than undisturbed has lost some. Where keys turn up that no undisturbed run has, the
    field is none that names who a record is of: then all records count together."""
    want, have = Counter(r.key for r in wanted), Counter(r.key for r in found)
    if have.keys() - want.keys():
        want, have = Counter({b"": len(wanted)}), Counter({b"": len(found)})
    fewer = want - have
    verdict.lost += fewer.total()
    texts = {r.key: r.text for r in wanted}
    for key, count in fewer.items():
        of = f" of a key, as {texts[key]}" if key else ""
        example(verdict, f"lost: {have[key]} instead of {want[key]} records{of} ({count} fewer)")


def example(verdict: SinkVerdict, text: str) -> None:
    if len(verdict.examples) < _EXAMPLES:
        verdict.examples.append(text)


def orders(records: Sequence[Recorded]) -> dict[bytes, list[bytes]]:
    """The digests of the records of each key, in their order. Records without a key are left out."""
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for record in records:
        if record.key:
            found[record.key].append(record.digest)
    return found


def differing_states(want: States, have: States) -> list[str]:
    """One sentence for each state that differs."""
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


def lost_keys(want: States, have: States, lasting: set[tuple[str, str]]) -> list[str]:
    """One sentence for each of the `lasting` states that is without keys which it has undisturbed."""
    found = []
    for name in sorted(lasting & want.keys()):
        entries = want[name]
        gone = sorted(entries.keys() - have.get(name, {}).keys())
        if gone and _UNREADABLE not in have.get(name, {}):
            found.append(
                f"state '{name[1]}' of '{name[0]}' has lost {len(gone)} of {len(entries)} keys, for example key "
                f"{gone[0]}: {entries[gone[0]]} undisturbed"
            )
    return found


def unreadable_states(want: States, have: States) -> list[str]:
    """One sentence for each state that both sides have and neither can show whole: its values say nothing then, though
    they do not differ."""
    return [
        f"state '{state}' of '{operator}' is not compared, since it cannot be read: {entries[_UNREADABLE]}"
        for (operator, state), entries in sorted(want.items())
        if _UNREADABLE in entries and _UNREADABLE in have.get((operator, state), {})
    ]


def lasting_states(path: str) -> set[tuple[str, str]]:
    """The states of a checkpoint of which a key, once it is there, is not expected to go: (operator, state)."""
    return {
        (one.operator, one.state)
        for one in list_states(path)
        if one.kind in _LASTING and not (one.per_namespace or one.time_to_live)
    }


def keyed_states(path: str) -> States:
    """The keyed state of a checkpoint, without what the runtime keeps for itself."""
    found: States = {}
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
            entries[_UNREADABLE] = str(error)
    return found


def _without_times(value: Any) -> Any:
    """Of state with a time to live: without the times of the last access, which differ from run to run."""
    if isinstance(value, dict):
        return {key: pair[0] for key, pair in value.items()}
    return [pair[0] for pair in value] if isinstance(value, list) else value[0]


def _key_text(key: Any, namespace: Any) -> str:
    return shown(key) if namespace is None else f"{shown(key)} in {shown(namespace)}"
