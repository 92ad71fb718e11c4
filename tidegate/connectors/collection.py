"""A source of values that were in the user's program."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle

from tidegate.common.errors import SerializationError
from tidegate.contracts.connectors import Source, SourceContext, SourceSplit, SplitReader


class CollectionSource(Source[Any]):
    """The elements of a collection, in order, as one split: run it with parallelism 1.

    The elements are pickled at once, so what the program does to them later is not seen by the job, and a worker
    without the split never unpickles them.
    """

    gives_timestamps = False

    def __init__(self, collection: Iterable[Any], type_info: Any = None) -> None:
        elements = list(collection)
        self._size = len(elements)
        self._blob = _pickled(elements)
        self._type_info = type_info

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit("0")]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> CollectionReader:
        return CollectionReader(pickle.loads(self._blob), 0 if offset is None else offset)

    def get_produced_type(self) -> Any:
        return self._type_info

    def __repr__(self) -> str:
        return f"CollectionSource({self._size} elements)"


class CollectionReader(SplitReader[Any]):
    def __init__(self, elements: list[Any], position: int) -> None:
        self._elements = elements
        self._position = position

    def poll(self, max_records: int) -> list[Any] | None:
        start = self._position
        if start >= len(self._elements):
            return None
        batch = self._elements[start : start + max_records]
        self._position = start + len(batch)
        return batch

    def offset(self) -> int:
        return self._position

    def progress(self) -> float:
        return self._position / max(1, len(self._elements))


def _pickled(elements: list[Any]) -> bytes:
    try:
        return bytes(cloudpickle.dumps(elements, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception:
        for i, element in enumerate(elements):
            try:
                cloudpickle.dumps(element, protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                raise SerializationError(
                    f"from_collection: element {i} (type {type(element).__qualname__}) cannot be pickled: {error}. "
                    "The elements are sent to the workers; use plain values, or create the object in a map function."
                ) from error
        raise
