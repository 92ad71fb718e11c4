"""Elements as bytes, for the wire and for the in-flight part of an unaligned checkpoint.

Each kind of batch has a codec here: how it becomes bytes (`_DUMPS`, by its class), and how bytes of a kind become a
batch again (`_LOADS`, by the number that stands before them, on the wire and in snapshots). These numbers never change
their meaning: snapshots that were written long ago hold them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cloudpickle

from tidegate.common.errors import InternalError
from tidegate.contracts.batches import Batch, RecordBatch
from tidegate.network.elements import ControlElement, decode_control, encode_control
from tidegate.network.wire import Buffer

ROWS = 1  # payload: pickled list of values
ROWS_WITH_TIMESTAMPS = 2  # payload: pickled (values, timestamps)
CONTROL = 3  # payload: msgpack of a ControlElement

Element = Batch | ControlElement


class SerializedElement(NamedTuple):
    kind: int
    records: int  # how many; 0 for a control element
    payload: bytes


_OUT_OF_BAND = 1 << 16  # bytes from which on a buffer stays outside the pickle: a message part of its own pays then

Buffers = list[memoryview]


def dump_values(obj: Any, buffers: Buffers | None = None) -> bytes:
    """Pickle user values. Plain pickle is tried first: it is about 20 times faster than cloudpickle, which is needed
    only for objects that plain pickle refuses (instances of local classes, lambdas).

    Large buffers (of NumPy arrays, Arrow data and whatever else uses pickle's protocol 5) are added to `buffers`, if
    there is such a list, instead of being copied into the pickle."""

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        if buffers is None:
            return True
        raw = buffer.raw()
        if raw.nbytes < _OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    try:
        return pickle.dumps(obj, 5, buffer_callback=stays_inside)
    except (pickle.PicklingError, AttributeError, TypeError):
        if buffers is not None:
            buffers.clear()
        return cloudpickle.dumps(obj, 5, buffer_callback=stays_inside)  # type: ignore[no-any-return]


class _LargeBytes:
    """Stands for `bytes` in a batch that is pickled, since pickle itself leaves them in."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return bytes, (pickle.PickleBuffer(self._value),)


def _with_bytes_outside(values: list[Any]) -> list[Any]:
    return [
        _outside(v) if type(v) is bytes else tuple(map(_outside, v)) if type(v) is tuple else v  # (key, bytes)
        for v in values
    ]


def _outside(value: Any) -> Any:
    return _LargeBytes(value) if type(value) is bytes and len(value) >= _OUT_OF_BAND else value


def _dump_rows(batch: RecordBatch, buffers: Buffers | None) -> SerializedElement:
    values, timestamps = batch.values, batch.timestamps
    if buffers is not None and batch.estimated_bytes() >= len(values) * _OUT_OF_BAND:
        values = _with_bytes_outside(values)
    if timestamps is None:
        return SerializedElement(ROWS, len(values), dump_values(values, buffers))
    return SerializedElement(ROWS_WITH_TIMESTAMPS, len(values), dump_values((values, timestamps), buffers))


def _load_rows(payload: Buffer, buffers: Sequence[Buffer]) -> RecordBatch:
    return RecordBatch(pickle.loads(payload, buffers=buffers))


def _load_stamped_rows(payload: Buffer, buffers: Sequence[Buffer]) -> RecordBatch:
    return RecordBatch(*pickle.loads(payload, buffers=buffers))


def _load_control(payload: Buffer, buffers: Sequence[Buffer]) -> ControlElement:
    element: ControlElement = decode_control(payload)
    return element


_DUMPS: dict[type, Callable[[Any, Buffers | None], SerializedElement]] = {RecordBatch: _dump_rows}
_LOADS: dict[int, Callable[[Buffer, Sequence[Buffer]], Element]] = {
    ROWS: _load_rows,
    ROWS_WITH_TIMESTAMPS: _load_stamped_rows,
    CONTROL: _load_control,
}


def serialize(element: Element, buffers: Buffers | None = None) -> SerializedElement:
    """With a list for `buffers`: the large buffers of the records are added to it, in the order in which `deserialize`
    wants them, and belong to the same element. Without: everything is in the payload, as in snapshots."""
    dump = _DUMPS.get(type(element))
    if dump is not None:
        return dump(element, buffers)
    if isinstance(element, Batch):
        raise InternalError(f"batches of the kind {type(element).__name__} have no codec")
    return SerializedElement(CONTROL, 0, encode_control(element))


def deserialize(kind: int, payload: Buffer, buffers: Sequence[Buffer] = ()) -> Element:
    """`buffers` have to be writable, or arrays that were writable come back read-only; they are not copied."""
    load = _LOADS.get(kind)
    if load is None:
        raise InternalError(f"elements of the kind {kind} have no codec")
    return load(payload, buffers)
