"""Arguments have PyFlink's names and places: a call that PyFlink takes, by position or by keyword, is taken here.

`scripts/pyflink_signatures.json` holds, per method of PyFlink 2.3, the names of its arguments in order; `name=` may be
left out, `*name` takes the rest. Methods that wrap a Java object are not in it. What it
has for Kafka and JDBC was held against the sources of those connectors.
"""

from __future__ import annotations

import importlib
import inspect
import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

TABLE: dict[str, dict[str, dict[str, str]]] = json.loads(
    (Path(__file__).parents[2] / "scripts" / "pyflink_signatures.json").read_text()
)

DIFFERENT = {
    "Time.__init__": "made with Time.seconds() and the like",
    "AsyncFunctionDescriptor.__init__": "made by AsyncDataStream",
    "WindowedStream.__init__": "made by window()",
    "AllWindowedStream.__init__": "made by window_all()",
    "BroadcastStream.__init__": "made by broadcast()",
    "BroadcastConnectedStream.__init__": "made by connect()",
    "KeyedStream.broadcast": "takes the arguments of DataStream.broadcast",
}


def parameters(owner: type, method: str) -> list[inspect.Parameter]:
    if method == "__init__":
        return list(inspect.signature(owner).parameters.values())
    found = list(inspect.signature(getattr(owner, method)).parameters.values())
    bound = isinstance(inspect.getattr_static(owner, method), staticmethod | classmethod)
    return found if bound else found[1:]


def complaints(have: list[inspect.Parameter], wanted: str) -> list[str]:
    """What a call in PyFlink's way would stumble over."""
    names = [name for name in wanted.split(", ") if name]
    result = []
    for place, name in enumerate(names):
        expected, optional = name.rstrip("="), name.endswith("=") or name.startswith("*")
        if place >= len(have):
            result.append(f"no {expected}")
            continue
        own = have[place]
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(own.kind, "")
        if stars + own.name != expected:
            result.append(f"{stars}{own.name} in the place of {expected}")
        elif optional and not stars and own.default is inspect.Parameter.empty:
            result.append(f"{expected} has no default")
    for own in have[len(names) :]:
        if own.default is inspect.Parameter.empty and own.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            result.append(f"{own.name} is asked for")
    return result


@pytest.mark.parametrize("module", TABLE)
def test_arguments_are_those_of_pyflink(module: str) -> None:
    ours: Any = importlib.import_module(f"tidegate.{module}")
    wrong = {}
    for class_name, methods in TABLE[module].items():
        for method, wanted in methods.items():
            if f"{class_name}.{method}" in DIFFERENT:
                continue
            if found := complaints(parameters(attrgetter(class_name)(ours), method), wanted):
                wrong[f"{class_name}.{method}"] = found
    assert not wrong


def test_what_is_noticed() -> None:
    def method(first: int, second: int = 1, *rest: int, third: int) -> None: ...

    have = list(inspect.signature(method).parameters.values())
    assert complaints(have, "first, second=, *rest, third") == []
    assert complaints(have, "first, other=, *rest, third") == ["second in the place of other"]
    assert complaints(have, "first=, second=, *rest") == ["first has no default", "third is asked for"]
    assert complaints(have[:1], "first, second=") == ["no second"]
