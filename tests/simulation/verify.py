"""What has to hold when a simulated job has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.simulation.functions import CLEAR_EVERY, Counted
from tests.simulation.outside_world import BrokenPromise, Ident
from tests.simulation.random_job import ExpectedKeyed, ExpectedSink, Order, RandomJob

Rows = list[tuple[int, Any]]  # (subtask, record)


def check(condition: bool, message: str) -> None:
    if not condition:
        raise BrokenPromise(message)


def check_output(
    job: RandomJob,
    visible: dict[str, Rows],
    exact: set[str],
    complete: bool,
    in_order: bool = True,
    excused: Mapping[str, Counter[Ident]] = MappingProxyType({}),
) -> int:
    """`exact`: the kinds of sinks that have to get every record exactly once. `complete`: the job is FINISHED, so
    nothing may be missing. `in_order`: the order of records that took the same way was kept. `excused`: what has come
    to a sink before the job fell back, and may have come again. Returns how many records were doubled in sinks that can
    do better than at least once."""
    doubled = 0
    for sink in job.sinks:
        rows = visible.get(sink.name, [])
        got = Counter(row[0] for _, row in rows)
        if sink.place and not exact:
            doubled += check_totals(sink, got, complete)
            continue
        missing, extra = sink.idents - got, got - sink.idents
        check(not missing or not complete, f"{sink.name} ({sink.kind}): lost {_some(missing)}")
        strangers = [ident for ident in extra if ident not in sink.idents]
        check(not strangers, f"{sink.name} ({sink.kind}): records from nowhere {strangers[:5]}")
        if sink.kind in exact:
            doubled_by_itself = extra - excused.get(sink.name, Counter())
            check(not doubled_by_itself, f"{sink.name} ({sink.kind}): doubled {_some(doubled_by_itself)}")
            if in_order and sink.name not in excused:
                check_order(sink.name, [row[0] for _, row in rows], sink.order)
        doubled += sum(extra.values()) if sink.exactly_once else 0
    noted = [sink.name for sink in job.sinks if sink.kind in exact and sink.name not in excused]
    check_notes(job, {name: visible.get(name, []) for name in noted}, in_order)
    return doubled


def check_totals(sink: ExpectedSink, got: Counter[Ident], complete: bool) -> int:
    """At least once: of each place there is a total that holds at least the records that belong there. Returns how many
    totals are too high or come again."""
    at = sink.place
    highest: dict[Ident, int] = {}
    for ident in got:
        highest[ident[:at]] = max(highest.get(ident[:at], 0), ident[at])
    wanted = {ident[:at]: ident[at] for ident in sink.idents}
    strangers = sorted(highest.keys() - wanted.keys())
    check(not strangers, f"{sink.name} ({sink.kind}): totals from nowhere {strangers[:5]}")
    if complete:
        short = {place: (highest.get(place, 0), n) for place, n in wanted.items() if highest.get(place, 0) < n}
        check(
            not short, f"{sink.name} ({sink.kind}): lost records, (got, expected) by place {sorted(short.items())[:5]}"
        )
    return sum((got - sink.idents).values())


def _some(idents: Counter[Ident]) -> str:
    return f"{sum(idents.values())} records: {sorted(idents.items())[:5]}"


def check_order(where: str, idents: list[Ident], order: dict[int, Order]) -> None:
    """Records of one split that took the same way are in their order."""
    latest: dict[tuple[Any, ...], Ident] = {}
    for ident in idents:
        way = order.get(ident[0])
        if way is None:
            continue
        group = (ident[0], ident[1], *(key.of(ident[:depth]) for key, depth in way))
        before = latest.get(group)
        check(before is None or before <= ident, f"{where}: {ident} came after {before}")
        latest[group] = ident


def check_notes(job: RandomJob, visible: dict[str, Rows], in_order: bool = True) -> None:
    """Every note (operator, key, count) was given once; by key, counts follow the order of the input."""
    given: dict[str, dict[Any, dict[int, Ident]]] = {}  # operator -> key -> count -> ident
    for name, rows in visible.items():
        for _, (ident, notes) in rows:
            for operator, key, count in notes:
                depth = job.note_depths[operator].get(ident[0])
                if depth is None:
                    continue
                counts = given.setdefault(operator, {}).setdefault(key, {})
                before = counts.setdefault(count, ident[:depth])
                check(
                    before == ident[:depth],
                    f"{name}: number {count} of key {key} in {operator} is both {before} and {ident[:depth]}",
                )
    for expected in job.keyed:
        totals = {key: sum(idents.values()) for key, idents in expected.by_key().items()}
        for key, counts in given.get(expected.name, {}).items():
            highest = max(counts)
            check(
                highest <= totals.get(key, 0), f"{expected.name}: key {key} counted to {highest}, not {totals.get(key)}"
            )
            if in_order:
                check_order(f"{expected.name}, key {key}", [i for _, i in sorted(counts.items())], expected.order)


def check_state(job: RandomJob, state: dict[tuple[str, int], dict[Any, Any]], in_order: bool = True) -> None:
    """Keyed state at the end of the job, dumped by each subtask."""
    for expected in job.keyed:
        if not expected.has_state:
            continue
        found: dict[Any, Any] = {}
        for (name, subtask), entries in state.items():
            if name == expected.name:
                twice = found.keys() & entries.keys()
                check(not twice, f"{name}: keys {sorted(twice)} are in several subtasks, one of them {subtask}")
                found.update(entries)
        _check_keys(expected, found, in_order)


def check_counted(job: RandomJob, counted: dict[tuple[str, int], Counted]) -> None:
    """Operator state at the end of the job: every record is counted in one subtask, and with those that were restored
    as a union everybody knows of all."""
    for name, total in job.counted.items():
        found = [one for (operator, _), one in counted.items() if operator == name]
        got = sum(one.count for one in found)
        check(got == total, f"{name}: its subtasks counted {got} records in all, expected {total}")
        for one in found:
            union = one.restored_by_all + sum(other.since_restore for other in found)
            check(union == total, f"{name}: with the restored union a subtask knows of {union} records, not {total}")


def _check_keys(expected: ExpectedKeyed, found: dict[Any, Any], in_order: bool) -> None:
    wanted = expected.by_key()
    check(found.keys() == wanted.keys(), f"{expected.name}: state of keys {sorted(found)}, expected {sorted(wanted)}")
    for key, idents in wanted.items():
        where, entry, total = f"{expected.name}, key {key}", found[key], sum(idents.values())
        check(entry["count"] == total, f"{where}: counted {entry['count']}, expected {total}")
        if not expected.rich:
            continue
        history = entry["history"]
        check(Counter(history) == idents, f"{where}: the history is {history}, expected {_some(idents)}")
        if in_order:
            check_order(where, history, expected.order)
        first = total - total % CLEAR_EVERY + 1
        recent = {count: history[count - 1] for count in range(first, total + 1)}
        check(entry["recent"] == recent, f"{where}: recent is {entry['recent']}, expected {recent}")
        numbers = sum(ident[2] * n for ident, n in idents.items())
        for name in ("total", "sum"):
            check(entry[name] == numbers, f"{where}: {name} is {entry[name]}, expected {numbers}")
