"""Elements as bytes, for the wire and for the in-flight part of an unaligned checkpoint."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import cloudpickle

from tidegate.contracts.batches import RecordBatch
from tidegate.network.elements import ControlElement, decode_control, encode_control

ROWS = 1  # payload: pickled list of values
ROWS_WITH_TIMESTAMPS = 2  # payload: pickled (values, timestamps)
CONTROL = 3  # payload: msgpack of a ControlElement

Element = RecordBatch | ControlElement


class SerializedElement(NamedTuple):
    kind: int
    records: int
    payload: bytes


def dump_values(obj: Any) -> bytes:
    """Pickle user values. Plain pickle is tried first: it is about 20 times faster than cloudpickle, which is needed
    only for objects that plain pickle refuses (instances of local classes, lambdas)."""
    try:
        return pickle.dumps(obj, 5)
    except (pickle.PicklingError, AttributeError, TypeError):
        return cloudpickle.dumps(obj, 5)  # type: ignore[no-any-return]


def serialize(element: Element) -> SerializedElement:
    if isinstance(element, RecordBatch):
        if element.timestamps is None:
            return SerializedElement(ROWS, len(element.values), dump_values(element.values))
        return SerializedElement(
            ROWS_WITH_TIMESTAMPS, len(element.values), dump_values((element.values, element.timestamps))
        )
    return SerializedElement(CONTROL, 0, encode_control(element))


def deserialize(kind: int, payload: bytes) -> Element:
    if kind == ROWS:
        return RecordBatch(pickle.loads(payload))
    if kind == ROWS_WITH_TIMESTAMPS:
        values, timestamps = pickle.loads(payload)
        return RecordBatch(values, timestamps)
    control: ControlElement = decode_control(payload)
    return control
