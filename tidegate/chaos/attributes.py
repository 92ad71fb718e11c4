"""Finds functions that keep something in their attributes while they run: state that a recovery would forget."""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path
from typing import Any

from tidegate.chaos.canonical import canonical
from tidegate.common.ids import CheckpointId
from tidegate.contracts.functions import CheckpointedFunction
from tidegate.taskmanager.operators.base import FunctionOperator

_VALUES = (bool, int, float, str, bytes, list, dict, set, tuple, collections.deque, collections.Counter)


def watch_attributes(operator: FunctionOperator, folder: str) -> None:
    """From one snapshot to the next: which attributes of the function have changed. Functions that put their attributes
    into state themselves are left out."""
    function = operator.function
    if isinstance(function, CheckpointedFunction) or not hasattr(function, "__dict__"):
        return
    update_state = operator.update_state
    seen: dict[str, str] = {}
    changed: set[str] = set()

    def watched(checkpoint_id: CheckpointId, timestamp: int) -> None:
        update_state(checkpoint_id, timestamp)
        now = _values(function)
        new = {name for name, text in now.items() if seen.get(name, text) != text} - changed
        seen.update(now)
        if new:
            changed.update(new)
            _note(folder, operator.node.operator_id, operator.context.subtask, sorted(changed))

    operator.update_state = watched  # type: ignore[method-assign]


def _values(function: Any) -> dict[str, str]:
    return {name: canonical(value) for name, value in vars(function).items() if isinstance(value, _VALUES)}


def _note(folder: str, operator_id: str, subtask: int, names: list[str]) -> None:
    directory = os.path.join(folder, "attributes")
    os.makedirs(directory, exist_ok=True)
    Path(directory, f"{operator_id}-{subtask:04}").write_text(json.dumps(names))


def changing_attributes(folder: str, operator_id: str) -> list[str]:
    found: set[str] = set()
    for file in Path(folder, "attributes").glob(f"{operator_id}-*"):
        found.update(json.loads(file.read_text()))
    return sorted(found)
