"""Keyed state from a DataFrame: keys hashed, rows shuffled to the parts of the savepoint, each part written by a task.

The tasks write the files and send back only their handles. Spark may run one several times: every run writes files of
its own, and the builder deletes those that are not used.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import time
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.common.errors import ConfigurationError, SerializationError, SnapshotError
from tidegate.common.typeinfo import Types
from tidegate.common.types import make_row
from tidegate.formats.arrow_columns import ColumnValues
from tidegate.snapshots.bootstrap import DataBatch, PartTarget, Shape, StateSpec, checked_keys, write_part
from tidegate.snapshots.hashing import hashes_of
from tidegate.spark.dataframes.mapped_columns import map_in_arrow
from tidegate.spark.session import use_own_python
from tidegate.storage.handles import KeyedSnapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_PART, _HASH = "__tidegate_part", "__tidegate_hash"
_ERRORS = {e.__name__: e for e in (ConfigurationError, SnapshotError, SerializationError)}
_OUR_ERROR = re.compile(r"^tidegate\.common\.errors\.(\w+): (.*)$", re.MULTILINE)


class DataFrameParts:
    """Checks columns at once; `write` runs the Spark job."""

    def __init__(
        self, data: DataFrame, spec: StateSpec, key: Any, content: Any, last_access: str | None, order_by: str | None
    ) -> None:
        if data.isStreaming:
            raise ConfigurationError(
                f"state '{spec.info.name}' is made from a bounded DataFrame, got a streaming one; write it to a table "
                "first, or read the source with spark.read"
            )
        use_own_python(data.sparkSession)
        self._content = content if isinstance(content, tuple) and spec.shape is Shape.ENTRIES else (content,)
        self._key, self._last_access, self._order_by = key, last_access, order_by
        selectors = [key, *self._content, last_access, order_by]
        names = list(dict.fromkeys(n for s in selectors for n in _names(s)))
        missing = [n for n in names if n not in data.columns]
        if missing:
            raise ConfigurationError(
                f"state '{spec.info.name}': the DataFrame has no column {', '.join(missing)}; it has "
                f"{', '.join(data.columns)}"
            )
        self._data = data if any(callable(s) for s in selectors) else data.select(*map(_quoted, names))
        if spec.key_type is None and isinstance(key, str):
            spec = dataclasses.replace(spec, key_type=_key_type(data, key))
        self.spec = spec
        self.preferred = max(1, data.sparkSession.sparkContext.defaultParallelism)

    def write(self, target: PartTarget) -> list[KeyedSnapshot]:
        from pyspark.sql.types import IntegerType, LongType, StructField, StructType

        data, order = self._data, [self._order_by] if self._order_by is not None else []
        extra = [StructField(_PART, IntegerType()), StructField(_HASH, LongType())]
        assign = _assign(self.spec, self._key, target)
        assigned = map_in_arrow(data, assign, StructType([*data.schema.fields, *extra]))
        by_id = getattr(assigned, "repartitionById", None)  # since Spark 4.1
        shuffled = by_id(target.parts, _PART) if by_id is not None else assigned.repartition(target.parts, _PART)
        ordered = shuffled.sortWithinPartitions(_PART, _HASH, *map(_quoted, order))
        write = _writer(self.spec, target, self._key, self._content, self._last_access)
        try:
            rows = map_in_arrow(ordered, write, "part int, snapshot binary").collect()
        except Exception as error:
            raise _readable(error, self.spec) from error
        written = {row["part"]: msgspec.msgpack.decode(row["snapshot"], type=KeyedSnapshot) for row in rows}
        return [written.get(n) or write_part(self.spec, target, n, ()) for n in range(target.parts)]


def _names(selector: Any) -> list[str]:
    if selector is None or callable(selector):
        return []
    return [selector] if isinstance(selector, str) else list(selector)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _key_type(data: DataFrame, column: str) -> Any:
    """So that keys are a typed column of the savepoint too. Only for types whose values stay what they are."""
    known = {"string": Types.STRING(), "bigint": Types.LONG(), "int": Types.LONG(), "smallint": Types.LONG()}
    return known.get(data.schema[column].dataType.simpleString())


def _readable(error: Exception, spec: StateSpec) -> Exception:
    """The error of ours inside of Spark's, if there is one."""
    found = _OUR_ERROR.search(str(error))
    if found is not None and found[1] in _ERRORS:
        return _ERRORS[found[1]](found[2])
    return SnapshotError(f"operator '{spec.operator}': state '{spec.info.name}' could not be written: {error}")


# ---------------------------------------------------------------- in the workers


def _assign(
    spec: StateSpec, key: Any, target: PartTarget
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def assign(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        for batch in batches:
            hashes = hashes_of(checked_keys(spec, _selected(batch, key)))
            parts = target.parts_of(hashes).astype(np.int32)
            columns = [*batch.columns, pa.array(parts), pa.array(hashes.view(np.int64))]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, _PART, _HASH])

    return assign


def _writer(
    spec: StateSpec, target: PartTarget, key: Any, content: tuple[Any, ...], last_access: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    now = int(time.time() * 1000)

    def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, DataBatch]]:
        for whole in batches:
            for part, batch in _by_part(whole):
                columns = [_selected(batch, c) for c in content]
                values = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
                times = [now] * len(values) if last_access is None else list(map(_ms, _selected(batch, last_access)))
                hashes = batch.column(_HASH).to_numpy()
                yield part, DataBatch(hashes, checked_keys(spec, _selected(batch, key)), values, times)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for part, rows in groupby(rows_of(batches), lambda pair: pair[0]):
            snapshot = write_part(spec, target, part, (batch for _, batch in rows))
            encoded = pa.array([msgspec.msgpack.encode(snapshot)], pa.binary())
            yield pa.RecordBatch.from_arrays([pa.array([part], pa.int32()), encoded], names=["part", "snapshot"])

    return write


def _by_part(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """One part per task, but for Spark 4.0, where a task may get several, one after the other."""
    import numpy as np

    parts = batch.column(_PART).to_numpy()
    cuts = [0, *(np.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist(), len(parts)]
    for start, end in pairwise(cuts):
        if start < end:
            yield int(parts[start]), batch.slice(start, end - start)


def _ms(moment: Any) -> int:
    if isinstance(moment, datetime.datetime):
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
        return int(zoned.timestamp() * 1000)
    if type(moment) is int:
        return moment
    raise ConfigurationError(f"last_access is a timestamp, or ms since the epoch, got {moment!r}")


def _selected(batch: pa.RecordBatch, selector: Any) -> Any:
    """What a selector makes of the rows, as Python values."""
    if isinstance(selector, str):
        return _values(batch, selector)
    if callable(selector):
        names = tuple(n for n in batch.schema.names if n not in (_PART, _HASH))
        columns = [_values(batch, n) for n in names]
        return [selector(make_row(names, list(row))) for row in zip(*columns, strict=True)]
    return list(zip(*[_values(batch, n) for n in selector], strict=True))


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """As `from_spark` gives them."""
    return ColumnValues(batch.schema.field(name)).of(batch.column(name))
