"""Elements as bytes, for the wire and for the in-flight part of an unaligned checkpoint.

Each kind of batch has a codec here: how it becomes bytes (`_DUMPS`, by its class), and how bytes of a kind become a
batch again (`_LOADS`, by the number that stands before them, on the wire and in snapshots). These numbers never change
their meaning: snapshots that were written long ago hold them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle

from tidegate.common.errors import InternalError
from tidegate.contracts.batches import Batch, RecordBatch
from tidegate.network.elements import ControlElement, decode_control, encode_control

ROWS = 1  # payload: pickled list of values
ROWS_WITH_TIMESTAMPS = 2  # payload: pickled (values, timestamps)
CONTROL = 3  # payload: msgpack of a ControlElement

Element = Batch | ControlElement


class SerializedElement(NamedTuple):
    kind: int
    records: int  # how many; 0 for a control element
    payload: bytes


def dump_values(obj: Any) -> bytes:
    """Pickle user values. Plain pickle is tried first: it is about 20 times faster than cloudpickle, which is needed
    only for objects that plain pickle refuses (instances of local classes, lambdas)."""
    try:
        return pickle.dumps(obj, 5)
    except (pickle.PicklingError, AttributeError, TypeError):
        return cloudpickle.dumps(obj, 5)  # type: ignore[no-any-return]


def _dump_rows(batch: RecordBatch) -> SerializedElement:
    values, timestamps = batch.values, batch.timestamps
    if timestamps is None:
        return SerializedElement(ROWS, len(values), dump_values(values))
    return SerializedElement(ROWS_WITH_TIMESTAMPS, len(values), dump_values((values, timestamps)))


def _load_rows(payload: bytes) -> RecordBatch:
    return RecordBatch(pickle.loads(payload))


def _load_stamped_rows(payload: bytes) -> RecordBatch:
    return RecordBatch(*pickle.loads(payload))


_DUMPS: dict[type, Callable[[Any], SerializedElement]] = {RecordBatch: _dump_rows}
_LOADS: dict[int, Callable[[bytes], Element]] = {
    ROWS: _load_rows,
    ROWS_WITH_TIMESTAMPS: _load_stamped_rows,
    CONTROL: decode_control,
}


def serialize(element: Element) -> SerializedElement:
    dump = _DUMPS.get(type(element))
    if dump is not None:
        return dump(element)
    if isinstance(element, Batch):
        raise InternalError(f"batches of the kind {type(element).__name__} have no codec")
    return SerializedElement(CONTROL, 0, encode_control(element))


def deserialize(kind: int, payload: bytes) -> Element:
    load = _LOADS.get(kind)
    if load is None:
        raise InternalError(f"elements of the kind {kind} have no codec")
    return load(payload)
