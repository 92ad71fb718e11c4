"""Rolling aggregations with the heap backend, without calls per record for the state: `reduce` with a plain function of
the user's, and sum, min, max, min_by and max_by over a field of plain tuples.

A user's `reduce` is one call per record, which makes the new tuple. To be as fast, a field's aggregation has to
do without calls: so its loop is compiled for the field and the number of fields, once per operator. What is not a plain
tuple of so many fields goes the usual way, record by record. The case that comes most often, of a key whose value was
changed since the last snapshot, is asked for first, and by `__class__`, which costs less than `type()`; both together
save a twelfth of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

RETURNED_NONE = "it returned None; it has to return the two records combined"
MAX_FIELDS = 32  # the loop names them all

Reduce = Callable[[Any, Any], Any]
Loop = Callable[[Iterator[Any], Callable[[Any], Any], dict[Any, Any], dict[Any, Any], list[Any], Reduce, Reduce], None]
"""Takes the records, the key selector, a value state's changes and what is below them, the results, the reduce function
for two records of any kind, and what does everything for (key, record)."""

_BODIES = {
    "sum": "{fields} = so_far; result = ({before}{field} + v[{position}]{after},)",
    "min": "{fields} = so_far; new = v[{position}]; result = ({before}new{after},) if new < {field} else so_far",
    "max": "{fields} = so_far; new = v[{position}]; result = ({before}new{after},) if new > {field} else so_far",
    "min_by": "result = v if v[{position}] < so_far[{position}] else so_far",
    "max_by": "result = v if v[{position}] > so_far[{position}] else so_far",
}
_LOOP = """
def loop(rest, select, changed, below, results, reduce, one):
    get, get_below, append = changed.get, below.get, results.append
    for v in rest:
        key = select(v)
        if v.__class__ is not tuple:
            append(one(key, v))
            continue
        so_far = get(key, missing)
        if so_far.__class__ is tuple:
            try:
                {body}
            except (ValueError, IndexError):
                result = reduce(so_far, v)
        else:
            if so_far is missing:
                so_far = get_below(key)
            if so_far is None:
                result = v
            elif so_far.__class__ is tuple:
                try:
                    {body}
                except (ValueError, IndexError):
                    result = reduce(so_far, v)
            else:
                result = reduce(so_far, v)
        changed[key] = result
        append(result)
"""
_MISSING = object()


@cache
def loop_for(kind: str, position: int, count: int) -> Loop | None:
    """For tuples of `count` fields; None where there is no such loop."""
    if not position < count <= MAX_FIELDS:
        return None
    names = [f"f{i}" for i in range(count)]
    body = _BODIES[kind].format(
        fields=", ".join(names) + ",",
        before="".join(f"{name}, " for name in names[:position]),
        field=names[position],
        after="".join(f", {name}" for name in names[position + 1 :]),
        position=position,
    )
    made: dict[str, Any] = {"missing": _MISSING}
    exec(_LOOP.format(body=body), made)
    loop: Loop = made["loop"]
    return loop


def reduce_loop(
    rest: Iterator[Any],
    select: Callable[[Any], Any],
    changed: dict[Any, Any],
    below: dict[Any, Any],
    results: list[Any],
    reduce: Reduce,
    one: Reduce,
) -> None:
    """For a function that cannot have state of its own, which would need the current key."""
    get, get_below, append = changed.get, below.get, results.append
    for v in rest:
        key = select(v)
        so_far = get(key, _MISSING)
        if so_far is _MISSING:
            so_far = get_below(key)
        if so_far is None:
            if v is None:
                append(one(key, v))
                continue
            result = v
        else:
            result = reduce(so_far, v)
            if result is None:
                raise TypeError(RETURNED_NONE)
        changed[key] = result
        append(result)
