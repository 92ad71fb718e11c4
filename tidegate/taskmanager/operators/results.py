"""Turning what a user's function yields into output batches, side outputs included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.output_tag import OutputTag
from tidegate.taskmanager.copying import copied_batch


class Outputs(Protocol):
    """As much of an operator as is needed to emit."""

    output: Callable[[RecordBatch], None]
    side_outputs: dict[str, Callable[[RecordBatch], None]]
    copied_outputs: frozenset[str | None]


def emit_results(operator: Outputs, results: list[Any], timestamps: list[int] | None) -> None:
    """Emit in order. `(OutputTag, value)` pairs go to that side output (nowhere, when nobody reads it)."""
    if not results:
        return
    if OutputTag.in_use and any(type(r) is tuple and len(r) == 2 and type(r[0]) is OutputTag for r in results):
        _emit_tagged(operator, results, timestamps)
    else:
        operator.output(RecordBatch(results, timestamps))


def _emit_tagged(operator: Outputs, results: list[Any], timestamps: list[int] | None) -> None:
    outputs: dict[str | None, tuple[list[Any], list[int]]] = {}
    for i, r in enumerate(results):
        if type(r) is tuple and len(r) == 2 and type(r[0]) is OutputTag:
            values, stamps = outputs.setdefault(r[0].tag_id, ([], []))
            values.append(r[1])
        else:
            values, stamps = outputs.setdefault(None, ([], []))
            values.append(r)
        if timestamps is not None:
            stamps.append(timestamps[i])
    # A function may yield one object to several outputs: what a reader of one does to it, those of others do not see.
    # As where a stream has several readers, those who may change it get copies, but for the last when all of them may.
    copied = [tag for tag in outputs if tag in operator.copied_outputs]
    if len(copied) == len(outputs):
        copied.pop()
    for tag, (values, stamps) in outputs.items():
        emit = operator.output if tag is None else operator.side_outputs.get(tag)
        if emit is not None:
            batch = RecordBatch(values, None if timestamps is None else stamps)
            emit(copied_batch(batch).rows() if tag in copied else batch)
